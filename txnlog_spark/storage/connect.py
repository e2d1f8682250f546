"""Opens the `Files` of a location with the options `txnlog.fs.*`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from txnlog_kafka.wire.invariants import present
from txnlog_spark.errors import OptionError, do_this, is_secret
from txnlog_spark.process_local import process_local
from txnlog_spark.storage.arrow import ObjectFiles, RenamedFiles
from txnlog_spark.storage.file_store import Files
from txnlog_spark.storage.local import LocalFiles
from txnlog_spark.storage.location import AZURE, GCS, HDFS, LOCAL, S3, Location
from txnlog_spark.storage.options import STORAGE_OPTIONS, STORAGE_PREFIX
from txnlog_spark.storage.remote import Place, without_secrets

RETRY_SECONDS_MAX = 60
"""Longest time that requests to Google's store are retried, in seconds. Its library retries for a
quarter of an hour by default."""
BACKOFF_SECONDS = 3
"""Pause between two tries at Azure, in seconds, as in Hadoop. Its SDK waits 18, 24 and 42 seconds
by default, and after a failed write asks once more whether the write succeeded: a wrong host would
be reported only after three minutes."""


@dataclass(frozen=True)
class StorageSettings:
    """Values of all options by their names without `txnlog.fs.`; None if an option is not set."""

    values: Mapping[str, str | None] = field(
        default_factory=lambda: {option.name: option.default for option in STORAGE_OPTIONS},
        repr=False,
    )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> StorageSettings:
        """Return the settings from parsed options."""
        return cls(
            {option.name: values[STORAGE_PREFIX + option.name] for option in STORAGE_OPTIONS}
        )

    def __getitem__(self, name: str) -> str | None:
        """Return an option's value."""
        return self.values[name]

    def is_true(self, name: str) -> bool:
        """True if the option, which is true or false, is true."""
        return self.values[name] == "true"

    def seconds(self, name: str) -> float:
        """Return an option in milliseconds as seconds; the option must have a default."""
        return int(present(self.values[name], "it has a default")) / 1000

    @property
    def secrets(self) -> frozenset[str]:
        """Values that no message may show."""
        given = (value for name, value in self.values.items() if is_secret(STORAGE_PREFIX + name))
        return frozenset(value for value in given if value)


class OpenedFiles(dict[tuple[object, ...], Files]):
    """Opened stores by root and settings: connections outlive a commit."""


def open_files(option: str, location: Location, settings: StorageSettings) -> Files:
    """Return the files of a location, without asking its store yet. Raises OptionError."""
    if location.scheme == LOCAL:
        return LocalFiles()
    opened = process_local(OpenedFiles)
    key = (location.root, frozenset(settings.values.items()))
    found = opened.get(key)
    if found is None:
        found = opened[key] = _connect(option, location, settings)
    return found


def _connect(option: str, location: Location, settings: StorageSettings) -> Files:
    """Open a store. Raises OptionError for every error of its library."""
    try:
        return _opener_of(location.scheme)(location, settings)
    except Exception as error:  # noqa: BLE001 - each library has exceptions of its own
        reason = without_secrets(error, settings.secrets)
        raise OptionError(
            option, location.text, f"it cannot be opened: {reason}. {_missing(location.scheme)}"
        ) from None


def _opener_of(scheme: str) -> Callable[[Location, StorageSettings], Files]:
    if scheme in S3:
        return _s3
    if scheme in AZURE:
        return _azure
    if scheme in HDFS:
        return _hdfs
    return _gcs if scheme == GCS else _fsspec


def _missing(scheme: str) -> str:
    """Return advice about packages or configuration that the machine may lack."""
    if scheme in HDFS:
        return _HDFS_ADVICE
    if scheme in (*S3, *AZURE, GCS):
        extra = "s3" if scheme in S3 else "azure" if scheme in AZURE else "gcs"
        command = do_this(f"pip install 'txnlog_spark[{extra}]'", "if a package is missing")
        return f"Look at its txnlog.fs.* options{command}"
    return f"pip install fsspec and its package for {scheme}, or give the path of a mounted volume"


_S3_ADVICE = (
    "Look at txnlog.fs.s3a.*; without them, at the AWS credentials of the driver's environment. It "
    "has to be allowed to s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there"
)


def _s3(location: Location, settings: StorageSettings) -> ObjectFiles:
    from pyarrow.fs import S3FileSystem, resolve_s3_region

    endpoint, region = settings["s3a.endpoint"], settings["s3a.endpoint.region"]
    scheme, host = _scheme_and_host(endpoint, settings.is_true("s3a.connection.ssl.enabled"))
    known = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if known is None:
        known = "us-east-1" if endpoint else resolve_s3_region(location.authority)
    made = S3FileSystem(
        access_key=settings["s3a.access.key"],
        secret_key=settings["s3a.secret.key"],
        session_token=settings["s3a.session.token"],
        role_arn=settings["s3a.assumed.role.arn"],
        region=known,
        endpoint_override=host,
        scheme=scheme,
        force_virtual_addressing=bool(host) and not settings.is_true("s3a.path.style.access"),
        connect_timeout=settings.seconds("s3a.connection.establish.timeout"),
        request_timeout=settings.seconds("s3a.connection.timeout"),
        allow_delayed_open=True,  # a small object is one put
    )
    place = Place(location.root, location.authority, _S3_ADVICE, settings.secrets)
    return ObjectFiles(made, place)


def _scheme_and_host(endpoint: str | None, has_tls: bool) -> tuple[str, str | None]:
    """Return scheme and host of an address with or without http:// or https://."""
    if endpoint is None:
        return "https", None
    scheme, found, host = endpoint.rpartition("://")
    return (scheme if found else "https" if has_tls else "http"), host.rstrip("/")


_GCS_ADVICE = (
    "Look at txnlog.fs.gs.*, and at GOOGLE_APPLICATION_CREDENTIALS or the service account of the "
    "driver's machine, which has to be allowed to read, list, create and delete objects there"
)


def _gcs(location: Location, settings: StorageSettings) -> ObjectFiles:
    from pyarrow.fs import GcsFileSystem

    scheme, host = _scheme_and_host(settings["gs.storage.root.url"], True)
    made = GcsFileSystem(
        anonymous=settings["gs.auth.type"] == "UNAUTHENTICATED",
        project_id=settings["gs.project.id"],
        scheme=scheme,
        endpoint_override=host,
        retry_time_limit=timedelta(seconds=RETRY_SECONDS_MAX),
    )
    return ObjectFiles(made, Place(location.root, location.authority, _GCS_ADVICE))


_AZURE_ADVICE = (
    "Look at txnlog.fs.azure.*; without them, at AZURE_* in the driver's environment or the "
    "machine's managed identity, which has to be a Storage Blob Data Contributor there"
)


def _azure(location: Location, settings: StorageSettings) -> Files:
    from azure.identity import ClientSecretCredential, DefaultAzureCredential
    from azure.storage.blob import ContainerClient, LinearRetry

    from txnlog_spark.storage.azure import AzureFiles

    container, _, host = location.authority.partition("@")
    account, _, domain = host.partition(".")
    endpoint = settings["azure.abfs.endpoint"]
    url = f"https://{account}.{domain.replace('dfs.', 'blob.', 1)}"
    if endpoint is not None:
        url = f"http://{endpoint}/{account}"
    key, token = settings["azure.account.key"], settings["azure.sas.fixed.token"]
    tenant = settings["azure.account.oauth2.msi.tenant"]
    limits: dict[str, Any] = {
        "connection_timeout": settings.seconds("azure.http.connection.timeout"),
        "read_timeout": settings.seconds("azure.http.read.timeout"),
    }
    credential: Any
    if key is not None:
        credential = {"account_name": account, "account_key": key}
    elif token is not None:
        credential = token
    elif tenant is not None:
        credential = ClientSecretCredential(
            tenant,
            settings["azure.account.oauth2.client.id"] or "",
            settings["azure.account.oauth2.client.secret"] or "",
            retry_total=0,  # each try at the store asks for the token once
            **limits,
        )
    else:
        credential = DefaultAzureCredential()
    retries = int(settings["azure.io.retry.max.retries"] or 0)
    each: dict[str, Any] = dict.fromkeys(("retry_connect", "retry_read", "retry_status"), retries)
    policy = LinearRetry(BACKOFF_SECONDS, retries, random_jitter_range=1, **each)
    client = ContainerClient(url, container, credential, retry_policy=policy, **limits)
    return AzureFiles(client, Place(f"{location.root}/", "", _AZURE_ADVICE, settings.secrets))


_HDFS_ADVICE = (
    "pyarrow needs Hadoop's libhdfs: set HADOOP_HOME, JAVA_HOME and CLASSPATH=$(hadoop classpath "
    "--glob) for the driver"
)


def _hdfs(location: Location, _: StorageSettings) -> RenamedFiles:
    from pyarrow.fs import HadoopFileSystem

    made = HadoopFileSystem.from_uri(f"{location.scheme}://{location.authority or 'default'}/")
    return RenamedFiles(made, Place(location.root, "", _HDFS_ADVICE))


def _fsspec(location: Location, _: StorageSettings) -> RenamedFiles:
    import fsspec
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    made, inner = fsspec.core.url_to_fs(f"{location.root}/")
    advice = f"Look at fsspec's configuration of {location.scheme}"
    place = Place(location.root, str(inner).rstrip("/"), advice)
    return RenamedFiles(PyFileSystem(FSSpecHandler(made)), place)

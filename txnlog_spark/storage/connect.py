"""From a location and the options `txnlog.fs.*` to its `Files`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from txnlog_spark.errors import OptionError, is_secret
from txnlog_spark.storage.arrow import ObjectFiles, RenamedFiles, Store, without_secrets
from txnlog_spark.storage.files import Files
from txnlog_spark.storage.local import LocalFiles
from txnlog_spark.storage.location import AZURE, HDFS, LOCAL, S3, Location
from txnlog_spark.storage_options import STORAGE_OPTIONS, STORAGE_PREFIX

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

GCS_RETRY_SECONDS_MAX = 60
"""Its library tries for a quarter of an hour by itself."""
_AZURE_HOST = ".dfs.core.windows.net"


@dataclass(frozen=True)
class StorageSettings:
    """The options by their names without `txnlog.fs.`; all are there, those not given as None."""

    values: Mapping[str, str | None] = field(
        default_factory=lambda: {option.name: option.default for option in STORAGE_OPTIONS},
        repr=False,
    )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> StorageSettings:
        """Of parsed options."""
        return cls(
            {option.name: values[STORAGE_PREFIX + option.name] for option in STORAGE_OPTIONS}
        )

    def __getitem__(self, name: str) -> str | None:
        """One option's value."""
        return self.values[name]

    def is_true(self, name: str) -> bool:
        """Of an option that is true or false."""
        return self.values[name] == "true"

    @property
    def secrets(self) -> frozenset[str]:
        """What no text may have."""
        given = (value for name, value in self.values.items() if is_secret(STORAGE_PREFIX + name))
        return frozenset(value for value in given if value)


_opened: dict[tuple[object, ...], Files] = {}
"""By process (a fork begins without), root and settings: connections outlive a commit."""


def open_files(option: str, location: Location, settings: StorageSettings) -> Files:
    """The file system of a location; nothing is asked of it yet. Raises OptionError."""
    if location.scheme == LOCAL:
        return LocalFiles()
    key = (os.getpid(), location.root, frozenset(settings.values.items()))
    found = _opened.get(key)
    if found is None:
        found = _opened[key] = _connect(option, location, settings)
    return found


def _connect(option: str, location: Location, settings: StorageSettings) -> Files:
    scheme, root = location.scheme, location.root
    make = _OBJECT_STORES.get(scheme)
    if make is not None:
        build, inner_root, advice = make
        made = _built(option, location, lambda: build(location, settings), settings.secrets)
        return ObjectFiles(Store(made, root, inner_root(location), advice, settings.secrets))
    if scheme in HDFS:
        made = _built(option, location, lambda: _hdfs(location))
        return RenamedFiles(Store(made, root, "", _HDFS_ADVICE))
    made, inner = _built(option, location, lambda: _fsspec(location))
    return RenamedFiles(Store(made, root, inner, f"Look at fsspec's configuration of {scheme}"))


def _built(
    option: str,
    location: Location,
    build: Callable[[], Any],
    secrets: frozenset[str] = frozenset(),
) -> Any:
    """What `build` makes. Raises OptionError for all that it raises but that."""
    try:
        return build()
    except OptionError:
        raise
    except Exception as error:  # noqa: BLE001 - each library has exceptions of its own
        reason = without_secrets(error, secrets)
        raise OptionError(
            option, location.text, f"it cannot be opened: {reason}. {_missing(location.scheme)}"
        ) from None


def _missing(scheme: str) -> str:
    """What the machine may lack."""
    if scheme in HDFS:
        return _HDFS_ADVICE
    if scheme in _OBJECT_STORES:
        extra = "s3" if scheme in S3 else "azure" if scheme in AZURE else "gcs"
        return f"Look at its txnlog.fs.* options, and pip install 'txnlog_spark[{extra}]'"
    return f"pip install fsspec and its package for {scheme}, or give the path of a mounted volume"


_S3_ADVICE = (
    "Look at txnlog.fs.s3a.*; without them, at the AWS credentials of the driver's environment. It "
    "has to be allowed to s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there"
)


def _s3(location: Location, settings: StorageSettings) -> FileSystem:
    from pyarrow.fs import S3FileSystem, resolve_s3_region

    endpoint, region = settings["s3a.endpoint"], settings["s3a.endpoint.region"]
    scheme, host = _scheme_and_host(endpoint, settings.is_true("s3a.connection.ssl.enabled"))
    known = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if known is None:
        known = "us-east-1" if endpoint else resolve_s3_region(location.authority)
    return S3FileSystem(
        access_key=settings["s3a.access.key"],
        secret_key=settings["s3a.secret.key"],
        session_token=settings["s3a.session.token"],
        role_arn=settings["s3a.assumed.role.arn"],
        region=known,
        endpoint_override=host,
        scheme=scheme,
        force_virtual_addressing=bool(host) and not settings.is_true("s3a.path.style.access"),
        connect_timeout=int(settings["s3a.connection.establish.timeout"] or 0) / 1000,
        request_timeout=int(settings["s3a.connection.timeout"] or 0) / 1000,
        allow_delayed_open=True,  # a small object is one put
    )


def _scheme_and_host(endpoint: str | None, has_tls: bool) -> tuple[str, str | None]:
    """Of an address with or without http:// or https://."""
    if endpoint is None:
        return "https", None
    scheme, found, host = endpoint.rpartition("://")
    return (scheme if found else "https" if has_tls else "http"), host.rstrip("/")


_GCS_ADVICE = (
    "Look at txnlog.fs.gs.*, and at GOOGLE_APPLICATION_CREDENTIALS or the service account of the "
    "driver's machine, which has to be allowed to read, list, create and delete objects there"
)


def _gcs(_: Location, settings: StorageSettings) -> FileSystem:
    from pyarrow.fs import GcsFileSystem

    scheme, host = _scheme_and_host(settings["gs.storage.root.url"], True)
    return GcsFileSystem(
        anonymous=settings["gs.auth.type"] == "UNAUTHENTICATED",
        project_id=settings["gs.project.id"],
        scheme=scheme,
        endpoint_override=host,
        retry_time_limit=timedelta(seconds=GCS_RETRY_SECONDS_MAX),
    )


_AZURE_ADVICE = (
    "Look at txnlog.fs.azure.*; without them, at AZURE_* in the driver's environment or the "
    "machine's managed identity, which has to be a Storage Blob Data Contributor there"
)


def _azure(location: Location, settings: StorageSettings) -> FileSystem:
    from pyarrow.fs import AzureFileSystem

    account, dot, rest = location.authority.partition("@")[2].partition(".")
    places: dict[str, str] = {}
    endpoint = settings["azure.abfs.endpoint"]
    if endpoint is not None:
        for service in ("blob", "dfs"):
            places |= {
                f"{service}_storage_authority": endpoint,
                f"{service}_storage_scheme": "http",
            }
    elif dot + rest != _AZURE_HOST:  # a national cloud
        domain = rest.partition(".")[2]
        for service in ("blob", "dfs"):
            places[f"{service}_storage_authority"] = f".{service}.{domain}"
    return AzureFileSystem(
        account,
        settings["azure.account.key"],
        sas_token=settings["azure.sas.fixed.token"],
        client_id=settings["azure.account.oauth2.client.id"],
        client_secret=settings["azure.account.oauth2.client.secret"],
        tenant_id=settings["azure.account.oauth2.msi.tenant"],
        **places,
    )


_HDFS_ADVICE = (
    "pyarrow needs Hadoop's libhdfs: set HADOOP_HOME, JAVA_HOME and CLASSPATH=$(hadoop classpath "
    "--glob) for the driver"
)


def _hdfs(location: Location) -> FileSystem:
    from pyarrow.fs import HadoopFileSystem

    return HadoopFileSystem.from_uri(f"{location.scheme}://{location.authority or 'default'}/")


def _fsspec(location: Location) -> tuple[FileSystem, str]:
    import fsspec
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    made, inner = fsspec.core.url_to_fs(f"{location.root}/")
    return PyFileSystem(FSSpecHandler(made)), str(inner).rstrip("/")


def _bucket(location: Location) -> str:
    return location.authority


def _container(location: Location) -> str:
    return location.authority.partition("@")[0]


_Making = tuple[Callable[[Location, StorageSettings], "FileSystem"], Callable[[Location], str], str]
_OBJECT_STORES: dict[str, _Making] = {
    **dict.fromkeys(S3, (_s3, _bucket, _S3_ADVICE)),
    "gs": (_gcs, _bucket, _GCS_ADVICE),
    **dict.fromkeys(AZURE, (_azure, _container, _AZURE_ADVICE)),
}
"""By scheme: what makes the file system, the root's name in it, and where to look for trouble."""

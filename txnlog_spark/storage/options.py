"""Options `txnlog.fs.*`: access of the connector to object stores, by Hadoop's names.

They are rows of `options.OPTIONS`. Spark's own access to a checkpoint is set with the same names,
with `spark.hadoop.fs` instead of `txnlog.fs`. Without these options, the usual chain of each
store's SDK applies: environment, profile, the role of the machine or pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from txnlog_spark.storage.location import AZURE, GCS, S3

STORAGE_PREFIX = "txnlog.fs."
TIMEOUT_MS_MAX = 2**31 - 1
RETRIES_MAX = 1000


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("a non-empty string")
    return text.strip()


def _boolean(text: str) -> str:
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise ValueError("true or false")
    return value


def _milliseconds(text: str) -> str:
    plain = text.strip()
    if not plain.isascii() or not plain.isdigit() or not 0 < int(plain) <= TIMEOUT_MS_MAX:
        raise ValueError(f"milliseconds, at least 1 and at most {TIMEOUT_MS_MAX}")
    return plain


def _retries(text: str) -> str:
    plain = text.strip()
    if not plain.isascii() or not plain.isdigit() or int(plain) > RETRIES_MAX:
        raise ValueError(f"an integer of at least 0 and at most {RETRIES_MAX}")
    return plain


@dataclass(frozen=True, slots=True)
class StorageOption:
    """Declaration of an option, by Hadoop's name without `fs.`; `read` is as in
    `options.Option`."""

    name: str
    doc: str
    read: Callable[[str], str] = _text
    default: str | None = None


STORAGE_OPTIONS: tuple[StorageOption, ...] = (
    StorageOption(
        "s3a.endpoint", "Address of an S3-compatible store, `https://host:port`. Default: AWS."
    ),
    StorageOption("s3a.endpoint.region", "AWS region. Default: the bucket's, which AWS reports."),
    StorageOption("s3a.access.key", "Access key. Default: the usual chain of AWS's SDK."),
    StorageOption("s3a.secret.key", "Secret key for the access key."),
    StorageOption("s3a.session.token", "Session token of temporary credentials."),
    StorageOption("s3a.assumed.role.arn", "Role to assume with the credentials."),
    StorageOption(
        "s3a.path.style.access",
        "For an endpoint: true if the bucket is in the path, false if it is in the host name.",
        _boolean, "false",
    ),
    StorageOption(
        "s3a.connection.ssl.enabled", "Use TLS, for an endpoint without http:// or https://.",
        _boolean, "true",
    ),
    StorageOption(
        "s3a.connection.establish.timeout", "Timeout of connecting, in ms.", _milliseconds, "10000"
    ),
    StorageOption(
        "s3a.connection.timeout", "Timeout of waiting for an answer, in ms.", _milliseconds, "30000"
    ),
    StorageOption("gs.project.id", "Project. Default: the project of the credentials."),
    StorageOption(
        "gs.storage.root.url", "Address of a store like Google's, `https://host:port`."
    ),
    StorageOption(
        "gs.auth.type",
        "APPLICATION_DEFAULT: the usual chain of Google's SDK; UNAUTHENTICATED: no credentials.",
        lambda text: _one_of(text, "APPLICATION_DEFAULT", "UNAUTHENTICATED"),
        "APPLICATION_DEFAULT",
    ),
    StorageOption(
        "azure.account.key", "Key of the storage account. Default: the usual chain of Azure's SDK."
    ),
    StorageOption("azure.sas.fixed.token", "Shared access signature of the storage account."),
    StorageOption("azure.account.oauth2.client.id", "Client id of a service principal."),
    StorageOption("azure.account.oauth2.client.secret", "Client secret of that service principal."),
    StorageOption("azure.account.oauth2.msi.tenant", "Tenant of that service principal."),
    StorageOption(
        "azure.abfs.endpoint", "Address of a store like Azure's, `host:port`, without TLS."
    ),
    StorageOption(
        "azure.http.connection.timeout", "Timeout of connecting, in ms.", _milliseconds, "2000"
    ),
    StorageOption(
        "azure.http.read.timeout", "Timeout of waiting for an answer, in ms.",
        _milliseconds, "30000",
    ),
    StorageOption(
        "azure.io.retry.max.retries",
        "Number of retries of a failed request, with a pause of 3 seconds before each retry.",
        _retries, "3",
    ),
)  # fmt: skip


_SCHEMES = {"s3a": S3, "gs": (GCS,), "azure": AZURE}
"""URI schemes, by the part of an option's name after the prefix."""


def unused_storage_options(names: Iterable[str], locations: Iterable[str | None]) -> dict[str, str]:
    """Return the options that have no effect for these locations, each with the reason."""
    used = {location.partition(":")[0].lower() for location in locations if location is not None}
    unused = {}
    for name in names:
        schemes = _SCHEMES.get(name.removeprefix(STORAGE_PREFIX).partition(".")[0], ())
        if name.startswith(STORAGE_PREFIX) and not used.intersection(schemes):
            unused[name] = f"neither checkpointLocation nor stagingLocation is on {schemes[0]}://"
    return unused


def _one_of(text: str, *allowed: str) -> str:
    value = text.strip().upper()
    if value not in allowed:
        raise ValueError(" or ".join(allowed))
    return value

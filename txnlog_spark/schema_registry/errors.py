"""What can go wrong with a schema registry, beside a wrong option (`OptionError`)."""

from __future__ import annotations

from txnlog_spark.errors import TxnLogError


class RegistryError(TxnLogError):
    """The schema registry refused, or gave what cannot be an answer.

    Remedy: do what the registry's answer says, which is in the text; look at `schema.registry.url`.
    """

    condition = "TXNLOG_SCHEMA_REGISTRY"


class RegistryUnreachable(RegistryError):
    """No answer of a registry from any address in `schema.registry.url`, also when asked again.

    Remedy: start the registry, or give an address that every executor reaches. The text has what
    each address gave instead: a 404 without a registry's error code is of a proxy, or of a wrong
    path in the address.
    """

    condition = "TXNLOG_SCHEMA_REGISTRY.UNREACHABLE"


class UnknownSchema(RegistryError):
    """The registry does not have the schema id, the subject, or the schema under the subject.

    Remedy: register the schema, or set auto.register.schemas=true; for a reader, look whether the
    values come from another registry.
    """

    condition = "TXNLOG_SCHEMA_REGISTRY.UNKNOWN_SCHEMA"

"""Security options of a user, checked, as one value that can be pickled and compared.

The names are Kafka's, without `kafka.`. A pickle of the value has the passwords, as the tasks need
them; its repr has no passwords. `channel_builder.py` builds from it what one process needs to
connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txnlog_kafka.errors import OptionError
from txnlog_kafka.wire import jaas

PREFIX = "kafka."
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CALLBACK = "sasl.login.callback.handler.class"
OIDC_HANDLER = "OAuthBearerLoginCallbackHandler"
"""Last part of the name of Kafka's own handler, which asks a token endpoint."""


@dataclass(frozen=True, slots=True)
class Security:
    """Security protocol and its options: pairs of name and value, of the options that were set."""

    protocol: str = "PLAINTEXT"
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def has_tls(self) -> bool:
        """True if bytes are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_login(self) -> bool:
        """True if the connection begins with a login."""
        return self.protocol.startswith("SASL_")

    def get(self, name: str) -> str | None:
        """Return the value of an option, None if it is not set."""
        return dict(self.options).get(name)

    @property
    def mechanism(self) -> str:
        """SASL mechanism that the user named."""
        return self.get("sasl.mechanism") or ""

    @property
    def login_module(self) -> jaas.LoginModule:
        """Login module of `sasl.jaas.config`; without options if that may be left out and is."""
        text = self.get("sasl.jaas.config")
        if text is None:
            return jaas.LoginModule("", {})
        try:
            return jaas.parse_jaas(text)
        except jaas.JaasError as error:
            raise OptionError(jaas.OPTION, text, f"not understood: {error}") from None


PLAINTEXT = Security()


def read_security(options: Mapping[str, str]) -> Security:
    """Read options with Kafka's names, without `kafka.`. Raises OptionError."""
    protocol = options.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise _wrong("security.protocol", protocol, " or ".join(PROTOCOLS))
    needed = {n: v for n, v in options.items() if _matters(n, protocol)}
    security = Security(protocol, tuple(sorted(needed.items())))
    if security.has_login:
        _check_login(security)
    return security


def _matters(name: str, protocol: str) -> bool:
    if name.startswith("ssl."):
        return protocol in ("SSL", "SASL_SSL")
    return name.startswith("sasl.") and protocol.startswith("SASL_")


def _wrong(name: str, value: str | None, allowed: str) -> OptionError:
    return OptionError(PREFIX + name, value, allowed)


def _check_login(security: Security) -> None:
    mechanism = security.mechanism
    if mechanism not in MECHANISMS:
        why = "set it, " if not mechanism else ""
        raise _wrong(
            "sasl.mechanism",
            mechanism or None,
            f"{why}to one of {', '.join(MECHANISMS)}; GSSAPI (Kerberos), which is Kafka's default, "
            "is not supported yet",
        )
    module = security.login_module
    wanted = next(name for name, kinds in jaas.MODULES.items() if mechanism in kinds)
    if not module.name:
        if mechanism in ("OAUTHBEARER", "AWS_MSK_IAM"):
            _check_token_options(security, module)
            return
        raise _wrong(
            "sasl.jaas.config", None,
            f'set it to ...{wanted} required username="..." password="..."; for '
            f"kafka.sasl.mechanism={mechanism}",
        )  # fmt: skip
    if module.name != wanted:
        known = module.name if module.name in jaas.MODULES else "another one"
        raise _wrong(
            "sasl.jaas.config", None,
            f"kafka.sasl.mechanism={mechanism} needs the login module {wanted}, found {known}",
        )  # fmt: skip
    if wanted in (jaas.PLAIN_MODULE, jaas.SCRAM_MODULE):
        _check_password(module)
    else:
        _check_token_options(security, module)


def _check_password(module: jaas.LoginModule) -> None:
    for name in ("username", "password"):
        if not module.options.get(name):
            raise _wrong("sasl.jaas.config", None, f'{name}="..." is missing')
    for name in module.options:
        if name == "tokenauth" or name not in ("username", "password"):
            # PLAIN's user_... are a broker's, which knows the passwords of all.
            raise _wrong("sasl.jaas.config", None, f"the option {name!r} is not supported yet")


OAUTH_JAAS = ("clientId", "clientSecret", "scope")
IAM_JAAS = ("awsProfileName", "awsRoleArn", "awsRoleSessionName")


def _check_token_options(security: Security, module: jaas.LoginModule) -> None:
    if security.mechanism == "AWS_MSK_IAM":
        if security.protocol != "SASL_SSL":
            raise _wrong("security.protocol", security.protocol, "SASL_SSL for AWS_MSK_IAM")
        _only(module, IAM_JAAS, ())
        return
    _only(module, OAUTH_JAAS, ("extension_", "ssl."))
    handler = security.get(CALLBACK)
    if handler is not None and ":" in handler:
        if security.get(TOKEN_URL) is not None:
            raise _wrong(TOKEN_URL, None, f"remove it or kafka.{CALLBACK}: one gives the token")
        return
    if handler is not None and handler.rpartition(".")[2] != OIDC_HANDLER:
        raise _wrong(
            CALLBACK, handler,
            f"there is no JVM to load it: {OIDC_HANDLER} of Kafka, or module:function in Python, "
            "which returns a token",
        )  # fmt: skip
    url = security.get(TOKEN_URL)
    if url is None or not url.startswith(("https://", "http://")):
        raise _wrong(
            TOKEN_URL, url,
            "set it to the https address of the token endpoint, or set "
            f"kafka.{CALLBACK} to module:function in Python, which returns a token",
        )  # fmt: skip
    for option, jaas_name in (("client.id", "clientId"), ("client.secret", "clientSecret")):
        name = f"sasl.oauthbearer.client.credentials.{option}"
        if not security.get(name) and not module.options.get(jaas_name):
            raise _wrong(name, None, "set it: the token endpoint asks for it")


def _only(module: jaas.LoginModule, names: tuple[str, ...], prefixes: tuple[str, ...]) -> None:
    for name in module.options:
        if name not in names and not name.startswith(prefixes or ("\0",)):
            raise _wrong(
                "sasl.jaas.config", None,
                f"the option {name!r} of {module.name} is not supported yet",
            )  # fmt: skip

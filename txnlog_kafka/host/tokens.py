"""Tokens for OAUTHBEARER: from a token endpoint (OIDC client credentials), a user's function, AWS.

Fetching a token may wait for a network, so it runs in the thread of a `BackgroundCall`. A token of
an endpoint is kept for most of its life. No error has a token or a secret.
"""

from __future__ import annotations

import base64
import http.client
import importlib
import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txnlog_kafka.errors import OptionError, do_this
from txnlog_kafka.host.security import CALLBACK, PREFIX, TOKEN_URL, Security
from txnlog_kafka.stores import build_tls_context
from txnlog_kafka.wire.login import LoginRefused

LIFE_PART = 0.8
"""Part of a token's life after which it is renewed: Kafka's login.refresh.window.factor."""
ANSWER_BYTES_MAX = 1024 * 1024
TIMEOUT_MS = 10_000
REDIRECTS = range(300, 400)
_CREDENTIALS = "sasl.oauthbearer.client.credentials."
_ERROR_WORD = re.compile(r"[\w.-]{1,60}")
_MSK_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$")
_EXTENSION = "extension_"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token, and its owner in words for a person."""

    token: str = field(repr=False)
    who: str
    look_at: str
    extensions: Mapping[str, str] = field(default_factory=dict)


def token_source(security: Security) -> Callable[[str], Tokens]:
    """Return the function that gets the token for a login at a host. Raises OptionError."""
    if security.mechanism == "AWS_MSK_IAM":
        return AwsTokens(security.login_module.options)
    options = security.login_module.options
    extensions = {
        name.removeprefix(_EXTENSION): value
        for name, value in options.items()
        if name.startswith(_EXTENSION)
    }
    handler = security.get(CALLBACK)
    if handler is not None and ":" in handler:
        return UserTokens(handler, extensions)
    return EndpointTokens(security, extensions)


class UserTokens:
    """Tokens of a Python function, `module:function`, called for each login."""

    def __init__(self, name: str, extensions: Mapping[str, str]) -> None:
        self._name = name
        self._extensions = extensions
        module, _, function = name.partition(":")
        try:
            self._function = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise OptionError(PREFIX + CALLBACK, name, f"cannot be imported: {error}") from error

    def __call__(self, _host: str) -> Tokens:
        """Return the function's token. Raises LoginRefused."""
        try:
            token = self._function()
        except Exception as error:
            # It is the user's code, whose text may have a secret in it; its kind has none.
            raise LoginRefused(
                f"{self._name} of {PREFIX}{CALLBACK} raised {type(error).__name__}", final=False
            ) from error
        if not isinstance(token, str) or not token:
            raise LoginRefused(f"{self._name} of {PREFIX}{CALLBACK} has to return a token, a str")
        return Tokens(token, f"the token of {self._name}", f"{PREFIX}{CALLBACK}", self._extensions)


class AwsTokens:
    """Tokens of AWS's own signer for Amazon MSK, with the credentials of the usual chain."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        try:
            self._signer: Any = importlib.import_module(
                "aws_msk_iam_sasl_signer.MSKAuthTokenProvider"
            )
        except ImportError as error:
            raise OptionError(
                PREFIX + "sasl.mechanism", "AWS_MSK_IAM",
                "needs AWS's signer, on the executors as well"
                + do_this("pip install 'txnlog_spark[msk]'"),
            ) from error  # fmt: skip

    def __call__(self, host: str) -> Tokens:
        """Return a token for the region of this broker. Raises LoginRefused."""
        found = _MSK_REGION.search(host)
        environment = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        region = found.group(1) if found else environment
        if not region:
            raise LoginRefused(f"the AWS region of {host} is not known: set AWS_REGION")
        try:
            token, _ = self._sign_token(region)
        except Exception as error:
            # Of botocore's many errors none is worth a case, and some name an access key.
            raise LoginRefused(
                f"AWS's signer gave no token for {region} ({type(error).__name__}): look at the "
                "AWS credentials of this process",
                final=False,
            ) from error
        return Tokens(token, f"the AWS identity of this process in {region}", "its IAM policy")

    def _sign_token(self, region: str) -> tuple[str, int]:
        made: tuple[str, int]
        options = self._options
        if "awsRoleArn" in options:
            made = self._signer.generate_auth_token_from_role_arn(
                region, options["awsRoleArn"], options.get("awsRoleSessionName") or "txnlog"
            )
        elif "awsProfileName" in options:
            made = self._signer.generate_auth_token_from_profile(region, options["awsProfileName"])
        else:
            made = self._signer.generate_auth_token(region)
        return made


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refusal of all redirects: the client's secret would go along, to any host that is named."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: the answer is then an HTTPError."""


class EndpointTokens:
    """Tokens by the OAuth grant `client_credentials`, kept for most of their life."""

    def __init__(self, security: Security, extensions: Mapping[str, str]) -> None:
        options = security.login_module.options
        self._url = security.get(TOKEN_URL) or ""
        self._id = security.get(_CREDENTIALS + "client.id") or options["clientId"]
        self._secret = security.get(_CREDENTIALS + "client.secret") or options["clientSecret"]
        self._scope = security.get("sasl.oauthbearer.scope") or options.get("scope")
        self._encodes = (security.get("sasl.oauthbearer.header.urlencode") or "") == "true"
        self._timeout_s = _timeout_s(security)
        self._extensions = extensions
        # As in Kafka the endpoint's own CA is among the options of the login module.
        own = {name: value for name, value in options.items() if name.startswith("ssl.")}
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=build_tls_context(own)), _NoRedirect
        )
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at_s = 0.0

    def __call__(self, _host: str) -> Tokens:
        """Return a token that is good for a while. Raises LoginRefused."""
        with self._lock:
            if not self._token or time.time() >= self._renew_at_s:
                self._ask_endpoint()
            token = self._token
        return Tokens(
            token, f"client {self._id!r} by OAUTHBEARER",
            f"{PREFIX}{_CREDENTIALS}client.id, .client.secret and {PREFIX}{TOKEN_URL}",
            self._extensions,
        )  # fmt: skip

    def _ask_endpoint(self) -> None:
        now_s = time.time()
        answer = self._post_request()
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise LoginRefused(f"{self._url} answered without an access_token", final=False)
        until_s = _expires_s(token)
        life_s = answer.get("expires_in")
        if until_s is None and isinstance(life_s, (int, float)):
            until_s = now_s + life_s
        self._token = token
        self._renew_at_s = now_s if until_s is None else now_s + LIFE_PART * (until_s - now_s)

    def _post_request(self) -> dict[str, Any]:
        form = {"grant_type": "client_credentials"} | (
            {"scope": self._scope} if self._scope else {}
        )
        user, secret = self._id, self._secret
        if self._encodes:
            user, secret = (urllib.parse.quote_plus(each) for each in (user, secret))
        basic = base64.b64encode(f"{user}:{secret}".encode()).decode()
        request = urllib.request.Request(
            self._url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": f"Basic {basic}", "Accept": "application/json"},
        )
        look_at = f"look at {PREFIX}{TOKEN_URL}"
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                found = json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise LoginRefused(
                f"no token of {self._url}: {type(error).__name__}: {error}; {look_at}", final=False
            ) from error
        if not isinstance(found, dict):
            raise LoginRefused(f"{self._url} answered without an access_token; {look_at}")
        return found

    def _refused(self, error: urllib.error.HTTPError) -> LoginRefused:
        """Return an error with the status and the one word that OAuth has for the reason; the rest
        of the answer may echo our secret."""
        if error.code in REDIRECTS:
            with error:
                to = _host_of(self._url, error.headers.get("Location"))
            return LoginRefused(
                f"the token endpoint {self._url} redirects to {to} ({error.code}), which is not "
                f"followed, as it would be given the secret of client {self._id!r}: set "
                f"{PREFIX}{TOKEN_URL} to the final URL"
            )
        with error:
            try:
                word = str(json.loads(error.read(ANSWER_BYTES_MAX)).get("error", ""))
            except (OSError, ValueError, AttributeError):
                word = ""
        reason = f" {word}" if _ERROR_WORD.fullmatch(word) and word != self._secret else ""
        return LoginRefused(
            f"the token endpoint {self._url} refused client {self._id!r} ({error.code}{reason}): "
            f"look at {PREFIX}{_CREDENTIALS}client.id and client.secret",
            final=400 <= error.code < 500 and error.code != 429,
        )


def _host_of(url: str, location: str | None) -> str:
    """Return scheme, host and port of a redirect's target; the rest may have a secret in it."""
    if location is None:
        return "an address that it does not name"
    to = urllib.parse.urlsplit(urllib.parse.urljoin(url, location))
    return f"{to.scheme}://{to.netloc.rpartition('@')[2]}"


def _timeout_s(security: Security) -> float:
    """Return the timeout of one wait for the endpoint: the longer of connecting and reading."""
    names = ("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms")
    return max(int(security.get(name) or TIMEOUT_MS) for name in names) / 1000


def _expires_s(token: str) -> float | None:
    """Return `exp` of a JSON web token, in seconds since 1970; None for tokens without it."""
    parts = token.split(".")
    if len(parts) < 2:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        expires = json.loads(payload).get("exp")
    except (ValueError, AttributeError):
        return None
    return float(expires) if isinstance(expires, (int, float)) else None

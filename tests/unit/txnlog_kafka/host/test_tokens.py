"""OAUTHBEARER and AWS_MSK_IAM: where the token comes from, and what is said when it does not."""

from __future__ import annotations

import base64
import threading
import urllib.parse

import pytest
from support.brokers.certificates import LOCAL, Authority
from support.brokers.probe import free_ports
from support.sockets.few_attempts import client_of_few_attempts
from support.sockets.secured_broker import SecuredBroker
from support.sockets.socket_broker import SocketBroker
from support.stores.token_endpoint import TokenEndpoint, unsigned_token

from txnlog_kafka.errors import OptionError, SecurityRefused, TxnLogError
from txnlog_kafka.host import tokens as tokens_module
from txnlog_kafka.host.client import Client
from txnlog_kafka.host.security import read_security
from txnlog_kafka.host.tokens import AwsTokens, token_source
from txnlog_kafka.operations.cluster_view import ClusterView
from txnlog_kafka.operations.effects import Call, Calls, Receive, Reply, Send
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.login import LoginRefused
from txnlog_kafka.wire.messages import APIS, ApiKey

SHORT = SessionConfig(bootstrap_timeout_ms=300, request_timeout_ms=200)
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SECRET = "endpoint-secret"
HERE = "txnlog_user_tokens"


@pytest.fixture
def broker():
    with SecuredBroker(mechanisms=("OAUTHBEARER",)) as running:
        yield running


@pytest.fixture
def endpoint():
    with TokenEndpoint({"access_token": "the-token", "expires_in": 3600}) as running:
        yield running


def bearer(**options):
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    return read_security(given | {n.replace("_", "."): v for n, v in options.items()})


def by_endpoint(endpoint, secret=SECRET, **options):
    return bearer(
        sasl_oauthbearer_token_endpoint_url=endpoint.url,
        sasl_oauthbearer_client_credentials_client_id="spark",
        sasl_oauthbearer_client_credentials_client_secret=secret,
        **options,
    )


def ask():
    return (yield Calls((Call(-1, APIS[ApiKey.METADATA].request(topics=[]), 20_000),)))


def reaches(broker, security):
    with Client(broker.bootstrap_servers, security=security) as client:
        return isinstance(client.run(ask())[0], Reply)


def refused(broker, security, kind=SecurityRefused, config=None):
    if config is None:
        opened = client_of_few_attempts(broker.bootstrap_servers, security)
    else:
        opened = Client(broker.bootstrap_servers, security=security, config=config)
    with opened as client, pytest.raises(kind) as caught:
        client.run(refresh_metadata(client.session, ()))
    text = str(caught.value)
    assert "\n" not in text
    assert SECRET not in text
    assert "the-token" not in text
    return text


def test_a_token_endpoint_is_asked_with_the_clients_credentials(broker, endpoint):
    assert reaches(broker, by_endpoint(endpoint, sasl_oauthbearer_scope="kafka"))
    assert endpoint.forms == [{"grant_type": "client_credentials", "scope": "kafka"}]


def test_the_credentials_may_be_in_the_login_module_as_in_kafka_3(broker, endpoint):
    jaas = f'{MODULE} clientId="spark" clientSecret="{SECRET}" scope="s" extension_pool="a";'
    handler = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    security = bearer(
        sasl_oauthbearer_token_endpoint_url=endpoint.url,
        sasl_login_callback_handler_class=handler,
        sasl_jaas_config=jaas,
    )
    source = token_source(security)
    assert dict(source("host").extensions) == {"pool": "a"}
    assert reaches(broker, security)
    assert endpoint.forms[-1]["scope"] == "s"


def test_a_token_is_kept_for_most_of_its_life(endpoint, monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr(tokens_module.time, "time", lambda: now[0])
    source = token_source(by_endpoint(endpoint))
    for passed_s, asked in ((0, 1), (2879, 1), (2, 2)):
        now[0] += passed_s
        assert source("host").token == "the-token"
        assert len(endpoint.forms) == asked
    endpoint.answer = {"access_token": unsigned_token("spark", now[0] + 3700, now[0])}
    now[0] += 2881
    source("host")
    now[0] += 650
    source("host")
    assert len(endpoint.forms) == 3
    now[0] += 10
    source("host")
    assert len(endpoint.forms) == 4


def test_an_endpoint_with_a_ca_of_its_own_is_trusted_by_the_login_module(broker, tmp_path):
    ca = Authority()
    (tmp_path / "ca.pem").write_text(ca.pem)
    jaas = f'{MODULE} ssl.truststore.type="PEM" ssl.truststore.location="{tmp_path}/ca.pem";'
    tls = ca.sign(*LOCAL).server_context(tmp_path)
    with TokenEndpoint({"access_token": "the-token", "expires_in": 1}, tls) as endpoint:
        assert reaches(broker, by_endpoint(endpoint, sasl_jaas_config=jaas))
        text = refused(broker, by_endpoint(endpoint), TxnLogError)
    assert "CERTIFICATE_VERIFY_FAILED" in text
    assert "look at kafka.sasl.oauthbearer.token.endpoint.url" in text


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_takes_the_clients_secret_to_another_host(broker, endpoint, status):
    with TokenEndpoint({"access_token": "the-token"}) as other:
        endpoint.status = status
        endpoint.location = other.url.replace("//", "//name:endpoint-secret@")
        text = refused(broker, by_endpoint(endpoint))
        assert other.forms == []
        address = other.url.removesuffix("/token")
    assert f"the token endpoint {endpoint.url} redirects to {address} ({status})" in text
    assert "set kafka.sasl.oauthbearer.token.endpoint.url to the final URL" in text


def test_a_redirect_to_nowhere_is_named(broker, endpoint):
    endpoint.status, endpoint.location = 302, "/login?secret=endpoint-secret"
    address = endpoint.url.removesuffix("/token")
    assert f"redirects to {address} (302)" in refused(broker, by_endpoint(endpoint))
    endpoint.location = None
    assert "redirects to an address that it does not name" in refused(broker, by_endpoint(endpoint))


def test_a_wrong_client_secret_is_one_line_at_once(broker, endpoint):
    text = refused(broker, by_endpoint(endpoint, "endpoint-secret-2"))
    assert "refused client 'spark' (401 invalid_client)" in text
    assert "look at kafka.sasl.oauthbearer.client.credentials.client.id" in text


def test_an_endpoint_that_is_down_is_tried_again_and_then_named(broker, endpoint):
    endpoint.status = 503
    text = refused(broker, by_endpoint(endpoint), TxnLogError)
    assert "(503 server_error)" in text
    assert len(endpoint.forms) > 1
    endpoint.url = f"http://127.0.0.1:{free_ports(1)[0]}/token"
    text = refused(broker, by_endpoint(endpoint), TxnLogError)
    assert f"no token of {endpoint.url}" in text


@pytest.mark.parametrize("answer", [[], {}, {"access_token": 7}, {"access_token": ""}])
def test_an_answer_without_a_token_is_named(broker, endpoint, answer):
    endpoint.answer = answer
    text = refused(broker, by_endpoint(endpoint), TxnLogError)
    assert "answered without an access_token" in text


def test_a_token_that_the_broker_refuses_is_one_line(broker, endpoint):
    broker.token = "another"
    assert "refused the login of client 'spark'" in refused(broker, by_endpoint(endpoint))


# ------------------------------------------------------------------ a user's function


@pytest.fixture
def user_function(tmp_path, monkeypatch):
    """A module of the user's with this text."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text, name):
        (tmp_path / f"{name}.py").write_text(text)
        return bearer(sasl_login_callback_handler_class=f"{name}:token")

    return write


def test_a_users_function_gives_the_token(broker, user_function):
    assert reaches(broker, user_function("def token():\n    return 'the-token'", f"{HERE}_a"))


@pytest.mark.parametrize(
    ("body", "text"),
    [("return 7", "has to return a token"), ("raise ValueError('endpoint-secret')", "ValueError")],
)
def test_a_users_function_that_gives_none_is_named(broker, user_function, body, text):
    security = user_function(f"def token():\n    {body}", f"{HERE}_{len(body)}")
    assert text in refused(broker, security, TxnLogError)


def test_a_token_that_does_not_come_is_given_up_in_time(broker, user_function):
    body = "import threading\ndef token():\n    threading.Event().wait(2)\n    return 'the-token'"
    text = refused(broker, user_function(body, f"{HERE}_late"), TxnLogError, SHORT)
    assert "the token for the login did not come in time" in text
    assert "look at kafka.sasl.oauthbearer" in text


def test_a_function_that_is_not_there_is_an_option_error():
    with pytest.raises(OptionError, match=r"kafka\.sasl\.login\.callback\.handler\.class"):
        Client("a:1", security=bearer(sasl_login_callback_handler_class="no_such_module:token"))


def test_a_token_that_takes_its_time_holds_up_nobody_else(broker, user_function, monkeypatch):
    """The second login waits in its thread; the connection that is there goes on."""
    security = user_function(
        "gate = None\ndef token():\n    if gate is not None:\n        gate.wait(20)\n"
        "    return 'the-token'\n",
        f"{HERE}_slow",
    )
    gate = threading.Event()
    call = Call(1, APIS[ApiKey.METADATA].request(topics=[]), 20_000)

    def operation(session, other):
        session.cluster = ClusterView({1: ("127.0.0.1", broker.port), 2: ("127.0.0.1", other.port)})
        yield Calls((call,))
        import txnlog_user_tokens_slow

        txnlog_user_tokens_slow.gate = gate
        slow = yield Send(Call(2, call.message, 20_000))
        quick = yield Send(call)
        received = yield Receive(frozenset({slow, quick}))
        gate.set()
        last = yield Receive(frozenset({slow}))
        return received[0] == quick, isinstance(last[1], Reply)

    with (
        SecuredBroker(mechanisms=("OAUTHBEARER",)) as other,
        Client(broker.bootstrap_servers, security=security) as client,
    ):
        assert client.run(operation(client.session, other)) == (True, True)


# ------------------------------------------------------------------ Amazon MSK


@pytest.fixture
def credentials(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def msk(**options):
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"}
    return read_security(given | {n.replace("_", "."): v for n, v in options.items()})


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com", "eu-west-1"),
        ("boot-x.c1.kafka-serverless.us-east-1.amazonaws.com", "us-east-1"),
        ("10.0.0.1", "ap-south-1"),
    ],
)
def test_aws_signs_for_the_region_of_the_broker(credentials, monkeypatch, host, region):
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    jaas = "software.amazon.msk.auth.iam.IAMLoginModule required;"
    given = token_source(msk(sasl_jaas_config=jaas))(host)
    signed = base64.urlsafe_b64decode(given.token + "=" * (-len(given.token) % 4)).decode()
    assert urllib.parse.urlsplit(signed).hostname == f"kafka.{region}.amazonaws.com"
    assert "Action=kafka-cluster%3AConnect" in signed
    assert SECRET not in signed
    assert given.token not in repr(given)


def test_a_role_and_a_profile_of_the_login_module_are_handed_to_the_signer():
    asked = []

    class Signer:
        @staticmethod
        def generate_auth_token_from_role_arn(*arguments):
            asked.append(arguments)
            return "t", 1

        @staticmethod
        def generate_auth_token_from_profile(*arguments):
            asked.append(arguments)
            return "t", 1

    for options in ({"awsRoleArn": "arn:x"}, {"awsProfileName": "dev"}):
        tokens = AwsTokens(options)
        tokens._signer = Signer
        tokens("b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com")
    assert asked == [("eu-west-1", "arn:x", "txnlog"), ("eu-west-1", "dev")]


def test_a_region_that_nobody_knows_and_credentials_that_are_not_there(credentials, monkeypatch):
    with pytest.raises(LoginRefused, match="set AWS_REGION"):
        token_source(msk())("10.0.0.1")
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(LoginRefused, match="look at the AWS credentials"):
        token_source(msk())("b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com")


def test_without_the_signer_the_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(tokens_module.importlib, "import_module", missing)
    with pytest.raises(OptionError, match=r"pip install 'txnlog_spark\[msk\]'"):
        token_source(msk())


def test_a_plain_listener_is_told_apart_from_a_refused_token(endpoint):
    with SocketBroker() as plain:
        assert "does not support SaslHandshake" in refused(plain, by_endpoint(endpoint))

"""Certificates and keys in each form that Kafka's users have, and what is wrong with them."""

from __future__ import annotations

import contextlib
import importlib
import ssl
import sys
import tempfile

import jks
import pytest
from cryptography.hazmat.primitives import serialization

from txnlog_kafka.stores import build_tls_context, load_key, load_trusted
from txnlog_spark.errors import OptionError

PASSWORD = "store-secret"


@pytest.fixture(scope="module")
def client(ca):
    return ca.sign()


def der(certificate):
    return certificate.public_bytes(serialization.Encoding.DER)


def jks_bytes(ca, client, key_password=PASSWORD):
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = client.key.private_bytes(serialization.Encoding.DER, form, none)
    chain = [der(client.certificate), der(ca.certificate)]
    entry = jks.PrivateKeyEntry.new("client", chain, key, "pkcs8")
    entry.encrypt(key_password)
    trusted = jks.TrustedCertEntry.new("ca", der(ca.certificate))
    return jks.KeyStore.new("jks", [entry, trusted]).saves(PASSWORD)


def public_numbers(pem):
    return serialization.load_pem_private_key(pem.encode(), None).public_key().public_numbers()


@pytest.fixture(params=["jks", "pkcs12", "pkcs12 called jks"])
def store(request, ca, client, tmp_path):
    """Options of a store that has the key and the CA, for `truststore` or `keystore`."""
    file = tmp_path / "store"
    file.write_bytes(jks_bytes(ca, client) if request.param == "jks" else client.pkcs12(PASSWORD))
    kind = "PKCS12" if request.param == "pkcs12" else "JKS"

    def options(which, password=PASSWORD):
        return {
            f"ssl.{which}.type": kind,
            f"ssl.{which}.location": str(file),
            f"ssl.{which}.password": password,
        }

    return options


def test_a_store_gives_what_is_to_be_trusted(store, ca):
    assert ca.pem.strip() in load_trusted(store("truststore"))


def test_a_store_gives_the_key_and_its_chain(store, ca, client):
    key = load_key(store("keystore"))
    assert public_numbers(key.key) == client.key.public_key().public_numbers()
    assert key.chain.count("BEGIN CERTIFICATE") == 2
    assert client.chain_pem.strip().splitlines()[1] in key.chain
    build_tls_context(store("keystore"))


@pytest.mark.parametrize("which", ["truststore", "keystore"])
def test_a_wrong_password_of_a_store_names_its_option(store, which):
    load = {"truststore": load_trusted, "keystore": load_key}[which]
    with pytest.raises(OptionError, match=rf"look at kafka\.ssl\.{which}\.password") as caught:
        load(store(which, "wrong-secret"))
    assert "wrong-secret" not in str(caught.value)


def test_the_key_of_a_jks_store_may_have_a_password_of_its_own(ca, client, tmp_path):
    file = tmp_path / "store"
    file.write_bytes(jks_bytes(ca, client, "key-secret"))
    options = {"ssl.keystore.location": str(file), "ssl.keystore.password": PASSWORD}
    key = load_key(options | {"ssl.key.password": "key-secret"})
    assert public_numbers(key.key) == client.key.public_key().public_numbers()
    with pytest.raises(OptionError, match=r"kafka\.ssl\.key\.password"):
        load_key(options)


def test_pem_is_read_from_a_file_and_from_text_in_one_line(ca, client, tmp_path):
    file = client.write_pem(tmp_path / "client.pem")
    from_file = load_key({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)})
    from_text = load_key(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": client.key_pem.replace("\n", " "),
            "ssl.keystore.certificate.chain": client.chain_pem.replace("\n", " "),
        }
    )
    assert from_file == from_text
    assert from_file.chain == client.chain_pem
    (tmp_path / "ca.pem").write_text("a comment\n" + ca.pem * 2)
    trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(tmp_path / "ca.pem")}
    assert load_trusted(trusted) == ca.pem * 2


@pytest.mark.parametrize("password", ["key-secret", "wrong-secret", None])
def test_an_encrypted_pem_key_needs_its_password(ca, client, password):
    options = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": client.encrypted_key_pem("key-secret"),
        "ssl.keystore.certificate.chain": client.chain_pem,
    }
    if password == "key-secret":
        assert isinstance(build_tls_context(options | {"ssl.key.password": password}), object)
        return
    given = {} if password is None else {"ssl.key.password": password}
    with pytest.raises(OptionError, match=r"kafka\.ssl\.key\.password") as caught:
        build_tls_context(options | given)
    assert "secret" not in str(caught.value)


def test_the_machines_cas_are_trusted_when_none_is_named():
    assert load_trusted({}) is None
    context = build_tls_context({})
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    ("options", "option", "text"),
    [
        ({"ssl.truststore.location": "/none"}, "truststore.location", "cannot be read: No such"),
        ({"ssl.truststore.type": "BKS"}, "truststore.type", "JKS or PKCS12 or PEM"),
        ({"ssl.truststore.certificates": "nothing"}, "truststore.certificates", "no certificate"),
        ({"ssl.truststore.type": "JKS", "ssl.truststore.certificates": "x"},
         "truststore.certificates", "set kafka.ssl.truststore.type=PEM"),
        ({"ssl.truststore.location": "/a", "ssl.truststore.certificates": "x"},
         "truststore.location", "remove it"),
        ({"ssl.truststore.certificates": "x", "ssl.truststore.password": "secret"},
         "truststore.password", "PEM has none"),
        ({"ssl.keystore.key": "x"}, "keystore.certificate.chain", "set it"),
        ({"ssl.keystore.certificate.chain": "x"}, "keystore.key", "set it"),
        ({"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "x"},
         "keystore.certificate.chain", "there is no certificate"),
        ({"ssl.keystore.location": "/a", "ssl.keystore.key": "x"}, "keystore.location", "remove"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "enabled.protocols", "TLSv1.2, TLSv1.3 or both"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "endpoint.identification.algorithm",
         "or empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_the_option(options, option, text):
    with pytest.raises(OptionError) as caught:
        build_tls_context(options)
    assert caught.value.name == f"kafka.ssl.{option}"
    assert text in str(caught.value)


def test_a_pem_file_for_a_store_says_which_type_to_set(client, tmp_path):
    file = client.write_pem(tmp_path / "client.pem")
    with pytest.raises(OptionError, match=r"set kafka\.ssl\.keystore\.type=PEM"):
        load_key({"ssl.keystore.location": str(file)})


def test_a_key_of_another_certificate_is_refused(ca, client):
    options = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": client.key_pem,
        "ssl.keystore.certificate.chain": ca.sign().chain_pem,
    }
    with pytest.raises(OptionError, match="belong together"):
        build_tls_context(options)


@pytest.mark.parametrize("store", ["jks"], indirect=True)
def test_a_store_without_its_package_says_what_to_install(store, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(OptionError, match=r"pip install 'txnlog_spark\[stores\]'"):
        load_trusted(store("truststore"))


@pytest.mark.parametrize("is_good", [True, False])
@pytest.mark.parametrize("has_files_in_memory", [True, False])
def test_no_key_is_left_in_a_file(ca, client, tmp_path, monkeypatch, is_good, has_files_in_memory):
    made = []
    temporary_file = tempfile.NamedTemporaryFile

    def observed(*given, **how):
        made.append(given)
        return temporary_file(*given, dir=tmp_path, **how)

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", observed)
    if not has_files_in_memory:
        monkeypatch.setattr("txnlog_kafka.stores._OPEN_FILES", str(tmp_path / "nowhere"))
    options = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": client.key_pem,
        "ssl.keystore.certificate.chain": (client if is_good else ca.sign()).chain_pem,
    }
    with contextlib.nullcontext() if is_good else pytest.raises(OptionError):
        build_tls_context(options)
    assert list(tmp_path.iterdir()) == []
    assert bool(made) == (sys.platform != "linux" or not has_files_in_memory), "none on a disk"

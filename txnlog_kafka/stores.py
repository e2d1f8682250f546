"""Certificates and keys in the formats of Kafka's users: PEM text, PEM files, PKCS12 and JKS
stores.

Every format becomes PEM, which `ssl` reads. As in Java the content of a file decides between JKS
and PKCS12, whichever of the two the type names. Errors name the option, never the content.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import re
import ssl
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txnlog_kafka.errors import OptionError, do_this

PREFIX = "kafka."
TYPES = ("JKS", "PKCS12", "PEM")
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""Versions that Kafka's clients support, too: older versions are broken."""
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_BLOCK = re.compile(
    r"-----BEGIN (?P<what>[A-Z0-9 ]+)-----(?P<body>.*?)-----END (?P=what)-----", re.DOTALL
)
_OPEN_FILES = "/proc/self/fd"
_WRONG_PASSWORD = "it cannot be opened: look at kafka.ssl.{kind}.password"


ENDPOINT = "ssl.endpoint.identification.algorithm"


def build_tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Build a context from options with Kafka's names, without `kafka.`; reads files now. Raises
    OptionError.

    Without a truststore the CAs of the machine are trusted. A certificate in the truststore is
    trusted by itself, with any issuer, as in Java.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = options.get(ENDPOINT, "https").lower()
    if algorithm not in ("", "https"):
        raise OptionError(PREFIX + ENDPOINT, algorithm, "https, or empty to accept any host name")
    context.check_hostname = algorithm == "https"
    limit_versions(context, options.get("ssl.enabled.protocols"))
    trusted = load_trusted(options)
    if trusted is None:
        context.load_default_certs()
    else:
        use_trusted(context, trusted)
    key = load_key(options)
    if key is not None:
        use_key(context, key)
    return context


@dataclass(frozen=True, slots=True)
class KeyStore:
    """Client's key and the certificates that belong to it, in PEM."""

    chain: str
    key: str = field(repr=False)
    key_password: str | None = field(default=None, repr=False)


def load_trusted(options: Mapping[str, str]) -> str | None:
    """Return the certificates to trust, in PEM; None if no option names any. Raises OptionError."""
    location = options.get("ssl.truststore.location")
    text = options.get("ssl.truststore.certificates")
    kind = _type_of(options, "truststore", text is not None)
    if location is None and text is None:
        return None
    if location is not None and text is not None:
        raise _wrong("ssl.truststore.location", "remove it or kafka.ssl.truststore.certificates")
    if kind == "PEM":
        _no_password(options, "truststore")
        name = "ssl.truststore.certificates" if text is not None else "ssl.truststore.location"
        pem = text if text is not None else _read_text("ssl.truststore.location", str(location))
        found = _blocks(pem, "CERTIFICATE")
        if not found:
            raise _wrong(name, "no certificate in PEM is in it: -----BEGIN CERTIFICATE-----")
        return found
    if location is None:
        raise _wrong("ssl.truststore.certificates", "set kafka.ssl.truststore.type=PEM for it")
    data = _read_store("truststore", location)
    password = options.get("ssl.truststore.password")
    if data.startswith(_JKS_MAGIC):
        entries = _load_jks("truststore", data, password).certs.values()
        certificates = [ssl.DER_cert_to_PEM_cert(entry.cert) for entry in entries]
    else:
        store = _load_pkcs12("truststore", data, password)
        held = [store.cert, *store.additional_certs]
        certificates = [_pem_of(each.certificate) for each in held if each is not None]
    if not certificates:
        raise _wrong("ssl.truststore.location", "the store has no certificate to trust")
    return "".join(certificates)


def load_key(options: Mapping[str, str]) -> KeyStore | None:
    """Return the client's key; None if no option names one. Raises OptionError."""
    location = options.get("ssl.keystore.location")
    chain = options.get("ssl.keystore.certificate.chain")
    key = options.get("ssl.keystore.key")
    kind = _type_of(options, "keystore", key is not None or chain is not None)
    if location is None and key is None and chain is None:
        return None
    if location is not None and (key is not None or chain is not None):
        raise _wrong("ssl.keystore.location", "remove it or kafka.ssl.keystore.key")
    key_password = options.get("ssl.key.password")
    if kind == "PEM":
        _no_password(options, "keystore")
        return _load_pem_key(location, chain, key, key_password)
    if location is None:
        raise _wrong("ssl.keystore.key", "set kafka.ssl.keystore.type=PEM for it")
    data = _read_store("keystore", location)
    password = options.get("ssl.keystore.password")
    if data.startswith(_JKS_MAGIC):
        return _jks_key(_load_jks("keystore", data, password), key_password)
    return _pkcs12_key(_load_pkcs12("keystore", data, password))


def use_trusted(context: ssl.SSLContext, certificates: str) -> None:
    """Trust these certificates, each by itself, with any issuer, as Java. Raises OptionError."""
    try:
        context.load_verify_locations(cadata=certificates)
    except ssl.SSLError as error:
        raise _wrong("ssl.truststore.location", "its certificates cannot be read") from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def limit_versions(context: ssl.SSLContext, text: str | None) -> None:
    """Obey `ssl.enabled.protocols`. Raises OptionError."""
    names = ["TLSv1.2", "TLSv1.3"] if text is None else [n.strip() for n in text.split(",")]
    if not names or not set(names) <= set(VERSIONS):
        raise OptionError(PREFIX + "ssl.enabled.protocols", text, "TLSv1.2, TLSv1.3 or both")
    versions = sorted(VERSIONS[name] for name in names)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def use_key(context: ssl.SSLContext, key: KeyStore) -> None:
    """Show this key to the brokers. Raises OptionError."""

    def password() -> str:
        if key.key_password is None:
            raise OptionError(PREFIX + "ssl.key.password", None, "set it: the key is encrypted")
        return key.key_password

    try:
        with _as_file(key.key + key.chain) as path:
            context.load_cert_chain(path, password=password)
    except (ssl.SSLError, ValueError) as error:
        raise OptionError(
            PREFIX + "ssl.keystore.location", None,
            "the key cannot be used: look at kafka.ssl.key.password, and whether the key and the "
            "certificate belong together",
        ) from error  # fmt: skip


@contextlib.contextmanager
def _as_file(pem: str) -> Iterator[str]:
    """Yield a path to read this PEM at: `ssl` reads a key only from a file.

    On Linux the file is in memory: a process that is killed here leaves no key on a disk. On other
    systems the file is readable by this user alone.
    """
    if sys.platform == "linux" and Path(_OPEN_FILES).is_dir():
        with os.fdopen(os.memfd_create("key"), "w") as memory:
            memory.write(pem)
            memory.flush()
            yield f"{_OPEN_FILES}/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(pem)
    try:
        yield file.name
    finally:
        Path(file.name).unlink()


def _load_pem_key(
    location: str | None, chain: str | None, key: str | None, password: str | None
) -> KeyStore:
    if location is not None:
        chain = key = _read_text("ssl.keystore.location", location)
    if key is None:
        raise _wrong("ssl.keystore.key", "set it: kafka.ssl.keystore.certificate.chain needs it")
    if chain is None:
        raise _wrong("ssl.keystore.certificate.chain", "set it: kafka.ssl.keystore.key needs it")
    found = _blocks(chain, "CERTIFICATE"), _blocks(key, "PRIVATE KEY")
    for text, option, what in zip(
        found, ("certificate.chain", "key"), ("certificate", "private key"), strict=True
    ):
        if not text:
            name = "location" if location is not None else option
            raise _wrong(f"ssl.keystore.{name}", f"there is no {what} in PEM in it")
    return KeyStore(*found, password)


def _jks_key(store: Any, key_password: str | None) -> KeyStore:
    for entry in store.private_keys.values():
        if not entry.is_decrypted():
            try:
                entry.decrypt(key_password or "")
            except Exception as error:
                # pyjks has no root of its errors.
                raise _wrong("ssl.key.password", "it does not open the key in the store") from error
        key = "\n".join(textwrap.wrap(base64.b64encode(entry.pkey_pkcs8).decode(), 64))
        chain = "".join(ssl.DER_cert_to_PEM_cert(der) for _, der in entry.cert_chain)
        return KeyStore(chain, f"-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n")
    raise _wrong("ssl.keystore.location", "the store has no private key")


def _pkcs12_key(store: Any) -> KeyStore:
    if store.key is None or store.cert is None:
        raise _wrong("ssl.keystore.location", "the store has no private key with a certificate")
    serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
    key = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    held = [store.cert, *store.additional_certs]
    return KeyStore("".join(_pem_of(each.certificate) for each in held), key)


def _type_of(options: Mapping[str, str], store: str, has_text: bool) -> str:
    name = f"ssl.{store}.type"
    kind = options.get(name, "PEM" if has_text else "JKS").upper()
    if kind not in TYPES:
        raise OptionError(PREFIX + name, kind, " or ".join(TYPES))
    return kind


def _no_password(options: Mapping[str, str], store: str) -> None:
    if options.get(f"ssl.{store}.password") is not None:
        raise _wrong(
            f"ssl.{store}.password",
            "remove it: PEM has none; that of an encrypted key is kafka.ssl.key.password",
        )


def _read_store(store: str, location: str) -> bytes:
    name = f"ssl.{store}.location"
    data = _read_file(name, location)
    if data.lstrip().startswith(b"-----BEGIN"):
        raise _wrong(name, f"the file is PEM: set kafka.ssl.{store}.type=PEM")
    return data


def _read_file(name: str, location: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise OptionError(
            PREFIX + name, location,
            f"cannot be read: {reason}; each process that connects or listens reads it there",
        ) from error  # fmt: skip


def _read_text(name: str, location: str) -> str:
    try:
        return _read_file(name, location).decode()
    except UnicodeDecodeError as error:
        raise _wrong(name, "the file is not PEM: look at its type") from error


def _blocks(text: str, what: str) -> str:
    """Return the PEM blocks whose name ends so, each with lines as `ssl` wants them.

    Kafka accepts any white space as an end of line, such as in a properties file, where the text is
    one line.
    """
    found = []
    for block in _BLOCK.finditer(text):
        if not block["what"].endswith(what):
            continue
        body = block["body"].strip()
        if ":" not in body:  # the headers of an old encrypted key have lines of their own
            body = "\n".join(textwrap.wrap("".join(body.split()), 64))
        found.append(f"-----BEGIN {block['what']}-----\n{body}\n-----END {block['what']}-----\n")
    return "".join(found)


def _load_jks(store: str, data: bytes, password: str | None) -> Any:
    try:
        jks = importlib.import_module("jks")
    except ImportError as error:
        raise _wrong(
            f"ssl.{store}.location",
            "a JKS store needs pyjks, on the executors as well; or use PEM"
            + do_this("pip install 'txnlog_spark[stores]'"),
        ) from error
    try:
        return jks.KeyStore.loads(data, password)
    except Exception as error:
        # pyjks has no root of its errors, and the bytes may be anything.
        raise _wrong(f"ssl.{store}.location", _WRONG_PASSWORD.format(kind=store)) from error


def _load_pkcs12(store: str, data: bytes, password: str | None) -> Any:
    pkcs12 = importlib.import_module("cryptography.hazmat.primitives.serialization.pkcs12")
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except (ValueError, TypeError) as error:
        raise _wrong(f"ssl.{store}.location", _WRONG_PASSWORD.format(kind=store)) from error


def _pem_of(certificate: Any) -> str:
    serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
    return str(certificate.public_bytes(serialization.Encoding.PEM).decode())


def _wrong(name: str, why: str) -> OptionError:
    return OptionError(PREFIX + name, None, why)

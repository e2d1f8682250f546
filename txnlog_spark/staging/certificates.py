"""Certificate of one staging server's lifetime; tasks trust it because of the token's proof."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

LIFETIME = datetime.timedelta(days=3650)
"""Validity of the certificate. Tasks do not check it: they check the proof of the token
(`frames.proof`)."""
_NAME = "txnlog staging server"


def server_context(directory: Path) -> tuple[ssl.SSLContext, bytes]:
    """Return TLS for the server with a new certificate, and that certificate (DER).

    OpenSSL reads certificates only from files. The file is written to the server's own directory
    and removed before this returns.
    """
    # Imported here: a task imports this module for `task_context`, which does not need them.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + LIFETIME)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding
    path = directory / "certificate.pem"
    path.touch(mode=0o600)
    try:
        path.write_bytes(
            key.private_bytes(
                encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # else a task that polls for a refusal would see tickets
        context.load_cert_chain(path)
    finally:
        path.unlink()
    return context, certificate.public_bytes(encoding.DER)


def task_context() -> ssl.SSLContext:
    """Return TLS for a task. The proof that follows replaces the check of the certificate's
    issuer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

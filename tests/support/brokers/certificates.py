"""Certificates of the tests, made when they run: CAs, and what they sign."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

LOCAL = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Signed:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    issuer: x509.Certificate

    @property
    def chain_pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        return self.encrypted_key_pem(None)

    def encrypted_key_pem(self, password: str | None) -> str:
        how = serialization.NoEncryption()
        if password is not None:
            how = serialization.BestAvailableEncryption(password.encode())
        form = serialization.PrivateFormat.PKCS8
        return self.key.private_bytes(serialization.Encoding.PEM, form, how).decode()

    def pkcs12(self, password: str) -> bytes:
        how = serialization.BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(
            b"client", self.key, self.certificate, [self.issuer], how
        )

    def write_pem(self, path: Path) -> Path:
        path.write_text(self.key_pem + self.chain_pem)
        return path

    def server_context(self, folder: Path, client_ca: Authority | None = None) -> ssl.SSLContext:
        """Return the context of a server with this certificate, which asks clients for one of
        `client_ca`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.write_pem(folder / f"{self.certificate.serial_number}.pem"))
        if client_ca is not None:
            context.load_verify_locations(cadata=client_ca.pem)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Authority:
    def __init__(self, name: str = "test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self._name, self._key, 1, ca=True)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, *hosts: str, days: int = 1) -> Signed:
        """A certificate for these hosts; negative `days` make it one that has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, (hosts or ("client",))[0])])
        return Signed(self._sign(name, key, days, hosts=hosts), key, self.certificate)

    def _sign(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        days: int,
        *,
        hosts: tuple[str, ...] = (),
        ca: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        until = now + datetime.timedelta(days=days)
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, until) - datetime.timedelta(days=1))
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            built = built.add_extension(names, critical=False)
        return built.sign(self._key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

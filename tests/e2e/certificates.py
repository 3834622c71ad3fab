"""An authority of the test's own, and certificates that it signs."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates for 127.0.0.1. `ca_path` is what others believe in."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        ca = self._signed(self._name, self._key.public_key(), is_authority=True)
        self.ca_path = folder / "ca.pem"
        self.ca_path.write_bytes(ca.public_bytes(serialization.Encoding.PEM))

    def write(self, cert_path: Path, key_path: Path, name: str = "broker") -> None:
        """Make a certificate and its key, each put in its place at once."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key.public_key(), is_authority=False)
        _replace(key_path, _pem(key))
        _replace(cert_path, certificate.public_bytes(serialization.Encoding.PEM))

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        constraints = x509.BasicConstraints(ca=is_authority, path_length=None)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(constraints, critical=True)
            .sign(self._key, hashes.SHA256())
        )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.rename(path)

"""TLS: who gets it, with which certificate, and whom we believe when we call others.

`permissive` serves encrypted and plain clients on one port, `enforcing` only encrypted ones,
`disabled` only plain ones. Without a certificate of one's own, a self-signed one is made when the
first client asks for TLS; it lives in memory and goes with the process. It keeps listeners on the
wire out, but proves nobody's identity.

Clients are asked for a certificate if `tls.client_ca_path` names the authority that must have
signed it. Whose it is, is for `core.users.logins` to say.

Files that are replaced are noticed at the next connection, a second after the last look. Invariant:
a certificate that cannot be used is never put in the place of one that can; connections that exist
keep theirs.
"""

import asyncio
import datetime
import ipaddress
import logging
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from onelog.errors import ConfigError
from onelog.private_files import write

if TYPE_CHECKING:
    # Clients need neither: to import the settings of a whole broker takes longer than to connect.
    from onelog.config import TlsConfig

HANDSHAKE_BYTE = 0x16
"""The first byte of every TLS connection. No plain protocol here starts with it: in a remoting
frame it would be a length of 369 million."""

SELF_SIGNED_DAYS = 3650
LOOK_SECONDS = 1.0

log = logging.getLogger(__name__)

Marks = tuple[tuple[int, int, int] | None, ...]
"""By which a file is known to be another one: its time, its size, its number."""


class _Contexts(NamedTuple):
    """What was made of the files, and how they looked then."""

    server: ssl.SSLContext | None
    """None without a certificate of one's own, until the first client asks for TLS."""
    client: ssl.SSLContext | None
    """None if calls to others are plain."""
    marks: Marks


class Tls:
    """The TLS side of a server: of its listeners, and of its own calls."""

    def __init__(self, config: "TlsConfig", look_seconds: float = LOOK_SECONDS) -> None:
        self._config = config
        self._look_seconds = look_seconds
        self._contexts: _Contexts | None = None
        self._looked_s = 0.0
        self._refused: Marks | None = None
        self._making = asyncio.Lock()

    @property
    def is_enabled(self) -> bool:
        """Whether clients may speak TLS."""
        return self._config.mode != "disabled"

    @property
    def is_required(self) -> bool:
        """Whether clients must speak TLS."""
        return self._config.mode == "enforcing"

    async def context(self) -> ssl.SSLContext:
        """What clients are served with now."""
        async with self._making:
            found = await self._fresh()
            if found.server is None:
                # Takes its time, and most servers are never asked.
                server = await asyncio.to_thread(_self_signed_context, self._config)
                self._contexts = found._replace(server=server)
                return server
            return found.server

    async def client_context(self) -> ssl.SSLContext | None:
        """What other servers are called with now; None to call them in plain text."""
        async with self._making:
            return (await self._fresh()).client

    async def open(self) -> None:
        """`ConfigError` if there are files that cannot be used."""
        await self.client_context()

    async def reload(self, config: "TlsConfig") -> None:
        """Use other files from the next connection on; `ConfigError` keeps the old ones."""
        async with self._making:
            self._contexts = await asyncio.to_thread(_made, config)
            self._config, self._looked_s = config, time.monotonic()

    async def _fresh(self) -> _Contexts:
        """What the files say; what they said before, if they now say nonsense."""
        now_s, old = time.monotonic(), self._contexts
        if old is not None and (not old.marks or now_s - self._looked_s < self._look_seconds):
            return old
        self._looked_s = now_s
        if old is None:
            self._contexts = await asyncio.to_thread(_made, self._config)
            return self._contexts
        marks = await asyncio.to_thread(_marks, self._config)
        if marks in (old.marks, self._refused):
            return old
        try:
            self._contexts = await asyncio.to_thread(_made, self._config)
        except ConfigError as error:
            # Whoever replaces two files does that one after the other: the next look may be fine.
            self._refused = marks
            log.error("the certificate stays as it was, its new files are no good: %s", error)
            return old
        self._refused = None
        log.info("new TLS files are used from now on: %s", ", ".join(_paths(self._config)))
        return self._contexts


def _paths(config: "TlsConfig") -> list[str]:
    files = (config.cert_path, config.key_path, config.ca_path, config.client_ca_path)
    return [path for path in files if path]


def _marks(config: "TlsConfig") -> Marks:
    def mark(path: str) -> tuple[int, int, int] | None:
        try:
            found = Path(path).expanduser().stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    return tuple(map(mark, _paths(config)))


def _made(config: "TlsConfig") -> _Contexts:
    # Looked at before they are read: what changes meanwhile is noticed by the next look.
    marks = _marks(config)
    cert_path, key_path = Path(config.cert_path), Path(config.key_path)
    server = server_context(cert_path, key_path) if config.cert_path else None
    if server is not None:
        _ask_clients(server, config)
    client = None
    if config.outgoing == "on" or (config.outgoing == "auto" and config.mode == "enforcing"):
        client = client_context(
            Path(config.ca_path) if config.ca_path else None,
            cert_path if config.cert_path else None,
            key_path if config.cert_path else None,
            check_hostname=config.check_hostname,
        )
    return _Contexts(server, client, marks)


def _self_signed_context(config: "TlsConfig") -> ssl.SSLContext:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="onelog-tls-") as folder:
        context = server_context(*write_self_signed(Path(folder)))
    _ask_clients(context, config)
    return context


def _ask_clients(context: ssl.SSLContext, config: "TlsConfig") -> None:
    """Have clients show a certificate, if somebody is named who signs them."""
    if config.client_ca_path:
        is_required = config.client_auth == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        _load_authorities(context, Path(config.client_ca_path))


def server_context(cert_path: Path, key_path: Path) -> ssl.SSLContext:
    """A server's context with this certificate and key, both in PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # gRPC's clients insist on it; the others ask for nothing, and get nothing.
    context.set_alpn_protocols(["h2"])
    names = f"tls.cert_path {cert_path}, tls.key_path {key_path}"
    _load_chain(context, cert_path, key_path, names)
    return context


def client_context(
    ca_path: Path | None = None,
    cert_path: Path | None = None,
    key_path: Path | None = None,
    *,
    check_hostname: bool = True,
) -> ssl.SSLContext:
    """A client's context: servers must prove themselves to `ca_path`, or anyone will do.

    With `check_hostname`, a server's certificate must be made for the address that was called. A
    server that asks who we are gets the certificate of `cert_path`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname and ca_path is not None
    if ca_path is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        _load_authorities(context, ca_path)
    if cert_path is not None:
        names = f"certificate {cert_path}, key {key_path or cert_path}"
        _load_chain(context, cert_path, key_path, names)
    return context


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path.expanduser())
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"certificates of {path}: {_reason(error)}") from None


def _load_chain(
    context: ssl.SSLContext, cert_path: Path, key_path: Path | None, names: str
) -> None:
    """Load a certificate and its key, or say what is wrong with them."""

    def no_passphrase() -> str:
        # Without this, OpenSSL would ask for one on the terminal, and wait.
        raise ConfigError(f"{names}: the key is encrypted; give one without a passphrase")

    try:
        context.load_cert_chain(
            cert_path.expanduser(), key_path and key_path.expanduser(), no_passphrase
        )
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{names}: {_reason(error)}") from None


def _reason(error: OSError) -> str:
    """What OpenSSL means, as far as people can tell from its words."""
    if isinstance(error, ssl.SSLError):
        known = {
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
            "PEM_LIB": "not both of them are PEM files with what they should have",
            "NO_CERTIFICATE_OR_CRL_FOUND": "that is no PEM file with a certificate",
        }
        return known.get(error.reason or "", str(error))
    return error.strerror or str(error)


def write_self_signed(folder: Path, names: tuple[str, ...] = ("localhost",)) -> tuple[Path, Path]:
    """Make a certificate for these names and addresses, signed by itself; its path, its key's."""
    # Imported here because it takes a tenth of a second, which a start without TLS need not pay.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def general_name(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "onelog")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName(list(map(general_name, names))), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / "cert.pem", folder / "key.pem"
    write(cert_path, certificate.public_bytes(serialization.Encoding.PEM))
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write(key_path, pem)
    return cert_path, key_path

"""How Spark's processes reach a cluster: its address, encryption, and whose requests they are.

Options of the data source, and for those who do not want a secret among the options of a query,
variables in the environment of Spark's driver, with the names that commands have. The driver reads
both, and the files with secrets; tasks get what it found. Files of certificates have to be under
the same path wherever there is a task.

Invariant: no secret is in a message, in a `repr`, or in a checkpoint. (Where Spark shows options,
it leaves out those whose names say that they are secret; `spark.redaction.regex`.)
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.client.credentials import Credentials, read_secret
from onelog.client.options import ClientOptions, client_settings
from onelog.errors import ConfigError, InvalidAddressError
from onelog.net.tls import client_context

if TYPE_CHECKING:
    import ssl

    from onelog.spark.options import Given

ENVIRONMENT = {
    "nameserver": "ONELOG_NAMESERVER",
    "tls": "ONELOG_TLS",
    "tlsCa": "ONELOG_TLS_CA",
    "tlsHostname": "ONELOG_TLS_HOSTNAME",
    "tlsCert": "ONELOG_TLS_CERT",
    "tlsKey": "ONELOG_TLS_KEY",
    "accessKey": "ONELOG_ACCESS_KEY",
    "secretKey": "ONELOG_SECRET_KEY",
    "secretKeyFile": "ONELOG_SECRET_KEY_FILE",
    "securityToken": "ONELOG_SECURITY_TOKEN",
    "securityTokenFile": "ONELOG_SECURITY_TOKEN_FILE",
}
"""By option, the variable that stands for it."""
_TLS = tuple(name for name in ENVIRONMENT if name.startswith("tls"))
_WHO = tuple(name for name in ENVIRONMENT if name.startswith(("access", "secret", "security")))
NAMES = (*ENVIRONMENT, "requestTimeoutMs", "retryTimeoutMs")
"""The options that are about this."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """Whom to trust, and what to show to a server that asks who we are."""

    ca_path: str | None = None
    """None: anybody."""
    check_hostname: bool = True
    cert_path: str | None = None
    key_path: str | None = None

    def context(self) -> "ssl.SSLContext":
        """The same for a connection."""
        ca, cert, key = (
            None if path is None else Path(path)
            for path in (self.ca_path, self.cert_path, self.key_path)
        )
        return client_context(ca, cert, key, check_hostname=self.check_hostname)


@dataclass(frozen=True, slots=True)
class Link:
    """How a cluster is reached."""

    nameserver: str
    credentials: Credentials | None = None
    tls: Encryption | None = None
    request_timeout_ms: int = 5_000
    retry_timeout_ms: int = 10_000

    def client_options(self) -> ClientOptions:
        """The same for the SDK."""
        options: ClientOptions = {
            "nameserver": self.nameserver,
            "timeout": self.request_timeout_ms / 1000,
        }
        if self.tls is not None:
            options["tls"] = self.tls.context()
        if self.credentials is not None:
            options["credentials"] = self.credentials
        return options


def link_of(given: "Given") -> Link:
    """What the options say, and the environment of the driver."""
    options: ClientOptions = {}
    nameserver = given.text("nameserver")
    if nameserver is not None:
        options["nameserver"] = nameserver
    try:
        # Resolved here, on the driver: workers have other environments.
        addresses = client_settings(options).nameservers
    except InvalidAddressError as error:
        raise ConfigError(f"option nameserver: {error}") from None
    retry_ms = given.whole("retryTimeoutMs", 0)
    return Link(
        ";".join(map(str, addresses)),
        _credentials(_given_or_set(given, _WHO)),
        _encryption(_given_or_set(given, _TLS)),
        given.whole("requestTimeoutMs") or 5_000,
        10_000 if retry_ms is None else retry_ms,
    )


def _given_or_set(given: "Given", names: tuple[str, ...]) -> "Given":
    """The options, if one of these is among them; else what the environment says of all of them.

    One from here and one from there would be the key of one user and the secret of another.
    """
    if any(map(given.has, names)):
        return given
    return type(given)({name: os.environ.get(ENVIRONMENT[name], "") for name in names}, set_=True)


def _credentials(given: "Given") -> Credentials | None:
    for name in ("secretKey", "securityToken"):
        given.refuse_together(name, f"{name}File")
    access, secret = given.text("accessKey"), _secret(given, "secretKey")
    token = _secret(given, "securityToken")
    if access is not None and secret is not None:
        return Credentials(access, secret, token or "")
    if access is not None:
        given.refuse_without("accessKey", "secretKey", "or secretKeyFile; one proves the other")
    for name in ("secretKey", "secretKeyFile", "securityToken", "securityTokenFile"):
        given.refuse_without(name, "accessKey", "it belongs to one")
    return None


def _secret(given: "Given", name: str) -> str | None:
    path = given.text(f"{name}File")
    if path is None:
        return given.text(name)
    return read_secret(Path(path), given.called(f"{name}File"))


def _encryption(given: "Given") -> Encryption | None:
    given.refuse_without("tlsCert", "tlsKey", "a certificate is of no use without its key")
    given.refuse_without("tlsKey", "tlsCert", "a key is of no use without its certificate")
    given.refuse_without("tlsHostname", "tlsCa", "without it, any certificate will do")
    ca, cert, key = (_absolute(given.text(name)) for name in ("tlsCa", "tlsCert", "tlsKey"))
    if not given.flag("tls", bool(ca or cert)):
        return None
    found = Encryption(ca, given.flag("tlsHostname", True), cert, key)
    found.context()  # What is wrong with the files is better said now than by a task.
    return found


def _absolute(path: str | None) -> str | None:
    """Whatever folder a worker runs in."""
    return None if path is None else os.path.abspath(os.path.expanduser(path))

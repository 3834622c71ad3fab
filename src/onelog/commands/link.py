"""How a command reaches a cluster: its address, encryption, and whose requests they are.

Every command that talks to a cluster has these options, and each has a variable in the environment.
A secret can be in a file instead: other users of the machine see what is on a command line.

Invariant: no message that comes from here has a secret in it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.errors import InvalidRequestError

if TYPE_CHECKING:
    import ssl

    from onelog.client import ClientOptions, Credentials
    from onelog.client.admin.asynchronous import AsyncAdmin

PANEL = "Connection"


def _option(variable: str, text: str, *names: str, **more: Any) -> Any:
    # Their names are those of the options: to print all of them would take half of the help.
    return typer.Option(
        *names, envvar=variable, show_envvar=False, help=text, rich_help_panel=PANEL, **more
    )


LINK: dict[str, tuple[Any, Any]] = {
    "nameserver": (
        Annotated[
            str,
            _option(
                "ONELOG_NAMESERVER",
                "Name servers, host:port between semicolons. Each option here can also be set in "
                "the environment: ONELOG_NAMESERVER, ONELOG_TLS_CA, ONELOG_ACCESS_KEY, ...",
                "--nameserver",
                "-n",
            ),
        ],
        "127.0.0.1:9876",
    ),
    "timeout": (
        Annotated[
            float,
            typer.Option(
                min=0.01, max=3600, help="Seconds to wait for an answer.", rich_help_panel=PANEL
            ),
        ],
        3.0,
    ),
    "tls": (
        Annotated[bool, _option("ONELOG_TLS", "Encrypt, whoever answers.", "--tls")],
        False,
    ),
    "tls_ca": (
        Annotated[
            Path | None,
            _option(
                "ONELOG_TLS_CA",
                "Encrypt, and accept only certificates of this authority (PEM).",
            ),
        ],
        None,
    ),
    "tls_hostname": (
        Annotated[
            bool,
            _option(
                "ONELOG_TLS_HOSTNAME",
                "With --tls-ca: whether it must be made for the address that is called.",
            ),
        ],
        True,
    ),
    "tls_cert": (
        Annotated[
            Path | None,
            _option("ONELOG_TLS_CERT", "Encrypt, and show this certificate (PEM) if asked."),
        ],
        None,
    ),
    "tls_key": (
        Annotated[Path | None, _option("ONELOG_TLS_KEY", "The key (PEM) of that certificate.")],
        None,
    ),
    "access_key": (
        Annotated[str | None, _option("ONELOG_ACCESS_KEY", "Whose requests they are.")],
        None,
    ),
    "secret_key": (
        Annotated[
            str | None,
            _option(
                "ONELOG_SECRET_KEY", "What to sign with; better in the environment, or in a file."
            ),
        ],
        None,
    ),
    "secret_key_file": (
        Annotated[Path | None, _option("ONELOG_SECRET_KEY_FILE", "The file with the secret key.")],
        None,
    ),
    "security_token": (
        Annotated[
            str | None,
            _option("ONELOG_SECURITY_TOKEN", "Goes with keys for a while."),
        ],
        None,
    ),
    "security_token_file": (
        Annotated[Path | None, _option("ONELOG_SECURITY_TOKEN_FILE", "The file with the token.")],
        None,
    ),
}
"""The options, as `for_typer` takes them: by name, what typer is told and the default."""

ENVIRONMENT = frozenset(
    hint.__metadata__[0].envvar for hint, _ in LINK.values() if hint.__metadata__[0].envvar
)
"""The variables of these options."""


def client_options(given: Mapping[str, Any]) -> "ClientOptions":
    """What the options of a command line, and those of `LINK` with them, mean to a client."""
    options: ClientOptions = {"nameserver": given["nameserver"], "timeout": given["timeout"]}
    tls = _tls(given)
    if tls is not None:
        options["tls"] = tls
    credentials = _credentials(given)
    if credentials is not None:
        options["credentials"] = credentials
    return options


def administrator(given: Mapping[str, Any]) -> "AsyncAdmin":
    """An administrator that is told the same."""
    from onelog.client.admin.asynchronous import AsyncAdmin

    options = client_options(given)
    return AsyncAdmin.connect(
        options["nameserver"],
        timeout_ms=max(1, round(given["timeout"] * 1000)),
        tls=options.get("tls"),
        credentials=options.get("credentials"),
    )


def _tls(given: Mapping[str, Any]) -> "ssl.SSLContext | None":
    ca_path, cert_path, key_path = given["tls_ca"], given["tls_cert"], given["tls_key"]
    if bool(cert_path) != bool(key_path):
        raise InvalidRequestError("--tls-cert and --tls-key need each other")
    if not (given["tls"] or ca_path or cert_path):
        return None
    from onelog.net.tls import client_context

    return client_context(
        ca_path and Path(ca_path),
        cert_path and Path(cert_path),
        key_path and Path(key_path),
        check_hostname=given["tls_hostname"],
    )


def _credentials(given: Mapping[str, Any]) -> "Credentials | None":
    access_key, secret_key = given["access_key"], _secret(given, "secret_key")
    token = _secret(given, "security_token")
    if bool(access_key) != bool(secret_key):
        raise InvalidRequestError(
            "--access-key and --secret-key (or --secret-key-file) need each other"
        )
    if token and not access_key:
        raise InvalidRequestError("--security-token needs --access-key and --secret-key")
    if not access_key:
        return None
    from onelog.client import Credentials

    return Credentials(access_key, secret_key, token)


def _secret(given: Mapping[str, Any], name: str) -> str:
    """A secret, from its option or from its file; empty if there is none."""
    value, path = given[name], given[f"{name}_file"]
    flag = "--" + name.replace("_", "-")
    if value and path:
        raise InvalidRequestError(f"{flag} and {flag}-file exclude each other: keep one of them")
    if not path:
        return value or ""
    from onelog.client.credentials import read_secret

    return read_secret(Path(path), f"{flag}-file")

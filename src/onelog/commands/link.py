"""How a command reaches a cluster: its address, encryption, and whose requests they are.

Every command that talks to a cluster has these options, and each has a variable in the environment.
A secret can be in a file instead: other users of the machine see what is on a command line.

Invariant: no message that comes from here has a secret in it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onelog.commands.options import option
from onelog.errors import InvalidRequestError

if TYPE_CHECKING:
    import ssl

    from onelog.client import ClientOptions, Credentials
    from onelog.client.admin.admin import AsyncAdmin

PANEL = "Connection"


def _linked(name: str, kind: object, default: object, text: str, *names: str) -> tuple[Any, Any]:
    # The variables are named like the options: to print all of them would take half of the help.
    variable = f"ONELOG_{name.upper()}"
    return option(
        kind, default, text, *names, envvar=variable, show_envvar=False, rich_help_panel=PANEL
    )


LINK: dict[str, tuple[Any, Any]] = {
    "nameserver": _linked(
        "nameserver",
        str,
        "127.0.0.1:9876",
        "Name servers, host:port between semicolons. Each option here can also be set in the "
        "environment: ONELOG_NAMESERVER, ONELOG_TLS_CA, ONELOG_ACCESS_KEY, ...",
        "--nameserver",
        "-n",
    ),
    "timeout": option(
        float, 3.0, "Seconds to wait for an answer.", min=0.01, max=3600, rich_help_panel=PANEL
    ),
    **{
        name: _linked(name, kind, default, text, *names)
        for name, kind, default, text, *names in (
            ("tls", bool, False, "Encrypt, whoever answers.", "--tls"),
            (
                "tls_ca",
                Path | None,
                None,
                "Encrypt, and accept only certificates of this authority (PEM).",
            ),
            (
                "tls_hostname",
                bool,
                True,
                "With --tls-ca: whether it must be made for the address that is called.",
            ),
            (
                "tls_cert",
                Path | None,
                None,
                "Encrypt, and show this certificate (PEM) if asked.",
            ),
            ("tls_key", Path | None, None, "The key (PEM) of that certificate."),
            ("access_key", str | None, None, "Whose requests they are."),
            (
                "secret_key",
                str | None,
                None,
                "What to sign with; better in the environment, or in a file.",
            ),
            ("secret_key_file", Path | None, None, "The file with the secret key."),
            ("security_token", str | None, None, "Goes with keys for a while."),
            ("security_token_file", Path | None, None, "The file with the token."),
        )
    },
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
    if given.get("namespace"):
        options["namespace"] = given["namespace"]
    return options


def administrator(given: Mapping[str, Any]) -> "AsyncAdmin":
    """An administrator that is told the same."""
    from onelog.client.admin.admin import AsyncAdmin

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

"""The administrator's client that the broker has for itself.

Traces, delays and dead letters are of the whole cluster: what finds them asks all its brokers, over
the network, as `onelog` does. Where there are users, it signs in the name of the one who wants to
know, who has logged in here: with the password that is kept for signing, or else with the one that
came with the request.
"""

import base64

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.credentials import Credentials
from onelog.console.rest.operations import Ask
from onelog.core.users.users import User
from onelog.errors import NameserversUnreachableError, NotPermittedError
from onelog.gateways import House

TIMEOUT_MS = 5_000
CLIENTS_MAX = 20
_Key = tuple[tuple[tuple[str, int], ...], Credentials | None]
"""Name servers, and in whose name they are asked."""


def admin_of(ask: Ask) -> AsyncAdmin:
    """The client; `NameserversUnreachableError` if the broker knows no name server."""
    state = ask.request.app.state
    addresses = ask.house.broker.config.nameserver_addresses
    if not addresses:
        raise NameserversUnreachableError(
            "this asks all brokers of the cluster, and the broker knows no name server: set "
            "broker.nameservers"
        )
    credentials = _credentials(ask)
    key: _Key = (addresses, credentials)
    known: dict[_Key, AsyncAdmin] | None = getattr(state, "cluster_admins", None)
    if known is None:
        known = state.cluster_admins = {}
        made = known

        async def close() -> None:
            for each in made.values():
                await each.close()

        state.at_close.append(close)
    if key not in known:
        if len(known) >= CLIENTS_MAX:
            known.clear()  # Its connections close when they have been idle for a while.
        known[key] = _connect(ask.house, addresses, credentials)
    return known[key]


def _credentials(ask: Ask) -> Credentials | None:
    if not ask.who.name:
        return None
    user: User | None = ask.house.broker.users.users.known.get(ask.who.name)
    if user is not None and user.proofs.secret:
        return Credentials(user.name, user.proofs.secret)
    kind, _, given = ask.request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        raise NotPermittedError(
            "this asks all brokers of the cluster by a signature, and this broker keeps no "
            f"password of {ask.who.name} that it could sign with; onelog user update "
            f"{ask.who.name} --password ... --signing gives it one"
        )
    name, _, password = base64.b64decode(given).decode().partition(":")
    return Credentials(name, password)


def _connect(
    house: House, addresses: tuple[tuple[str, int], ...], credentials: Credentials | None
) -> AsyncAdmin:
    texts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses]
    tls = house.loaded.config.tls.mode == "enforcing"
    return AsyncAdmin.connect(
        ";".join(texts), timeout_ms=TIMEOUT_MS, tls=tls, credentials=credentials
    )

"""The administrator's client that the broker has for itself.

Traces, delays and dead letters are of the whole cluster: what finds them asks all its brokers, over
the network, as `onelog` does. Where there are users, it asks in the name of the one who wants to
know, however they have logged in: the broker knows what its users sign with.
"""

from onelog.admin.broker.call import Call
from onelog.admin.network import Network
from onelog.client.admin.admin import AsyncAdmin
from onelog.client.credentials import Credentials
from onelog.errors import NameserversUnreachableError, NotPermittedError
from onelog.gateways import GatewayContext

TIMEOUT_MS = 5_000
CLIENTS_MAX = 20
_Key = tuple[tuple[tuple[str, int], ...], Credentials | None]
"""Name servers, and who asks."""


def admin_of(call: Call) -> AsyncAdmin:
    """The client; `NameserversUnreachableError` if the broker knows no name server."""
    context = call.context
    addresses = call.broker.admin.config.nameserver_addresses
    if not addresses:
        raise NameserversUnreachableError(
            "this asks all brokers of the cluster, and the broker knows no name server: set "
            "broker.nameservers"
        )
    credentials = _credentials(call) if call.principal.name else None
    key: _Key = (addresses, credentials)
    known: dict[_Key, AsyncAdmin] = context.kept.setdefault("cluster_admins", {})
    if not known:
        context.at_close.append(lambda: _close(known))
    if key not in known:
        if len(known) >= CLIENTS_MAX:
            known.clear()  # Its connections close when they have been idle for a while.
        known[key] = _connect(context, addresses, credentials)
    return known[key]


def network_of(call: Call) -> Network:
    """The cluster, for operations that ask all its brokers."""
    return Network(admin_of(call))


async def _close(known: dict[_Key, AsyncAdmin]) -> None:
    while known:
        await known.popitem()[1].close()


def _credentials(call: Call) -> Credentials:
    secret = call.broker.users.logins.signing_secret(call.principal)
    if not secret:
        raise NotPermittedError(
            f"all brokers would be asked in the name of {call.principal.name}, who cannot sign: "
            "onelog user update --signing"
        )
    return Credentials(call.principal.name, secret)


def _connect(
    context: GatewayContext, addresses: tuple[tuple[str, int], ...], credentials: Credentials | None
) -> AsyncAdmin:
    texts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses]
    tls = context.loaded.config.tls.mode == "enforcing"
    return AsyncAdmin.connect(
        ";".join(texts), timeout_ms=TIMEOUT_MS, tls=tls, credentials=credentials
    )

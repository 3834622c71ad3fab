"""The administrator's client that the broker has for itself.

Traces, delays and dead letters are of the whole cluster: what finds them asks all its brokers, over
the network, as `onelog` does. It is made when it is needed first, and asked only after the core was
asked whether the one may who wants to know.
"""

from onelog.client.admin.admin import AsyncAdmin
from onelog.console.rest.operations import Ask
from onelog.errors import NameserversUnreachableError
from onelog.gateways import House

TIMEOUT_MS = 5_000


def admin_of(ask: Ask) -> AsyncAdmin:
    """The client; `NameserversUnreachableError` if the broker knows no name server."""
    state = ask.request.app.state
    addresses = ask.house.broker.config.nameserver_addresses
    if not addresses:
        raise NameserversUnreachableError(
            "this asks all brokers of the cluster, and the broker knows no name server: set "
            "broker.nameservers"
        )
    found: tuple[tuple[tuple[str, int], ...], AsyncAdmin] | None = getattr(
        state, "cluster_admin", None
    )
    if found is None or found[0] != addresses:
        admin = _connect(ask.house, addresses)
        state.cluster_admin = (addresses, admin)
        state.at_close.append(admin.close)
        return admin
    return found[1]


def _connect(house: House, addresses: tuple[tuple[str, int], ...]) -> AsyncAdmin:
    texts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses]
    tls = house.loaded.config.tls.mode == "enforcing"
    return AsyncAdmin.connect(";".join(texts), timeout_ms=TIMEOUT_MS, tls=tls)


def check(ask: Ask, action: str, kind: str, name: str) -> None:
    """`NotPermittedError` if they may not; for what is asked in the broker's own name."""
    ask.house.broker.access.check(ask.who, action, (kind, name))  # type: ignore[arg-type]

"""The broker itself: how it runs, who is connected, its settings, and its cluster."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from onelog import __version__
from onelog.admin.operations import (
    Ask,
    Count,
    Done,
    Limit,
    Listing,
    Operation,
    Pace,
    check,
    knows_names,
)
from onelog.config_sources import SETTINGS, value_of
from onelog.core.admin import LogState, Measures
from onelog.errors import ConfigError, InvalidRequestError, OnelogError, PeerClosedError
from onelog.gateways.http.requests import called, may_administer
from onelog.metrics import process_state
from onelog.net.connection import Connection

_NAMES = {"broker": "rocketmq"}
_LISTENING = ("broker", "kafka", "amqp", "mqtt", "stomp", "grpc", "http")


class Rates(Struct):
    """Messages per second, over ten seconds, a minute and ten minutes."""

    put: list[float]
    got: list[float]


class Latency(Struct):
    """Seconds below which half of, and nearly all, were; as far as buckets tell."""

    count: int
    p50: float
    p99: float


class Log(Struct):
    """The log on its disk."""

    folder: str
    bytes: int
    begin: int
    end: int
    not_flushed_bytes: int
    disk_percent: float
    first_ms: int | None


class Follower(Struct):
    """A node that follows this one."""

    node_id: int
    address: str
    behind_bytes: int
    behind_ms: int
    in_sync: bool


class Overview(Struct):
    """How the broker runs."""

    name: str
    cluster: str
    version: str
    address: str
    role: str
    started_ms: int
    now_ms: int
    refusal: str | None
    """Why messages are refused, if they are."""
    user: str
    """Who asks; empty while nobody has to log in."""
    may_change: bool
    """Whether who asks may change anything."""
    topics: int
    groups: int
    put_total: int
    put_bytes_total: int
    put_failed_total: int
    got_total: int
    rates: Rates
    latencies: dict[str, Latency]
    log: Log
    timed: int
    delayed: int
    connections: dict[str, int]
    ports: dict[str, int]
    memory_bytes: int
    processor_seconds: float
    open_files: int
    stalls: int
    stalled_ms: int
    followers: list[Follower]
    mismatched_groups: list[str]
    set_aside: list[str]
    """What is recorded of topics, queues, users and so on, and cannot be read by this version."""


class ConnectionQuery(Struct, forbid_unknown_fields=True):
    """Which connections."""

    protocol: Annotated[str, Meta(max_length=20)] = ""
    q: Annotated[str, Meta(max_length=255, description="Only with this in it.")] = ""
    limit: Limit = 200
    skip: Count = 0


class Client(Struct):
    """A connection, and who is behind it as far as they said."""

    id: str
    protocol: str
    address: str
    local: str
    secure: bool
    is_congested: bool
    client_id: str | None
    language: str | None
    groups: list[str]


class Value(Struct):
    """A setting, with where it came from."""

    key: str
    value: bool | int | str
    default: bool | int | str
    source: str
    help: str
    can_change: bool
    choices: list[str]


class Broker(Struct):
    """A broker of the cluster, as name servers know it."""

    name: str
    cluster: str
    members: dict[str, str]
    """Addresses by id; 0 is the master."""
    is_this: bool


class Cluster(Struct):
    """All brokers, this one's standing, and who follows it."""

    nameservers: list[str]
    brokers: list[Broker]
    trouble: str | None
    broker_id: int
    epoch: int
    ha_address: str
    replicated: bool
    followers: list[Follower]


def _followers(ask: Ask) -> list[Follower]:
    followers = ask.context.replica_status.followers() if knows_names(ask) else []
    return [
        Follower(each.node_id, each.address, each.behind_bytes, each.behind_ms, each.in_sync)
        for each in followers
    ]


def _counts(ask: Ask) -> dict[str, int]:
    counts: dict[str, int] = {}
    for section, _ in ask.context.connections():
        name = _NAMES.get(section, section)
        counts[name] = counts.get(name, 0) + 1
    return counts


def _ports(ask: Ask) -> dict[str, int]:
    """Where each protocol is."""
    sections = {each: getattr(ask.context.loaded.config, each, None) for each in _LISTENING}
    ports = {each: getattr(section, "port", 0) for each, section in sections.items()}
    return {_NAMES.get(section, section): port for section, port in ports.items() if port}


def _latencies(measures: Measures) -> dict[str, Latency]:
    measured = {
        "append": measures.append_seconds,
        "confirm": measures.confirm_seconds,
        "flush": measures.flush_seconds,
    }
    return {
        what: Latency(sum(each.counts), each.quantile(0.5), each.quantile(0.99))
        for what, each in measured.items()
    }


def _log(log: LogState) -> Log:
    return Log(
        str(log.folder),
        log.end - log.min_offset,
        log.min_offset,
        log.end,
        log.end - log.flushed,
        round(log.disk_percent, 2),
        log.first_ms if log.first_ms > 0 else None,
    )


async def get_overview(ask: Ask) -> Overview:
    """How the broker runs."""
    context, principal = ask.context, ask.principal
    broker, admin = context.broker, context.broker.admin
    state, log = admin.state(principal), admin.log_state(principal)
    process = process_state()
    return Overview(
        name=broker.config.name,
        cluster=broker.config.cluster,
        version=__version__,
        address=f"{broker.config.client_host}:{broker.config.port}",
        role="slave" if context.replica_status.broker_id else "master",
        started_ms=state.started_ms,
        now_ms=context.clock.now_ms(),
        refusal=admin.refusal(principal) or None,
        user=principal.name,
        may_change=may_administer(ask.request),
        topics=len(admin.topics(principal)[1]),
        groups=len(admin.groups(principal)[1]),
        put_total=state.totals.put_count,
        put_bytes_total=state.totals.put_bytes,
        put_failed_total=state.totals.put_failed,
        got_total=state.totals.get_count,
        rates=Rates(
            [round(each, 2) for each in state.rates["put"]],
            [round(each, 2) for each in state.rates["transferred"]],
        ),
        latencies=_latencies(admin.measures(principal)) if knows_names(ask) else {},
        log=_log(log),
        timed=state.timed_count,
        delayed=sum(end - done for done, end in state.delayed.values()),
        connections=_counts(ask),
        ports=_ports(ask),
        memory_bytes=process.memory_bytes,
        processor_seconds=process.processor_seconds,
        open_files=process.open_files,
        stalls=context.stalls.count,
        stalled_ms=context.stalls.total_ms,
        followers=_followers(ask),
        mismatched_groups=state.mismatched_groups if knows_names(ask) else [],
        set_aside=state.set_aside if knows_names(ask) else [],
    )


# -- connections -----------------------------------------------------------------------------------


def _id(connection: Connection) -> str:
    return f"{connection.remote_address}-{connection.local[1]}"


async def _known(ask: Ask, pace: Pace) -> dict[str, tuple[str, str, set[str]]]:
    """Clients by their addresses: what they call themselves, and the groups that they are in."""
    broker = ask.context.broker
    found: dict[str, tuple[str, str, set[str]]] = {}
    _, groups = broker.admin.groups(ask.principal)
    members = dict(broker.admin.producers(ask.principal))
    for number, group in enumerate(groups):
        if number % 200 == 0:
            await pace.give()
        live = broker.live_group(ask.principal, group.name)
        if live is not None:
            members[group.name] = [*members.get(group.name, ()), *live.members.values()]
    for name, those in members.items():
        for member in those:
            client = member.client
            entry = found.setdefault(client.address, (client.client_id, client.language, set()))
            entry[2].add(name)
    return found


async def list_connections(ask: Ask) -> Listing[Client]:
    """Who is connected, by any protocol."""
    query: ConnectionQuery = ask.query
    check(ask, "describe", "names")
    pace = Pace()
    known = await _known(ask, pace)
    found = []
    for section, connection in list(ask.context.connections()):
        await pace.give()
        protocol = _NAMES.get(section, section)
        client_id, language, groups = known.get(connection.remote_address, (None, None, set()))
        if query.protocol not in ("", protocol):
            continue
        text = f"{connection.remote_address} {client_id or ''} {' '.join(groups)}".lower()
        if query.q.lower() not in text:
            continue
        host, port = connection.local
        found.append(
            Client(
                _id(connection),
                protocol,
                connection.remote_address,
                f"{host}:{port}",
                connection.secure,
                connection.congested,
                client_id,
                language,
                sorted(groups),
            )
        )
    found.sort(key=lambda each: (each.protocol, each.address))
    page = found[query.skip : query.skip + query.limit]
    end = query.skip + len(page)
    return Listing(page, len(found), str(end) if end < len(found) else None)


async def close_connection(ask: Ask) -> Done:
    """Close one; its client may come again."""
    check(ask, "alter", "names")
    for _, connection in ask.context.connections():
        if _id(connection) == ask.path["id"]:
            connection.close()
            return Done()
    raise PeerClosedError(f"there is no connection {ask.path['id']!r:.80}")


# -- settings --------------------------------------------------------------------------------------


async def get_config(ask: Ask) -> Listing[Value]:
    """All settings."""
    check(ask, "describe", "names")
    loaded = ask.context.loaded
    items = [
        Value(
            each.key,
            value_of(loaded.config, each.key),
            each.default,
            loaded.sources.get(each.key, "default"),
            each.help,
            each.reloadable,
            list(each.choices),
        )
        for each in SETTINGS.values()
    ]
    return Listing(items, len(items))


async def change_config(ask: Ask) -> Listing[Value]:
    """Change settings of the running broker, until it is restarted."""
    changes: dict[str, Any] = ask.body
    check(ask, "alter", "names")
    if not changes:
        raise InvalidRequestError("name a setting to change")
    for key in changes:
        if key not in SETTINGS:
            raise ConfigError(f"there is no setting {key!r:.80}")
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in changes.items()
    }
    (error,) = await called(lambda done: ask.context.reconfigure(texts, done))
    if error is not None:
        raise error
    ask.context.broker.audit.note(ask.principal, "alter", f"settings {[*changes]}", "done")
    return await get_config(ask)


# -- the cluster -----------------------------------------------------------------------------------


async def get_cluster(ask: Ask) -> Cluster:
    """Brokers, as the name servers know them, and replicas of this one."""
    from onelog.admin.broker.cluster_admin import admin_of

    broker, replica_status = ask.context.broker, ask.context.replica_status
    brokers: list[Broker] = []
    trouble = None
    try:
        for each in await admin_of(ask).clusters.brokers():
            members = {str(number): str(address) for number, address in each.members}
            is_this = each.name == broker.config.name
            brokers.append(Broker(each.name, each.cluster, members, is_this))
    except OnelogError as error:
        trouble = str(error)
    return Cluster(
        nameservers=[f"{host}:{port}" for host, port in broker.config.nameserver_addresses],
        brokers=brokers,
        trouble=trouble,
        broker_id=replica_status.broker_id or 0,
        epoch=replica_status.epoch,
        ha_address=replica_status.ha_address if knows_names(ask) else "",
        replicated=replica_status.replicated,
        followers=_followers(ask),
    )


OPERATIONS = [
    Operation("GET", "/v1/overview", "How the broker runs", get_overview, Overview),
    Operation(
        "GET",
        "/v1/connections",
        "List connections of all protocols",
        list_connections,
        Listing[Client],
        ConnectionQuery,
    ),
    Operation("DELETE", "/v1/connections/{id}", "Close a connection", close_connection, Done),
    Operation("GET", "/v1/config", "List settings and their sources", get_config, Listing[Value]),
    Operation(
        "PATCH",
        "/v1/config",
        "Change settings of the running broker",
        change_config,
        Listing[Value],
        body=dict[str, bool | int | str],
        example={"broker.trace": False},
    ),
    Operation("GET", "/v1/cluster", "Brokers and replicas", get_cluster, Cluster),
]

"""The broker itself: how it runs, who is connected, its settings, its cluster, and replicas."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from onelog import __version__
from onelog.admin.broker.call import Call, Pace
from onelog.admin.broker.cluster_admin import admin_of
from onelog.admin.clusters import (
    Broker,
    Changes,
    Client,
    Cluster,
    ConnectionQuery,
    Follower,
    Joining,
    Latency,
    Log,
    OneNode,
    Overview,
    Promotion,
    Rates,
    ReplicaNode,
    SetState,
    Value,
)
from onelog.admin.operations import Arguments, Done, Identified, Listing, fill
from onelog.config_sources import SETTINGS, value_of
from onelog.core.admin import LogState, Measures
from onelog.errors import (
    ConfigError,
    InvalidRequestError,
    OnelogError,
    PeerClosedError,
    RequestTimeoutError,
)
from onelog.gateways.http.requests import called
from onelog.metrics import process_state
from onelog.net.connection import Connection
from onelog.replication.administration import ReplicaSet, find_sets, status_of
from onelog.replication.registry import ReplicaSetState

_LISTENING = ("broker", "kafka", "amqp", "mqtt", "stomp", "grpc", "http")


def _followers(call: Call) -> list[Follower]:
    followers = call.context.replica_status.followers() if call.knows_names else []
    return [fill(Follower, each) for each in followers]


def _counts(call: Call) -> dict[str, int]:
    return dict(Counter(_protocol(section) for section, _ in call.context.connections()))


def _protocol(section: str) -> str:
    return "rocketmq" if section == "broker" else section


def _ports(call: Call) -> dict[str, int]:
    """Where each protocol is."""
    sections = {each: getattr(call.context.loaded.config, each, None) for each in _LISTENING}
    ports = {each: getattr(section, "port", 0) for each, section in sections.items()}
    return {_protocol(section): port for section, port in ports.items() if port}


def _latencies(measures: Measures) -> dict[str, Latency]:
    names = ("append", "confirm", "flush")
    measured = {name: getattr(measures, f"{name}_seconds") for name in names}
    return {
        what: Latency(sum(each.counts), each.quantile(0.5), each.quantile(0.99))
        for what, each in measured.items()
    }


def _log(log: LogState) -> Log:
    return Log(
        folder=str(log.folder),
        bytes=log.end - log.min_offset,
        begin=log.min_offset,
        end=log.end,
        not_flushed_bytes=log.end - log.flushed,
        disk_percent=round(log.disk_percent, 2),
        first_ms=log.first_ms if log.first_ms > 0 else None,
    )


async def get_overview(call: Call, given: Arguments) -> Overview:
    """How the broker runs."""
    context, principal = call.context, call.principal
    broker, admin = context.broker, context.broker.admin
    state, log = admin.state(principal), admin.log_state(principal)
    return fill(
        Overview,
        broker.admin.config,
        version=__version__,
        address=f"{broker.admin.config.client_host}:{broker.admin.config.port}",
        role="slave" if context.replica_status.broker_id else "master",
        started_ms=state.started_ms,
        now_ms=context.clock.now_ms(),
        refusal=admin.refusal(principal) or None,
        user=principal.name,
        may_change=call.may_change,
        topics=len(broker.topics.all(principal)[1]),
        groups=len(broker.groups.all(principal)[1]),
        put_total=state.totals.put_count,
        put_bytes_total=state.totals.put_bytes,
        put_failed_total=state.totals.put_failed,
        got_total=state.totals.get_count,
        rates=Rates(
            [round(each, 2) for each in state.rates["put"]],
            [round(each, 2) for each in state.rates["transferred"]],
        ),
        latencies=_latencies(admin.measures(principal)) if call.knows_names else {},
        log=_log(log),
        timed=state.timed_count,
        delayed=sum(end - done for done, end in state.delayed.values()),
        connections=_counts(call),
        ports=_ports(call),
        stalls=context.stalls.count,
        stalled_ms=context.stalls.total_ms,
        followers=_followers(call),
        mismatched_groups=state.mismatched_groups if call.knows_names else [],
        set_aside=state.set_aside if call.knows_names else [],
        **process_state()._asdict(),
    )


def _id(connection: Connection) -> str:
    return f"{connection.remote_address}-{connection.local[1]}"


async def _known(call: Call, pace: Pace) -> dict[str, tuple[str, str, set[str]]]:
    """Clients by their addresses: what they call themselves, and the groups that they are in."""
    broker = call.broker
    found: dict[str, tuple[str, str, set[str]]] = {}
    _, groups = broker.groups.all(call.principal)
    members = dict(broker.groups.producers(call.principal))
    for number, group in enumerate(groups):
        if number % 200 == 0:
            await pace.give()
        live = broker.groups.live(call.principal, group.name)
        if live is not None:
            members[group.name] = [*members.get(group.name, ()), *live.members.values()]
    for name, those in members.items():
        for member in those:
            client = member.client
            entry = found.setdefault(client.address, (client.client_id, client.language, set()))
            entry[2].add(name)
    return found


async def list_connections(call: Call, given: ConnectionQuery) -> Listing[Client]:
    """Who is connected, by any protocol."""
    call.check("describe", "names")
    pace = Pace()
    known = await _known(call, pace)
    found = []
    for section, connection in list(call.context.connections()):
        await pace.give()
        protocol = _protocol(section)
        client_id, language, groups = known.get(connection.remote_address, (None, None, set()))
        if given.protocol not in ("", protocol):
            continue
        text = f"{connection.remote_address} {client_id or ''} {' '.join(groups)}".lower()
        if given.q.lower() not in text:
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
    page = found[given.skip : given.skip + given.limit]
    end = given.skip + len(page)
    return Listing(page, len(found), str(end) if end < len(found) else None)


async def close_connection(call: Call, given: Identified) -> Done:
    """Close one; its client may come again."""
    call.check("alter", "names")
    for _, connection in call.context.connections():
        if _id(connection) == given.id:
            connection.close()
            return Done()
    raise PeerClosedError(f"there is no connection {given.id!r:.80}")


async def get_config(call: Call, given: Arguments) -> Listing[Value]:
    """All settings."""
    call.check("describe", "names")
    loaded = call.context.loaded
    items = [
        fill(
            Value,
            each,
            value=value_of(loaded.config, each.key),
            source=loaded.sources.get(each.key, "default"),
            can_change=each.reloadable,
            choices=list(each.choices),
        )
        for each in SETTINGS.values()
    ]
    return Listing(items, len(items))


async def change_config(call: Call, given: Changes) -> Listing[Value]:
    """Change settings of the running broker, until it is restarted."""
    changes = given.settings
    call.check("alter", "names")
    if not changes:
        raise InvalidRequestError("name a setting to change")
    for key in changes:
        if key not in SETTINGS:
            raise ConfigError(f"there is no setting {key!r:.80}")
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in changes.items()
    }
    (error,) = await called(lambda done: call.context.reconfigure(texts, done))
    if error is not None:
        raise error
    call.broker.users.audit.note(call.principal, "alter", f"settings {[*changes]}", "done")
    return await get_config(call, Arguments())


async def get_cluster(call: Call, given: Arguments) -> Cluster:
    """Brokers, as the name servers know them, and replicas of this one."""
    broker, replica_status = call.broker, call.context.replica_status
    brokers: list[Broker] = []
    trouble = None
    try:
        for each in await admin_of(call).clusters.brokers():
            members = {str(number): str(address) for number, address in each.members}
            is_this = each.name == broker.admin.config.name
            brokers.append(Broker(each.name, each.cluster, members, is_this))
    except OnelogError as error:
        trouble = str(error)
    return fill(
        Cluster,
        replica_status,
        nameservers=[f"{host}:{port}" for host, port in broker.admin.config.nameserver_addresses],
        brokers=brokers,
        trouble=trouble,
        broker_id=replica_status.broker_id or 0,
        ha_address=replica_status.ha_address if call.knows_names else "",
        followers=_followers(call),
    )


JOIN_SECONDS_MAX = 50.0


def _etcd(call: Call) -> str:
    endpoints = call.context.loaded.config.replication.etcd
    if not endpoints:
        raise InvalidRequestError("this broker has no replicas that etcd looks after")
    return endpoints


@contextlib.asynccontextmanager
async def _set(call: Call) -> AsyncIterator[ReplicaSet]:
    """The set that this broker is in."""
    call.check("alter", "names")
    config = call.broker.admin.config
    replicas = ReplicaSet(_etcd(call), config.cluster, config.name)
    try:
        yield replicas
    finally:
        await replicas.close()


def _state(state: ReplicaSetState) -> SetState:
    return fill(SetState, state, in_sync=list(state.in_sync))


async def list_replicas(call: Call, given: Arguments) -> Listing[ReplicaNode]:
    """Nodes of all sets that this broker's etcd knows; none, if it has no etcd."""
    call.check("describe", "names")
    if not call.context.loaded.config.replication.etcd:
        return Listing([], 0)
    items = []
    for which, view in sorted((await find_sets(_etcd(call))).items()):
        found = status_of(*which, view)
        items += [
            fill(
                ReplicaNode,
                each,
                cluster=found.cluster,
                broker=found.name,
                in_sync=each.is_in_sync,
            )
            for each in found.nodes
        ]
    return Listing(items, len(items))


async def promote(call: Call, given: Promotion) -> SetState:
    """Have the master hand over; nothing acknowledged is lost."""
    async with _set(call) as replicas:
        return _state(await replicas.promote(given.node))


async def drain(call: Call, given: OneNode) -> SetState:
    """After a hand-over, if it is the master; it is in the set again after its next start."""
    async with _set(call) as replicas:
        return _state(await replicas.drain(given.node))


async def join(call: Call, given: Joining) -> SetState:
    """Wait until a node that was started is in sync, and count it."""
    async with _set(call) as replicas:
        try:
            async with asyncio.timeout(JOIN_SECONDS_MAX):
                return _state(await replicas.join(given.node, given.replicas, lambda _: None))
        except TimeoutError:
            raise RequestTimeoutError(f"node {given.node} is not in sync yet: ask again") from None


async def elect(call: Call, given: OneNode) -> SetState:
    """If no master can be elected: make this one master, and give up what it lacks."""
    async with _set(call) as replicas:
        return _state(await replicas.elect(given.node))


async def truncate(call: Call, given: OneNode) -> SetState:
    """Have a node follow a master that lacks messages of it, and give these up."""
    async with _set(call) as replicas:
        return _state(await replicas.truncate(given.node))

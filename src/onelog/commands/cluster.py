"""`onelog cluster`: clusters, their brokers, and how those are doing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any

import typer
from rich.text import Text

from onelog.client.admin.cluster import BrokerSet, ClusterStatus
from onelog.client.connection.nodes import Failure
from onelog.commands.options import Broker, Cluster, Follow, Interval, Yes
from onelog.commands.session import Session, Shown, command, confirm, with_options
from onelog.commands.terminal import pick, show_text, table
from onelog.errors import BrokerNotFoundError, InvalidRequestError, RegistryError
from onelog.replication.administration import (
    NodeStatus,
    ReplicaSet,
    SetStatus,
    choose,
    find_sets,
    status_of,
)

JOIN_SECONDS = 60.0
"""How long a set that is being started may not be there."""
LOOK_SECONDS = 0.5

app = typer.Typer()


@command(app, "list")
async def list_clusters(session: Session) -> None:
    """List clusters with the names of their brokers."""
    session.show(*show_clusters(await session.admin.clusters.brokers()))


@command(app, "brokers")
async def list_brokers(session: Session, cluster: Cluster = None) -> None:
    """List brokers with their addresses, as the name servers know them."""
    session.show(*show_brokers(await session.admin.clusters.brokers(cluster)))


NodeId = Annotated[int, typer.Argument(min=0, help="Which node of the set: its --id.")]
Etcd = Annotated[
    str | None,
    typer.Option(
        envvar="ONELOG_REPLICATION_ETCD",
        help="host:port;host:port of etcd. Without it, brokers are asked.",
    ),
]


@command(app, "status")
async def cluster_status(
    session: Session,
    cluster: Cluster = None,
    etcd: Etcd = None,
    details: Annotated[
        bool, typer.Option("--details", help="Everything that brokers tell about themselves.")
    ] = False,
    follow: Follow = False,
    interval: Interval = 2.0,
) -> None:
    """Show what brokers do now: rates, messages of today, disk; and how far their replicas are."""
    await session.present(
        lambda: _full_status(session, cluster, etcd),
        lambda status: show_full_status(status, details, session.utc),
        every=interval if follow else None,
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which set is meant."""

    broker: str | None
    cluster: str | None
    etcd: str | None


_CHOSEN = {"broker": (Broker, None), "cluster": (Cluster, None), "etcd": (Etcd, None)}
chosen_set = with_options("chosen", _CHOSEN, Chosen)


@command(app, "promote")
@chosen_set
async def promote(session: Session, node: NodeId, chosen: Chosen) -> None:
    """Make a node that is in sync the master of its set; nothing acknowledged is lost."""
    await _hand_over(session, node, chosen)


@command(app, "demote")
@chosen_set
async def demote(session: Session, chosen: Chosen) -> None:
    """Have the master of a set hand over to the best of its other nodes."""
    await _hand_over(session, None, chosen)


@command(app, "drain")
@chosen_set
async def drain(session: Session, node: NodeId, chosen: Chosen) -> None:
    """Have a node leave its set, after a hand-over if it is the master, so that it can be stopped.

    It is in the set again after its next start.
    """
    async with _set(session, chosen) as (name, replicas):
        state = await replicas.drain(node)
        shown = f"{name}: node {node} can be stopped; in sync are {_listed(state.in_sync)}"
        session.show({"broker": name, "node": node, "in_sync": list(state.in_sync)}, shown)


@command(app, "join")
@chosen_set
async def join(
    session: Session,
    node: NodeId,
    chosen: Chosen,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="How many nodes are a whole set; else, as many as are."),
    ] = None,
) -> None:
    """Take a node that was started into its set: wait until it is in sync, and count it."""
    async with _set(session, chosen, wait_s=JOIN_SECONDS) as (name, members):
        state = await members.join(node, replicas, lambda text: typer.echo(text, err=True))
        document = {"broker": name, "node": node, "replicas": state.replicas}
        document["in_sync"] = list(state.in_sync)
        shown = f"{name}: node {node} is in sync; the set has {state.replicas} nodes"
        session.show(document, shown)


@command(app, "elect")
@chosen_set
async def elect(session: Session, node: NodeId, chosen: Chosen, yes: Yes = False) -> None:
    """Make a node master of a set that cannot elect one; messages that it lacks are given up.

    Only if those who have them will not come back: the nodes' logs say who that is.
    """
    async with _set(session, chosen) as (name, replicas):
        confirm(f"{name}: make node {node} master, and give up all messages that it lacks?", yes)
        state = await replicas.elect(node)
        document = {"broker": name, "master": state.master, "epoch": state.epoch}
        session.show(document, f"{name}: node {state.master} is the master of epoch {state.epoch}")


@command(app, "truncate")
@chosen_set
async def truncate(session: Session, node: NodeId, chosen: Chosen, yes: Yes = False) -> None:
    """Have a node follow a master that lacks messages of it, which are given up.

    A node does not do that by itself; its log says so.
    """
    async with _set(session, chosen) as (name, replicas):
        confirm(f"{name}: give up all messages of node {node} that the master lacks?", yes)
        await replicas.truncate(node)
        shown = f"{name}: node {node} follows whoever is master now"
        session.show({"broker": name, "node": node}, shown)


@dataclass(frozen=True, slots=True)
class FullStatus:
    """Brokers, and the sets that some of them are in."""

    brokers: ClusterStatus
    sets: tuple[SetStatus, ...]
    failures: tuple[Failure, ...]


async def _full_status(session: Session, cluster: str | None, etcd: str | None) -> FullStatus:
    brokers = await session.admin.clusters.status(cluster)
    registries = {each.details.get("onelogEtcd", "") for each in brokers.brokers} - {""}
    sets: dict[tuple[str, str], SetStatus] = {}
    failures = list(brokers.failures)
    for endpoints in {etcd} if etcd else registries:
        try:
            for which, view in (await find_sets(endpoints)).items():
                if cluster in (None, which[0]):
                    sets[which] = status_of(*which, view)
        except RegistryError as error:
            failures.append(Failure(f"etcd {endpoints}", str(error)))
    return FullStatus(brokers, tuple(sets.values()), tuple(failures))


@asynccontextmanager
async def _set(
    session: Session, chosen: Chosen, wait_s: float = 0.0
) -> AsyncIterator[tuple[str, ReplicaSet]]:
    """The set that is meant, which is found by its etcd or by its brokers, or comes in a while."""
    until = monotonic() + wait_s
    while True:
        try:
            endpoints, which = await _found(session, chosen)
            break
        except (BrokerNotFoundError, RegistryError):
            if monotonic() >= until:
                raise
            await asyncio.sleep(LOOK_SECONDS)
    replicas = ReplicaSet(endpoints, *which)
    try:
        yield which[1], replicas
    finally:
        await replicas.close()


async def _found(session: Session, chosen: Chosen) -> tuple[str, tuple[str, str]]:
    """Where etcd is, and the cluster and name of the one set that is meant."""
    etcd, broker = chosen.etcd, chosen.broker
    if not etcd:
        status = await session.admin.clusters.status(chosen.cluster)
        registries = {
            each.details.get("onelogEtcd", "")
            for each in status.brokers
            if broker in (None, each.name)
        } - {""}
        if len(registries) != 1:
            raise InvalidRequestError(
                "no broker says where its etcd is: use --etcd"
                if not registries
                else f"brokers name several: choose with --etcd: {', '.join(sorted(registries))}"
            )
        (etcd,) = registries
    return etcd, choose(await find_sets(etcd), chosen.cluster, broker)


async def _hand_over(session: Session, node: int | None, chosen: Chosen) -> None:
    async with _set(session, chosen) as (name, replicas):
        began = monotonic()
        state = await replicas.promote(node)
        took = monotonic() - began
        document = {"broker": name, "master": state.master, "epoch": state.epoch, "seconds": took}
        shown = f"{name}: node {state.master} is the master of epoch {state.epoch}"
        session.show(document, f"{shown}, after {took:.2f} s")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers) or "none"


# -- what is shown -------------------------------------------------------------------------------


def show_clusters(brokers: Sequence[BrokerSet]) -> Shown:
    """Clusters, one per line."""
    clusters: dict[str, list[BrokerSet]] = {}
    for each in brokers:
        clusters.setdefault(each.cluster, []).append(each)
    document, rows = [], []
    for cluster, members in clusters.items():
        names = [each.name for each in members]
        document.append({"cluster": cluster, "brokers": names})
        masters = sum(each.master is not None for each in members)
        slaves = sum(len(each.members) for each in members) - masters
        rows.append((cluster, masters, slaves, names))
    columns = "cluster, >masters, >slaves, brokers"
    return document, table(f"clusters: {len(clusters)}", columns, rows=rows)


def show_brokers(brokers: Sequence[BrokerSet]) -> Shown:
    """Brokers, one process per line."""
    document = [
        {
            "cluster": each.cluster,
            "broker": each.name,
            "id": number,
            "role": "master" if number == 0 else "slave",
            "address": str(address),
        }
        for each in brokers
        for number, address in each.members
    ]
    columns = "cluster, broker, >id, role, address"
    return document, table("brokers", columns, rows=document)


def show_full_status(status: FullStatus, details: bool, utc: bool) -> Shown:
    """How brokers are, and the sets that they are in."""
    document, *views = show_status(status.brokers, details, utc)
    nodes = {
        node.address: _node_document(each, node) for each in status.sets for node in each.nodes
    }
    for broker in document:
        if broker["address"] in nodes:
            broker["replica"] = nodes[broker["address"]]
    return document, *views, *(_set_table(each) for each in status.sets)


def _node_document(of: SetStatus, node: NodeStatus) -> dict[str, Any]:
    return {
        **pick(node, "node role in_sync=is_in_sync log_end confirmed lag_bytes lag_ms remark"),
        **pick(of, "epoch replicas"),
        "in_sync_set": list(of.in_sync),
    }


def _set_table(of: SetStatus) -> Any:
    rows = [
        {
            **pick(node, "node role is_in_sync address epoch log_end confirmed remark"),
            "lag": "?" if node.lag_bytes is None else node.lag_bytes,
            "lag_s": "?" if node.lag_ms is None else f"{node.lag_ms / 1000:.1f}",
        }
        for node in of.nodes
    ]
    return table(
        f"{show_text(of.name)}: epoch {of.epoch}, in sync {_listed(of.in_sync)} of {of.replicas}",
        ">node, role, in sync=is_in_sync, address, >log epoch=epoch, #log end, #confirmed, "
        "#lag bytes=lag, >lag s, remark",
        rows=rows,
    )


_STATUS = (
    "cluster broker=name id=broker_id version put_rate get_rate put_today get_today "
    "disk_used_ratio booted_ms oldest_message_ms stalls longest_stall_ms log_held_by"
)


def show_status(status: ClusterStatus, details: bool, utc: bool) -> Shown:
    """How brokers are."""
    document: list[dict[str, Any]] = [
        {
            **pick(broker, _STATUS + (" details" if details else "")),
            "address": str(broker.address),
        }
        for broker in status.brokers
    ]
    made = table(
        f"brokers: {len(status.brokers)}",
        "cluster, broker, >id, address, version, >in/s=put_rate, >out/s=get_rate, "
        "#in today=put_today, #out today=get_today, >disk, oldest message=oldest_message_ms, "
        "started=booted_ms, >stalls",
        rows=(
            {
                **each,
                "disk": f"{each['disk_used_ratio']:.0%}",
                "stalls": Text(f"{each['stalls']}\n{each['longest_stall_ms']} ms")
                if each["stalls"]
                else 0,
            }
            for each in document
        ),
        footer={"cluster": "total"}
        | dict.fromkeys(("in/s", "out/s", "in today", "out today"), True),
        utc=utc,
    )
    tables = (
        table(
            f"{show_text(broker.name)} {broker.address}",
            "name, value",
            rows=((name, value.strip()) for name, value in sorted(broker.details.items())),
        )
        for broker in status.brokers
        if details
    )
    held = (
        f"{show_text(broker.name)}: old log is kept for queues that are not empty: "
        f"{show_text(broker.log_held_by)}"
        for broker in status.brokers
        if broker.log_held_by
    )
    return document, made, *held, *tables

"""Replica sets, over etcd: which nodes there are, and who of them is master."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from msgspec import Meta, Struct

from onelog.admin.operations import Ask, Listing, Operation, check
from onelog.errors import InvalidRequestError, RequestTimeoutError
from onelog.replication.administration import ReplicaSet, find_sets, status_of
from onelog.replication.registry import ReplicaSetState

JOIN_SECONDS_MAX = 50.0
Node = Annotated[int, Meta(ge=0, le=1_000_000, description="Which node of the set: its id.")]


class ReplicaNode(Struct):
    """A node of a set: one that is there, or that the set misses."""

    cluster: str
    broker: str
    node: int
    role: str
    """master, follower, or missing."""
    in_sync: bool
    address: str
    epoch: int
    log_end: int
    confirmed: int
    lag_bytes: int | None
    lag_ms: int | None
    remark: str


class Promotion(Struct, forbid_unknown_fields=True):
    """Who is to be master; without a node, the best of the others."""

    node: Node | None = None


class Leaving(Struct, forbid_unknown_fields=True):
    """Who is to leave the set, so that it can be stopped."""

    node: Node


class Joining(Struct, forbid_unknown_fields=True):
    """Who is to be counted, once it is in sync."""

    node: Node
    replicas: Annotated[int, Meta(ge=1, le=9)] | None = None
    """How many nodes are a whole set; else, as many as there are."""


class GivingUp(Struct, forbid_unknown_fields=True):
    """Which node; what it, or what the master, lacks is given up."""

    node: Node


class SetState(Struct):
    """What a set is now."""

    epoch: int
    master: int
    replicas: int
    in_sync: list[int]


def _etcd(ask: Ask) -> str:
    endpoints = ask.context.loaded.config.replication.etcd
    if not endpoints:
        raise InvalidRequestError("this broker has no replicas that etcd looks after")
    return endpoints


@contextlib.asynccontextmanager
async def _set(ask: Ask) -> AsyncIterator[ReplicaSet]:
    """The set that this broker is in."""
    check(ask, "alter", "names")
    config = ask.context.broker.config
    replicas = ReplicaSet(_etcd(ask), config.cluster, config.name)
    try:
        yield replicas
    finally:
        await replicas.close()


def _state(state: ReplicaSetState) -> SetState:
    return SetState(state.epoch, state.master, state.replicas, list(state.in_sync))


async def list_replicas(ask: Ask) -> Listing[ReplicaNode]:
    """Nodes of all sets that this broker's etcd knows; none, if it has no etcd."""
    check(ask, "describe", "names")
    if not ask.context.loaded.config.replication.etcd:
        return Listing([], 0)
    items = []
    for which, view in sorted((await find_sets(_etcd(ask))).items()):
        found = status_of(*which, view)
        items += [
            ReplicaNode(
                found.cluster,
                found.name,
                each.node,
                each.role,
                each.is_in_sync,
                each.address,
                each.epoch,
                each.log_end,
                each.confirmed,
                each.lag_bytes,
                each.lag_ms,
                each.remark,
            )
            for each in found.nodes
        ]
    return Listing(items, len(items))


async def promote(ask: Ask) -> SetState:
    """Have the master hand over; nothing acknowledged is lost."""
    body: Promotion = ask.body
    async with _set(ask) as replicas:
        return _state(await replicas.promote(body.node))


async def drain(ask: Ask) -> SetState:
    """After a hand-over, if it is the master; it is in the set again after its next start."""
    body: Leaving = ask.body
    async with _set(ask) as replicas:
        return _state(await replicas.drain(body.node))


async def join(ask: Ask) -> SetState:
    """Wait until a node that was started is in sync, and count it."""
    body: Joining = ask.body
    async with _set(ask) as replicas:
        try:
            async with asyncio.timeout(JOIN_SECONDS_MAX):
                await replicas.wait_for(body.node, lambda _: None)
        except TimeoutError:
            raise RequestTimeoutError(f"node {body.node} is not in sync yet: ask again") from None
        view = await replicas.view()
        assert view.state is not None
        state = view.state
        there = len(view.nodes.keys() | set(state.in_sync))
        count = body.replicas or max(state.replicas, there)
        if count != state.replicas:
            state = await replicas.set_replicas(count)
        return _state(state)


async def elect(ask: Ask) -> SetState:
    """If no master can be elected: make this one master, and give up what it lacks."""
    body: GivingUp = ask.body
    async with _set(ask) as replicas:
        return _state(await replicas.elect(body.node))


async def truncate(ask: Ask) -> SetState:
    """Have a node follow a master that lacks messages of it, and give these up."""
    body: GivingUp = ask.body
    async with _set(ask) as replicas:
        return _state(await replicas.truncate(body.node))


OPERATIONS = [
    Operation(
        "GET",
        "/v1/cluster/replicas",
        "List the nodes of replica sets",
        list_replicas,
        Listing[ReplicaNode],
    ),
    Operation(
        "POST",
        "/v1/cluster/promote",
        "Make another node the master",
        promote,
        SetState,
        body=Promotion,
        example={"node": 1},
    ),
    Operation(
        "POST",
        "/v1/cluster/drain",
        "Have a node leave its set",
        drain,
        SetState,
        body=Leaving,
        example={"node": 1},
    ),
    Operation(
        "POST",
        "/v1/cluster/join",
        "Count a node that was started",
        join,
        SetState,
        body=Joining,
        example={"node": 2},
    ),
    Operation(
        "POST",
        "/v1/cluster/elect",
        "Make a node master, whatever it lacks",
        elect,
        SetState,
        body=GivingUp,
        example={"node": 1},
    ),
    Operation(
        "POST",
        "/v1/cluster/truncate",
        "Have a node give up what its master lacks",
        truncate,
        SetState,
        body=GivingUp,
        example={"node": 1},
    ),
]

"""Replica sets, over etcd: which nodes there are, and who of them is master."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from onelog.admin.broker.call import Call
from onelog.admin.clusters import Joining, OneNode, Promotion, ReplicaNode, SetState
from onelog.admin.operations import Arguments, Listing, fill
from onelog.errors import InvalidRequestError, RequestTimeoutError
from onelog.replication.administration import ReplicaSet, find_sets, status_of
from onelog.replication.registry import ReplicaSetState

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

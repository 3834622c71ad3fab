"""What an administrator sees of sets of replicas, and asks of them: over etcd, as their nodes do.

A request is a key that the node watches for; it does what is asked and writes its answer there. So
whoever reaches etcd can have a master hand over, and needs no other way to the nodes.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from onelog.errors import BrokerNotFoundError, InvalidRequestError, RegistryError
from onelog.replication.etcd import Etcd, parse_endpoints, prefix_of
from onelog.replication.registry import (
    Entry,
    ProgressEntry,
    Put,
    ReplicaSetState,
    Request,
    Snapshot,
    View,
    encode,
    view_of,
)

ALL_SETS = "/onelog/"
TIMEOUT_MS = 3_000
REQUEST_MS = 30_000
"""How long a request waits for its node."""
LOOK_SECONDS = 0.02
JOIN_LOOK_SECONDS = 0.2
AWAY_SECONDS = 3.0
"""How long a node may not be there that something is asked of."""
NOWHERE = ProgressEntry()


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node of a set: one that is there, or that the set misses."""

    node: int
    role: str
    """master, follower, or missing."""
    is_in_sync: bool
    address: str
    epoch: int
    log_end: int
    confirmed: int
    lag_bytes: int | None
    lag_ms: int | None
    """How long it has not had everything; None if that is not known."""
    remark: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """A set, as etcd knows it."""

    cluster: str
    name: str
    epoch: int
    replicas: int
    in_sync: tuple[int, ...]
    nodes: tuple[NodeStatus, ...]


def status_of(cluster: str, name: str, view: View) -> SetStatus:
    """What a view says of a set."""
    state = view.state or ReplicaSetState(0, -1, (), 0)
    known = sorted({*view.nodes, *state.in_sync})
    nodes = tuple(_node_status(number, view, state) for number in known)
    return SetStatus(cluster, name, state.epoch, state.replicas, state.in_sync, nodes)


def _node_status(number: int, view: View, state: ReplicaSetState) -> NodeStatus:
    entry, progress = view.nodes.get(number), view.progress.get(number) or NOWHERE
    master = view.master.id if view.master else -1
    head = view.progress.get(master)
    lag = next((each for each in head.lags if each.id == number), None) if head else None
    behind = max(0, head.end - progress.end) if head and entry else None
    remarks = []
    if entry is not None:
        remarks = [
            *(["is to be stopped"] if entry.draining else []),
            *(["has another store than before, and catches up"] if entry.new else []),
            *([] if entry.intact or entry.new else ["may have lost writes, and catches up"]),
            *([] if progress.fit else ["cannot be master now"]),
        ]
    role = "missing" if entry is None else "master" if number == master else "follower"
    if role == "master":
        behind_ms: int | None = 0
    else:
        behind_ms = lag.ms if lag else 0 if behind == 0 else None
    return NodeStatus(
        number,
        role,
        number in state.in_sync,
        entry.address if entry else "",
        progress.epoch,
        progress.end,
        progress.confirmed,
        behind,
        behind_ms,
        "; ".join(remarks),
    )


def _master_of(view: View) -> int:
    if view.master is None:
        raise BrokerNotFoundError("the set has no master now: wait until one is elected")
    return view.master.id


async def find_sets(endpoints: str) -> dict[tuple[str, str], View]:
    """All sets that an etcd knows, by cluster and name."""
    etcd = Etcd(parse_endpoints(endpoints), ALL_SETS, TIMEOUT_MS)
    try:
        snapshot = await _patient(etcd)
    finally:
        await etcd.close()
    entries: dict[tuple[str, str], dict[str, Entry]] = {}
    for key, entry in snapshot.entries.items():
        cluster, _, rest = key.partition("/")
        name, _, own = rest.partition("/")
        entries.setdefault((cluster, name), {})[own] = entry
    return {
        which: view_of(Snapshot(snapshot.revision, found))
        for which, found in sorted(entries.items())
    }


async def _patient(etcd: Etcd) -> Snapshot:
    """Read from one endpoint or another."""
    attempts = 3
    while True:
        try:
            return await etcd.read_all()
        except RegistryError:
            attempts -= 1
            if attempts == 0:
                raise


def choose(
    sets: Mapping[tuple[str, str], View], cluster: str | None, name: str | None
) -> tuple[str, str]:
    """The one set that is meant; `InvalidRequestError` if it could be several."""
    found = [
        which
        for which in sets
        if (cluster is None or which[0] == cluster) and (name is None or which[1] == name)
    ]
    if len(found) > 1:
        listed = ", ".join(f"{each[1]} in {each[0]}" for each in found)
        raise InvalidRequestError(f"there are several sets ({listed}): say which, with --broker")
    if not found:
        raise BrokerNotFoundError("etcd knows no such set of replicas")
    return found[0]


class ReplicaSet:
    """One set, and what can be asked of it. `close` hangs up."""

    def __init__(self, endpoints: str, cluster: str, name: str) -> None:
        self._etcd = Etcd(parse_endpoints(endpoints), prefix_of(cluster, name), TIMEOUT_MS)

    async def close(self) -> None:
        await self._etcd.close()

    async def view(self) -> View:
        return view_of(await _patient(self._etcd))

    async def promote(self, node: int | None) -> ReplicaSetState:
        """Have the master hand over to a node, or to the best one; nothing acknowledged is lost."""
        view = await self.view()
        master = _master_of(view)
        if node == master:
            raise InvalidRequestError(f"node {node} is the master already")
        await self._ask(master, Request("hand over", -1 if node is None else node))
        return await self._state()

    async def drain(self, node: int) -> ReplicaSetState:
        """Have a node leave the in-sync set, and mastership, so that it can be stopped."""
        await self._ask(node, Request("drain"))
        return await self._state()

    async def elect(self, node: int) -> ReplicaSetState:
        """Have a node become master whatever it lacks, if there is none."""
        await self._ask(node, Request("elect"))
        return await self._state()

    async def truncate(self, node: int) -> ReplicaSetState:
        """Have a node follow the master, and give up what the master lacks."""
        await self._ask(node, Request("truncate"))
        return await self._state()

    async def wait_for_master(self) -> None:
        """Return when there is a master that has told how far it is."""
        while True:
            with contextlib.suppress(RegistryError):
                view = await self.view()
                epoch = view.state.epoch if view.state else 0
                if view.master and view.progress.get(view.master.id, NOWHERE).epoch == epoch:
                    return
            await asyncio.sleep(JOIN_LOOK_SECONDS)

    async def wait_for(self, node: int, report: Callable[[str], None]) -> None:
        """Return when a node is in sync; until then, say how far it is, when that changes.

        One that was to be stopped is told that it is not.
        """
        said = ""
        while True:
            view = await self.view()
            entry = view.nodes.get(node)
            if entry is not None and entry.draining:
                # Not if it is stopping just now: its next start is asked, if need be.
                with contextlib.suppress(RegistryError, InvalidRequestError, BrokerNotFoundError):
                    await self._ask(node, Request("join"))
            status = _node_status(node, view, view.state or ReplicaSetState(0, -1, (), 0))
            if status.is_in_sync and status.role != "missing":
                return
            behind = "not there yet" if status.lag_bytes is None else f"{status.lag_bytes:,} bytes"
            if behind != said:
                report(f"node {node}: {behind}{' behind' if status.lag_bytes is not None else ''}")
                said = behind
            await asyncio.sleep(JOIN_LOOK_SECONDS)

    async def join(
        self, node: int, replicas: int | None, report: Callable[[str], None]
    ) -> ReplicaSetState:
        """Wait until a node is in sync, and count it; without a number, as many as there are."""
        await self.wait_for(node, report)
        view = await self.view()
        assert view.state is not None
        state = view.state
        # A member that is away for a moment is one all the same.
        count = replicas or max(state.replicas, len(view.nodes.keys() | set(state.in_sync)))
        return state if count == state.replicas else await self.set_replicas(count)

    async def set_replicas(self, count: int) -> ReplicaSetState:
        """How many nodes are a whole set from now on."""
        await self._ask(_master_of(await self.view()), Request("replicas", count))
        return await self._state()

    async def _state(self) -> ReplicaSetState:
        state = (await self.view()).state
        assert state is not None
        return state

    async def _there(self, node: int) -> View:
        """What etcd has, once a node is there; one that hangs for a moment comes back."""
        until = monotonic() + AWAY_SECONDS
        while node not in (view := await self.view()).nodes:
            if monotonic() > until:
                raise BrokerNotFoundError(f"node {node} is not there")
            await asyncio.sleep(JOIN_LOOK_SECONDS)
        return view

    async def _ask(self, node: int, request: Request) -> None:
        key = f"requests/{node}"
        before = (await self._there(node)).requests.get(node)
        if before is not None and before[0].answer is None:
            raise InvalidRequestError(f"node {node} is busy with another request: try again")
        lease = await self._etcd.grant_lease(REQUEST_MS)
        expected = {key: before[1] if before else 0}
        revision = await self._etcd.transact(expected, {key: Put(encode(request), lease.number)})
        if not revision:
            raise InvalidRequestError("somebody else asks for something right now: try again")
        try:
            async with asyncio.timeout(REQUEST_MS / 1000):
                answer = None
                while answer is None:
                    await asyncio.sleep(LOOK_SECONDS)
                    found = (await self.view()).requests.get(node)
                    answer = found[0].answer if found else None
        except TimeoutError:
            raise RegistryError(f"node {node} did not answer in {REQUEST_MS} ms") from None
        finally:
            await self._etcd.revoke_lease(lease.number)
        if answer:
            raise InvalidRequestError(answer)

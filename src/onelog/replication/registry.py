"""What a set of replicas agrees on, and the registry (etcd) that keeps it.

The keys of a set, below `/onelog/<cluster>/<broker name>/`:

    state        epoch, master, the in-sync set, how many nodes are a whole set
    master       who is master, and of which epoch; under the master's lease: gone when that is over
    members/<id> which store node <id> has, and how far that was; stays when the node is gone
    nodes/<id>   a node that is there, and where; under its lease. Changes when it starts anew
    progress/<id>   how far a node's log goes; under its lease
    requests/<id>   what somebody asks of a node (`onelog cluster promote`), and its answer

Invariant: `state` is only ever written in a transaction that compares its revision: by a node that
becomes master and finds no `master` key, or by the master while its own `master` key is there.

Every call of a `Registry` returns at once and answers later, by a callback, exactly once. None says
that there was no answer in time: it may have been done, or not, or yet be done. A registry that
answers is right: what is read is the newest state that anybody was told of.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from onelog.errors import RegistryError


class Entry(NamedTuple):
    """A key's value, the revision of its last change, and the lease that it lives under (or 0)."""

    value: bytes
    revision: int
    lease: int


class Put(NamedTuple):
    """A value to be written, under a lease (0 for none)."""

    value: bytes
    lease: int = 0


class Snapshot(NamedTuple):
    """All keys of a set, as they were at a revision of the registry."""

    revision: int
    entries: Mapping[str, Entry]


class Lease(NamedTuple):
    """A lease that was granted, and for how long from each keep-alive on."""

    number: int
    ttl_ms: int


class Registry(Protocol):
    """etcd, as far as one set of replicas needs it; keys are below the set's own."""

    def grant(self, ttl_ms: int, done: Callable[[Lease | None], None]) -> None:
        """A new lease."""
        ...

    def keep_alive(self, lease: int, done: Callable[[bool | None], None]) -> None:
        """Renew a lease; False: it is over."""
        ...

    def revoke(self, lease: int) -> None:
        """End a lease, and the keys under it, if that can be done."""
        ...

    def read(self, done: Callable[[Snapshot | None], None]) -> None:
        """All keys of the set."""
        ...

    def write(
        self,
        expected: Mapping[str, int],
        puts: Mapping[str, Put | None],
        done: Callable[[int | None], None],
    ) -> None:
        """Put keys (None deletes), if all expected keys have their revision (0: are not there).

        The answer is the revision of the change, or 0: nothing has changed, because something is
        not as expected or a lease is over.
        """
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Have it say, from now on, that some key has changed; some changes may go untold."""
        ...


class ReplicaSetState(msgspec.Struct, frozen=True):
    """What the set has decided."""

    epoch: int
    master: int
    in_sync: tuple[int, ...]
    replicas: int


class Mastership(msgspec.Struct, frozen=True):
    """Who is master."""

    id: int
    epoch: int


class Lag(msgspec.Struct, frozen=True):
    """How far a follower is behind, as its master sees it."""

    id: int
    bytes: int
    ms: int


class NodeEntry(msgspec.Struct, frozen=True):
    """A node that is there."""

    address: str
    """Where clients find it."""
    ha_address: str
    """Where its followers find it, while it is master."""
    instance: str
    """Another one for each start of the node."""
    intact: bool = True
    """Whether it has all that it ever said it has; not so after a loss of unflushed writes."""
    draining: bool = False
    """It is to be stopped, and leaves the in-sync set."""
    kafka_address: str = ""
    """Where Kafka's clients find it, while it is master."""
    new: bool = False
    """Its store is not, or is an older copy of, the one that the set knows: it must catch up."""


class MemberEntry(msgspec.Struct, frozen=True):
    """The store of a member, and what it is known to have had."""

    store: str
    start: int
    """How often it was started: a copy that was started less often is an old one."""
    epoch: int = 0
    """Of the last byte before `confirmed`."""
    confirmed: int = 0


class ProgressEntry(msgspec.Struct, frozen=True):
    """How far a node's log goes."""

    epoch: int = 0
    """Of its last record."""
    end: int = 0
    confirmed: int = 0
    fit: bool = True
    """Whether it could be master: not with a full disk."""
    lags: tuple[Lag, ...] = ()
    """Of the followers, if it is the master."""
    vacancy: int = -1
    """The revision of the state that it saw without a master: its log has not grown since."""
    time: int = 0
    """When this was written, in milliseconds since 1970; for people only."""
    known_epoch: int = 0
    """The newest epoch that it has heard of."""


class Request(msgspec.Struct, frozen=True):
    """What is asked of a node, and its answer, if there is one: empty for done, or why not."""

    do: Literal["hand over", "drain", "replicas", "join", "elect", "truncate"]
    target: int = -1
    """Who is to be the next master (-1: the best); or the number of replicas."""
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot, understood."""

    revision: int = 0
    state: ReplicaSetState | None = None
    state_revision: int = 0
    master: Mastership | None = None
    master_revision: int = 0
    master_lease: int = 0
    nodes: Mapping[int, NodeEntry] = field(default_factory=dict)
    node_entries: Mapping[int, Entry] = field(default_factory=dict)
    progress: Mapping[int, ProgressEntry] = field(default_factory=dict)
    members: Mapping[int, MemberEntry] = field(default_factory=dict)
    requests: Mapping[int, tuple[Request, int]] = field(default_factory=dict)
    """By node, with their revisions."""

    def with_state(
        self,
        revision: int,
        state: ReplicaSetState,
        master: Mastership | None = None,
        lease: int = 0,
    ) -> "View":
        """The same after a change of the state, and perhaps of who is master."""
        view = replace(self, revision=revision, state=state, state_revision=revision)
        if master is None:
            return view
        return replace(view, master=master, master_revision=revision, master_lease=lease)


_Record = TypeVar("_Record")
_encoder = msgspec.json.Encoder()
NOTHING = Entry(b"", 0, 0)


def encode(record: msgspec.Struct) -> bytes:
    """A record as its key's value."""
    return _encoder.encode(record)


def _decoded(key: str, entry: Entry, kind: type[_Record]) -> _Record:
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except msgspec.DecodeError as error:
        raise RegistryError(f"the registry's key {key} is not OneLog's: {error}") from None


def view_of(snapshot: Snapshot) -> View:
    """What the keys say; `RegistryError` if they are somebody else's."""
    entries = snapshot.entries
    state, master = entries.get("state", NOTHING), entries.get("master", NOTHING)
    nodes: dict[int, Entry] = {}
    progress: dict[int, ProgressEntry] = {}
    members: dict[int, MemberEntry] = {}
    requests: dict[int, tuple[Request, int]] = {}
    for key, entry in entries.items():
        folder, _, number = key.partition("/")
        if not (number.isascii() and number.isdecimal()):
            continue  # Somebody else's: no node has that name.
        if folder == "nodes":
            nodes[int(number)] = entry
        elif folder == "progress":
            progress[int(number)] = _decoded(key, entry, ProgressEntry)
        elif folder == "members":
            members[int(number)] = _decoded(key, entry, MemberEntry)
        elif folder == "requests":
            requests[int(number)] = _decoded(key, entry, Request), entry.revision
    return View(
        snapshot.revision,
        _decoded("state", state, ReplicaSetState) if state.revision else None,
        state.revision,
        _decoded("master", master, Mastership) if master.revision else None,
        master.revision,
        master.lease,
        {number: _decoded(f"nodes/{number}", each, NodeEntry) for number, each in nodes.items()},
        nodes,
        progress,
        members,
        requests,
    )

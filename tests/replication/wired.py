"""Leaders and followers on real stores, with links in memory that a test moves by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path

from onelog.clock import ManualClock
from onelog.config import ReplicationConfig, StoreConfig
from onelog.errors import OnelogError
from onelog.message import NewMessage
from onelog.replication.epochs import Epochs
from onelog.replication.follower import Follower
from onelog.replication.leader import Leader, NodeRuntime
from onelog.replication.link import Buffer, Session, Touched
from onelog.store.message_store import MessageStore

STORE = StoreConfig(
    segment_bytes=64 << 10, queue_file_entries=1_000, index_slots=100, index_entries=400
)


class MemoryLink:
    """One direction of a connection: what is sent waits until it is moved."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.stuck = False
        self.closed = False

    @property
    def backlog(self) -> int:
        return len(self.sent) if self.stuck else 0

    def send(self, parts: Sequence[Buffer]) -> None:
        if not self.closed:
            for part in parts:
                self.sent += part

    def close(self) -> None:
        self.closed = True


class Wire:
    """A connection between two sessions."""

    def __init__(self, leader: Leader, follower: Follower, *, epochs: bool) -> None:
        self.to_follower, self.to_leader = MemoryLink(), MemoryLink()
        self._leading: Session = leader.connected(self.to_follower, "follower:1", epochs=epochs)
        self._following: Session = follower.connected(self.to_leader, "master:1")
        self._cut = False

    def move(self, size: int = 1 << 30) -> bool:
        """Hand over up to `size` bytes in each direction: whether there were any."""
        moved = False
        for link, session in (
            (self.to_leader, self._leading),
            (self.to_follower, self._following),
        ):
            data = bytes(link.sent[:size])
            if data and not self._cut:
                del link.sent[:size]
                session.received(data)
                moved = True
        return moved

    def settle(self, size: int = 1 << 30) -> None:
        """Hand over until nothing moves."""
        while self.move(size):
            pass

    @property
    def closed(self) -> bool:
        return self.to_follower.closed or self.to_leader.closed

    def cut(self) -> None:
        """The connection is lost."""
        self._cut = True
        self._leading.lost()
        self._following.lost()


class Node:
    """A store with what belongs to it; a leader or a follower."""

    def __init__(
        self, folder: Path, node_id: int, *, gated: bool, store: StoreConfig = STORE
    ) -> None:
        self.clock = ManualClock()
        self.folder = folder
        self.node_id = node_id
        self.store = MessageStore.open(folder, store, self.clock, gated=gated)
        self.epochs = Epochs(folder)
        self.confirmed: list[int] = []
        self.proposals: list[frozenset[int]] = []
        self.cuts: list[tuple[int, str]] = []
        self.soon: list[Callable[[], None]] = []
        self._runtime = NodeRuntime(
            self.clock, lambda _, call: self.soon.append(call), self.soon.append, _at_once
        )

    def lead(self, config: ReplicationConfig, in_sync: frozenset[int] = frozenset()) -> Leader:
        return Leader(
            self.store,
            self.epochs,
            self._runtime,
            config,
            self.node_id,
            on_confirmed=self._on_confirmed,
            propose_in_sync=self.proposals.append,
            recorded=in_sync,
            revision=1,
        )

    def follow(self, *, epochs: bool) -> Follower:
        return Follower(
            self.store,
            self.epochs,
            self._runtime,
            self.node_id,
            on_confirmed=lambda touched: None,
            cut=self._cut,
            with_epochs=epochs,
        )

    def run_soon(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def append(self, count: int, body: bytes = b"x" * 500) -> int:
        """Append so many messages; where the log ends then."""
        self.store.append([message(body + b"%d" % number) for number in range(count)])
        return int(self.store.log_end)

    def bytes_of_log(self) -> bytes:
        log = self.store.log
        found, at = b"", int(log.start)
        while at < self.store.log_end:
            data = self.store.tail.read_raw(at, 1 << 20)
            found += data
            at += len(data)
        return found

    def _on_confirmed(self, offset: int, touched: Touched) -> None:
        self.confirmed.append(offset)

    def _cut(self, offset: int, why: str, then: Callable[[OnelogError | None], None]) -> None:
        self.cuts.append((offset, why))
        self.store.tail.cut(offset, why)
        then(None)


def message(body: bytes, topic: str = "orders", queue_id: int = 0) -> NewMessage:
    """A message of a client."""

    return NewMessage(topic, queue_id, body, born_ms=1_000)


def _at_once(work: Callable[[], None], then: Callable[[], None]) -> None:
    work()
    then()

"""The master's side: sends the log to followers, and knows what is safe.

    appended -> slices of the log to every follower that is idle -> their reports -> confirm

Each follower gets the log from where its own one ends, in slices of the segments, as far as its
connection takes them: a slow one costs no memory. What is not in the page cache is read in a
worker.

**In sync** are the master and those followers that are not behind for longer than `lag_ms`. The set
is recorded by a judge (etcd; without one, the leader's word counts): whoever is in the recorded set
may become master. So confirmed is what every member of that set has, and every node that the judge
is asked to take into it: it may be in it already.

Invariant: in the modes `majority` and `all`, confirmed (and so read or acknowledged) is only what
so many nodes have, all members of the recorded set among them. A leader that is fenced confirms
nothing. Each callback is called exactly once.
"""

import heapq
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from onelog.clock import Clock
from onelog.config import ReplicationConfig
from onelog.core.durable.deadlines import Schedule
from onelog.core.durable.durability import Post, WhenSafe
from onelog.errors import NotMasterError, OnelogError, ReplicaTimeoutError, StoreError, WireError
from onelog.gateways import FollowerState
from onelog.replication.epochs import Epochs
from onelog.replication.link import Buffer, Call, Link, Touched
from onelog.store.message_store import MessageStore
from onelog.wire.replication import default_ha, epoch_ha

log = logging.getLogger(__name__)

SLICE_BYTES = 1 << 20
BACKLOG_BYTES_MAX = 4 << 20
GATHER_MS = 5
"""With acknowledgement by the master alone, followers are sent what came in this time together."""
PROPOSAL_MS = 1_000
"""After this time without an answer, the judge is asked again."""
FOLLOWERS_MAX = 64
NEW_SHARE = 4
"""A new leader gives members this share of the usual time to come, if others are enough."""

Offload = Callable[[Call, Call], None]
"""Runs the first call in a worker, then the second one in the core's thread."""


class NodeRuntime(NamedTuple):
    """Time and threads of a node of a set."""

    clock: Clock
    """Time that only goes forward."""
    schedule: Schedule
    post: Post
    offload: Offload


@dataclass(eq=False)
class Leader:
    """The master's followers."""

    store: MessageStore
    epochs: Epochs
    runtime: NodeRuntime
    config: ReplicationConfig
    node_id: int
    _: KW_ONLY
    on_confirmed: Callable[[int, Touched], None]
    propose_in_sync: Callable[[frozenset[int]], None]
    """Ask for this set to be recorded; `in_sync_is` is told what became of it."""
    recorded: frozenset[int] = frozenset()
    """The in-sync set as the judge has it; a new leader is in it."""
    revision: int = 0
    is_proven: Callable[[], bool] = lambda: True
    """Whether it is certain that no other node is master by now."""

    def __post_init__(self) -> None:
        self.sessions: list[FollowerSession] = []
        self.fenced = False
        self.replicas = self.config.replicas
        """How many nodes are a whole set."""
        self.unfit: frozenset[int] = frozenset()
        """Nodes that must not be in the in-sync set, however far they are."""
        self._paused = False
        self.recorded |= {self.node_id}
        self._began = self.store.log_end
        """Where its epoch begins: who does not have all before it may lack what was confirmed."""
        now = self.runtime.clock.now_ms()
        self._acked: dict[int, int] = {}
        self._caught_up: dict[int, int] = dict.fromkeys(self.recorded, now)
        """When each node had, for the last time, all there was."""
        self._proposed: frozenset[int] = frozenset()
        """Everyone that the judge was asked to take in since it last answered."""
        self._proposal: tuple[frozenset[int], int] | None = None
        self._waiting: list[tuple[int, int, WhenSafe]] = []
        self._numbers = itertools.count()
        self._nameless = itertools.count(-1, -1)
        self.in_sync = len(self.recorded)
        """How many nodes of the recorded set are there and have all, the master included."""
        self.gated = self.config.ack in ("majority", "all")
        self._is_sync = self.store.config.flush == "sync"
        self._flushing = self._gathering = False

    # -- for the core --------------------------------------------------------------------------

    def when_replicated(self, log_offset: int, callback: WhenSafe) -> None:
        """Call back once everything below `log_offset` is with as many nodes as was promised."""
        if self.fenced or self._paused or not self.is_proven():
            callback(NotMasterError("stored, but this broker may be replaced as master by now"))
        elif log_offset <= self.replicated:
            callback(None)
        else:
            heapq.heappush(self._waiting, (log_offset, next(self._numbers), callback))

    def is_current(self) -> bool:
        """Whether this is certainly the master still."""
        return not self.fenced and self.is_proven()

    def pause(self) -> None:
        """Acknowledge nothing that is written from now on: another node is to be master."""
        self._paused = True

    def resume(self) -> None:
        """Stay master after all."""
        self._paused = False

    def acked(self, node_id: int) -> int:
        """Up to where a follower has the log; -1 if it has not told."""
        return self._acked.get(node_id, -1)

    def keeps_up(self, node_id: int) -> bool:
        """Whether a follower was not behind for longer than it may be."""
        return node_id in self._fit(self.runtime.clock.now_ms())

    def available(self, needed: int) -> bool:
        """Whether so many nodes are in sync, the master included, and as many as the mode needs."""
        return not self.fenced and self.in_sync >= max(needed, self.needed)

    @property
    def needed(self) -> int:
        """How many nodes, the master included, have to have what is acknowledged."""
        replicas = self.replicas
        modes = {"local": 1, "one": 2, "majority": replicas // 2 + 1, "all": replicas}
        return modes[self.config.ack]

    @property
    def replicated(self) -> int:
        """Up to where the log is with as many nodes as was promised."""
        if self.gated:
            return self.store.confirmed
        if self.config.ack == "local":
            return self.store.log_end
        acked = [self._acked.get(node, 0) for node in self.recorded if node != self.node_id]
        return max(acked, default=0)

    def appended(self) -> None:
        """The log has grown. Called once in a tick."""
        if self.config.ack != "local":
            self._pump_all()
        elif self.sessions and not self._gathering:
            self._gathering = True
            self.runtime.schedule(GATHER_MS, self._gathered)
        if self.gated and self._is_sync:
            self._watch_flush()
        elif self.gated and len(self.recorded) == 1:
            self._confirm()

    def _watch_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self.store.when_flushed(
                self.store.log_end, lambda error: self.runtime.post(lambda: self._flushed(error))
            )

    def _gathered(self) -> None:
        self._gathering = False
        self._pump_all()

    def _flushed(self, error: StoreError | None) -> None:
        self._flushing = False
        if error is not None:
            log.error("nothing more is confirmed here: %s", error)
            return
        self._confirm()
        if self.store.log.flushed < self.store.log_end and not self.fenced:
            self._watch_flush()

    # -- followers -----------------------------------------------------------------------------

    def connected(self, link: Link, address: str, *, epochs: bool) -> "FollowerSession":
        """A follower connected; `epochs`: it is one that compares histories."""
        kind = EpochSession if epochs else DefaultSession
        session = kind(self, link, address)
        if self.fenced or len(self.sessions) >= FOLLOWERS_MAX:
            session.refuse("this node takes no followers now")
        else:
            self.sessions.append(session)
        return session

    def named(self, session: "FollowerSession", node_id: int) -> None:
        """A follower said who it is. If it was connected before, that is over."""
        if node_id == self.node_id:
            raise WireError(f"it says that it is node {node_id}, which is this one")
        for other in list(self.sessions):
            if other is not session and other.node_id == node_id:
                other.refuse(f"node {node_id} has connected again")
        session.node_id = node_id

    def nameless(self) -> int:
        """An id for a follower that has none."""
        return next(self._nameless)

    def acknowledged(self, session: "FollowerSession", offset: int) -> None:
        """A follower has the log up to here."""
        node = session.node_id
        if offset < self._acked.get(node, 0):
            self._caught_up.pop(node, None)  # It has lost something: another disk, perhaps.
        self._acked[node] = offset
        now = self.runtime.clock.now_ms()
        if offset >= session.mark:
            self._caught_up[node] = now if offset >= self.store.log_end else session.marked_ms
            session.mark, session.marked_ms = self.store.log_end, now
        if (node in self.recorded) != self._belongs(session, now):
            self._review()
        self._confirm()

    def gone(self, session: "FollowerSession") -> None:
        """A follower is not connected any more. It stays in sync for a while."""
        if session in self.sessions:
            self.sessions.remove(session)
            log.info("follower %s is gone", session)
            if session.node_id < 0:
                # It comes back under another number.
                self._acked.pop(session.node_id, None)
                self._caught_up.pop(session.node_id, None)

    def _belongs(self, session: "FollowerSession", now: int) -> bool:
        """Whether a follower is one that could become master."""
        node = session.node_id
        if node in self.unfit:
            return False
        if now - self._caught_up.get(node, -(1 << 60)) > self.config.lag_ms:
            return False
        if self.gated and session.acked < self.store.confirmed:
            return False
        return node in self.recorded or (not session.is_learner and session.acked >= self._began)

    # -- the in-sync set -----------------------------------------------------------------------

    def in_sync_is(self, ids: frozenset[int], revision: int, replicas: int | None = None) -> None:
        """What the judge has recorded, and which record of it that is."""
        if revision < self.revision or self.fenced:
            return
        self.replicas = replicas or self.replicas
        if revision > self.revision:
            # Whatever was asked for on the record before has happened, or never will.
            self._proposal, self._proposed = None, frozenset()
        if ids != self.recorded:
            log.info("in sync: %s", sorted(ids))
        self.recorded, self.revision = ids, revision
        self.in_sync = len(self._fit(self.runtime.clock.now_ms()) & ids)
        self._confirm()

    def _review(self) -> None:
        """Ask for another set, if it should be another one."""
        now = self.runtime.clock.now_ms()
        fit = self._fit(now)
        self.in_sync = len(fit & self.recorded)
        wanted = set(fit)
        if self.gated and len(wanted) < self.needed:
            # Without those who are late nothing can be confirmed either, but they can be elected.
            lost = {
                each.node_id for each in self.sessions if 0 <= each.acked < self.store.confirmed
            }
            wanted |= self.recorded - self.unfit - lost
        ids = frozenset(wanted)
        if ids == self.recorded and self._proposal is None:
            return
        if self._proposal is not None:
            proposed, proposed_ms = self._proposal
            if now - proposed_ms < PROPOSAL_MS:
                return
            ids = proposed  # It may have been recorded: the same again can do no harm.
        self._proposal = (ids, now)
        self._proposed |= ids
        self.propose_in_sync(ids)

    def _fit(self, now: int) -> set[int]:
        """Who has all that counts, and was there lately."""
        fit = {self.node_id}
        connected = {each.node_id: each for each in self.sessions if each.acked >= 0}
        for node, session in connected.items():
            if self._belongs(session, now):
                fit.add(node)
        # Who has not come since this node leads is as a rule the one that led before. With enough
        # others there, nobody need wait for it any longer than it takes to connect.
        hurries = self.gated and len(fit) >= self.needed
        for node in self.recorded - connected.keys() - self.unfit:
            is_new = hurries and node not in self._acked
            patience_ms = self.config.lag_ms // (NEW_SHARE if is_new else 1)
            if now - self._caught_up.get(node, 0) <= patience_ms:
                fit.add(node)
        return fit

    # -- what is safe --------------------------------------------------------------------------

    def _confirm(self) -> None:
        """Confirm what everyone who counts has; tell those who wait."""
        if self.fenced or not self.is_proven():
            return
        if self.gated and len(self.recorded) >= self.needed and self.node_id in self.recorded:
            own = self.store.log.flushed if self._is_sync else self.store.log_end
            others = (self.recorded | self._proposed) - {self.node_id}
            end = min([int(own), *(self._acked.get(node, 0) for node in others)])
            if end > self.store.confirmed:
                try:
                    touched = self.store.tail.confirm(end)
                except StoreError as error:
                    # What came as bytes, before this node led, has no room in its queues.
                    log.error("messages cannot be entered into queues, tried again: %s", error)
                    return
                self.on_confirmed(end, touched)
        waiting = self._waiting
        if waiting:
            safe = self.replicated
            while waiting and waiting[0][0] <= safe and not self.fenced:
                heapq.heappop(waiting)[2](None)

    def tick(self) -> None:
        """Time passes: called every 100 ms or so."""
        if self.fenced:
            return
        now = self.runtime.clock.now_ms()
        for session in list(self.sessions):
            if session.acked >= self.store.log_end:
                node = session.node_id
                self._caught_up[node] = max(self._caught_up.get(node, 0), session.with_us(now))
            session.tick(now)
        self.epochs.forget(int(self.store.log.start))
        self._review()
        self._confirm()
        self._pump_all()

    def fence(self) -> None:
        """Acknowledge nothing from now on: another node may be master already."""
        self.fenced = True
        waiting, self._waiting = self._waiting, []
        for _, _, callback in waiting:
            callback(_fenced())
        for session in list(self.sessions):
            session.refuse("this node is not the master any more")

    @property
    def followers(self) -> list[FollowerState]:
        now, end = self.runtime.clock.now_ms(), self.store.log_end
        return [
            FollowerState(
                each.node_id,
                each.address,
                max(0, each.acked),
                end - max(0, each.acked),
                max(0, now - self._caught_up.get(each.node_id, now)),
                each.node_id in self.recorded,
            )
            for each in self.sessions
        ]

    # -- sending -------------------------------------------------------------------------------

    def _pump_all(self) -> None:
        for session in list(self.sessions):
            session.pump()

    def read_later(
        self, offset: int, size: int, then: Callable[[bytes | OnelogError], None]
    ) -> None:
        """Read a part of the log that is on disk only."""
        found: list[bytes | OnelogError] = []

        def read() -> None:
            try:
                found.append(self.store.log.read_cold(offset, size))
            except OnelogError as error:
                found.append(error)

        self.runtime.offload(read, lambda: then(found[0]))


def _fenced() -> OnelogError:
    return ReplicaTimeoutError(
        "stored, but this broker was replaced as master before its replicas confirmed it"
    )


@dataclass(eq=False)
class FollowerSession(ABC):
    """One connection of a follower."""

    leader: Leader
    link: Link
    address: str
    node_id: int = 0
    acked: int = -1
    """Up to where it has the log; -1 before it has told."""
    is_learner: bool = False
    mark: int = 0
    marked_ms: int = 0
    """Where the log ended at some time: when the follower gets there, it had all there was then."""
    heartbeat_ms: int = 5_000
    idle_ms: int = 20_000
    requests_first: bool = False
    """Whether its first report says where to begin, and not yet what it has."""
    _next: int = -1
    _reading: bool = False
    _closed: bool = False
    _heard_ms: int = field(init=False)
    _sent_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self._heard_ms = self._sent_ms = self.leader.runtime.clock.now_ms()

    def __str__(self) -> str:
        return f"{self.node_id} at {self.address}" if self.node_id > 0 else self.address

    def received(self, data: Buffer) -> None:
        """Bytes arrived."""
        if self._closed:
            return
        self._heard_ms = self.leader.runtime.clock.now_ms()
        try:
            self._handle(data)
        except OnelogError as error:
            self.refuse(str(error))

    def ready(self) -> None:
        """The backlog is small again."""
        self.pump()

    def lost(self) -> None:
        """The connection is gone."""
        self._closed = True
        self.leader.gone(self)

    def refuse(self, reason: str) -> None:
        """Close the connection, and say why."""
        if not self._closed:
            self._closed = True
            log.warning("follower %s: connection closed: %s", self, reason)
            self.leader.gone(self)
            self.link.close()

    @abstractmethod
    def _handle(self, data: Buffer) -> None:
        """Take in what the follower says."""

    @abstractmethod
    def _header(self, offset: int, size: int) -> bytes:
        """What goes before bytes of the log."""

    def _part(self, size: int) -> int:
        """How much of `size` bytes from `_next` on can go with one header."""
        return size

    def _reported(self, offset: int) -> None:
        """The follower's log ends at `offset`. The first time it says so, it asks to begin."""
        store = self.leader.store
        end, start = store.log_end, int(store.log.start)
        if offset > end:
            raise WireError(
                f"its log ends at {offset}, behind this one's end {end}: it has what this master "
                "never wrote or has lost; keep the better one, and move the other store away"
            )
        if self._next < 0:
            # If that leaves a gap, the follower sees it, and says what is to be done.
            self._next = max(offset, start)
            self.marked_ms, self.mark = self.leader.runtime.clock.now_ms(), end
            log.info("follower %s goes on from %d; the log ends at %d", self, self._next, end)
            if self.requests_first:
                self.pump()
                return
        elif offset > self._next:
            raise WireError(f"it reports {offset}, but was sent the log up to {self._next} only")
        self.acked = offset
        self.leader.acknowledged(self, offset)
        self.pump()

    def pump(self) -> None:
        """Send what there is, as far as the connection takes it."""
        leader, link = self.leader, self.link
        store = leader.store
        end = store.log_end
        while 0 <= self._next < end and link.backlog < BACKLOG_BYTES_MAX:
            if self._reading or self._closed:
                return
            offset = self._next
            try:
                segment = store.log.segment_at(offset)
                size = min(SLICE_BYTES, end - offset, segment.start + segment.size - offset)
                size = self._part(size)
                if not store.log.is_warm(offset, size):
                    self._reading = True
                    leader.read_later(offset, size, self._read)
                    return
                data = store.tail.read_raw(offset, size)
            except OnelogError as error:
                self.refuse(f"the log cannot be read at {offset}: {error}")
                return
            self._send(offset, data)

    def _read(self, data: bytes | OnelogError) -> None:
        self._reading = False
        if self._closed:
            return
        if isinstance(data, OnelogError):
            self.refuse(f"the log cannot be read at {self._next}: {data}")
            return
        self._send(self._next, data)
        self.pump()

    def _send(self, offset: int, data: Buffer) -> None:
        self._next = offset + len(data)
        self._sent_ms = self.leader.runtime.clock.now_ms()
        self.link.send([self._header(offset, len(data)), data])

    def with_us(self, now: int) -> int:
        """Until when it is taken to be there: not longer than its next report may take.

        Nobody writes while all wait for a follower that is gone: that alone would keep it in sync.
        """
        return min(now, self._heard_ms + self.heartbeat_ms * 5 // 4)

    def tick(self, now: int) -> None:
        """Time passes."""
        if now - self._heard_ms >= self.idle_ms:
            self.refuse(f"nothing was heard of it for {now - self._heard_ms} ms")
        elif self._next >= 0 and self._is_time_for_word(now):
            self._sent_ms = now
            self.link.send([self._header(self._next, 0)])

    def _is_time_for_word(self, now: int) -> bool:
        return now - self._sent_ms >= self.heartbeat_ms


class DefaultSession(FollowerSession):
    """A follower that reports where its log ends, and nothing else: RocketMQ's slave."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.node_id = self.leader.nameless()
        self._reader = default_ha.ReportReader()

    def _handle(self, data: Buffer) -> None:
        offset = self._reader.feed(data)
        if offset is not None:
            self._reported(offset)

    def _header(self, offset: int, size: int) -> bytes:
        return default_ha.encode_header(offset, size)


class EpochSession(FollowerSession):
    """A follower that compares histories first, and is told what is confirmed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.heartbeat_ms, self.idle_ms = 500, 5_000
        self.requests_first = True
        self._reader = epoch_ha.FollowerReader()
        self._greeted = False
        self._confirmed_sent = -1

    def _handle(self, data: Buffer) -> None:
        found = self._reader.feed(data)
        for number, each in enumerate(found, 1):
            if isinstance(each, epoch_ha.Greeting):
                self._greet(each)
            elif not self._greeted:
                raise WireError("it reports before it has said who it is")
            elif self._next < 0 or number == len(found):
                self._reported(each.offset)  # Those between the first and the last say less.

    def _greet(self, greeting: epoch_ha.Greeting) -> None:
        if self._greeted:
            raise WireError("it greets for the second time")
        self._greeted = True
        self.leader.named(self, greeting.node_id)
        self.is_learner = greeting.is_learner
        epochs = self.leader.epochs
        end = self.leader.store.log_end
        self.link.send([epoch_ha.encode_history(end, epochs.last, epochs.entries)])

    def _part(self, size: int) -> int:
        *_, upto = self.leader.epochs.at(self._next)
        return size if upto is None else min(size, upto - self._next)

    def _header(self, offset: int, size: int) -> bytes:
        epoch, start, _ = self.leader.epochs.at(offset)
        self._confirmed_sent = confirmed = self.leader.store.confirmed
        return epoch_ha.encode_header(offset, size, epoch, min(start, offset), confirmed)

    def _is_time_for_word(self, now: int) -> bool:
        return self._confirmed_sent < self.leader.store.confirmed or super()._is_time_for_word(now)

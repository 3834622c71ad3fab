"""A replica's side: takes the master's log, byte for byte, and reports how far it is.

    with epochs   greet -> compare histories -> cut what is not the master's
    always        ask from a little before the own end -> are the bytes the same? -> go on

Bytes are written as they arrive, whole records or not, and are told back once per arrival; with
synchronous flush, once they are on disk. What is confirmed is entered into the queues, some at a
time.

Invariant: the log is a prefix of the master's, from where it begins on. What does not continue it,
or differs where both have it, ends the connection with a message that says what to do; nothing of
it is written.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from onelog.clock import Clock
from onelog.errors import OnelogError, StoreError, WireError
from onelog.replication.epochs import Epochs, last_shared
from onelog.replication.leader import NodeRuntime
from onelog.replication.link import Buffer, Link, Touched
from onelog.store.message_store import MessageStore
from onelog.wire.replication import default_ha, epoch_ha

log = logging.getLogger(__name__)

CONFIRM_BYTES_MIN, CONFIRM_BYTES_MAX = 256 << 10, 4 << 20
CONFIRM_RECORDS = 3_000
"""What is entered into the queues in one go: much costs less, but others wait for so long."""
CONFIRM_MS = 10
"""How long less than that waits for more."""
OVERLAP_BYTES = 64 << 10
"""What is asked for again, and compared: records name their places and times, so logs that differ
somewhere do not have the same end. Histories alone do not tell: every set begins with epoch 1."""

Cut = Callable[[int, str, Callable[[OnelogError | None], None]], None]
"""Ends the log at a place, and says so when that is done."""


@dataclass(eq=False)
class Follower:
    """A node that follows."""

    store: MessageStore
    epochs: Epochs
    runtime: NodeRuntime
    node_id: int
    _: KW_ONLY
    on_confirmed: Callable[[Touched], None]
    cut: Cut
    with_epochs: bool
    keeps: Callable[[], int] = lambda: 0
    """Up to where the log is not cut because a master lacks it."""
    gives_up: Callable[[], bool] = lambda: False
    """Whether somebody has said that what the master lacks may go."""
    drop_doubtful: Callable[[], None] = lambda: None
    """Cuts what may be torn; called when a master has shown its history."""

    def __post_init__(self) -> None:
        self.session: MasterSession | None = None
        self.confirmable = 0
        """What may be entered into the queues, as far as it is here."""
        self.stopped = False
        self._is_confirming = False
        self._step_bytes = CONFIRM_BYTES_MIN
        self.is_sync = self.store.config.flush == "sync"
        self.hindrance = ""
        """Why it is not following now; empty while it is, or has not tried."""

    def connected(self, link: Link, address: str) -> "MasterSession":
        """A connection to the master is there. There is one at a time."""
        if self.session is not None:
            self.session.end("there is a new connection")
        kind = EpochSession if self.with_epochs else DefaultSession
        self.session = kind(self, link, address)
        self.session.begin()
        return self.session

    def stop(self) -> None:
        self.stopped = True
        if self.session is not None:
            self.session.close()

    def tick(self) -> None:
        """Time passes: called every 100 ms or so."""
        if self.session is not None:
            self.session.tick(self.runtime.clock.now_ms())
        if not self._is_confirming:
            self._confirm_some()

    def confirm(self, offset: int) -> None:
        """The master says that so much is confirmed."""
        self.confirmable = max(self.confirmable, offset)
        if min(self.confirmable, self.store.log_end) - self.store.confirmed >= self._step_bytes:
            self._confirm_some()
        elif not self._is_confirming:
            self._is_confirming = True
            self.runtime.schedule(CONFIRM_MS, self._confirm_some)

    def _confirm_some(self) -> None:
        self._is_confirming = False
        if self.stopped:
            return
        store = self.store
        before, records = store.confirmed, store.tail.records_received
        target = min(self.confirmable, store.log_end)
        if target <= before:
            return
        try:
            touched = store.tail.confirm(min(target, before + self._step_bytes))
        except StoreError as error:
            # Nothing is lost; the next tick tries again.
            self.hindrance = f"messages cannot be entered into their queues: {error}"
            return
        entered, records = store.confirmed - before, store.tail.records_received - records
        is_stuck = not entered and before + self._step_bytes < target
        if is_stuck:
            self._step_bytes *= 2  # One record is larger than a step.
        else:
            fitting = entered * CONFIRM_RECORDS // max(1, records)
            self._step_bytes = min(max(fitting, CONFIRM_BYTES_MIN), CONFIRM_BYTES_MAX)
        self.on_confirmed(touched)
        if is_stuck or before < store.confirmed < target:
            self._is_confirming = True
            self.runtime.schedule(0, self._confirm_some)

    @property
    def is_attached(self) -> bool:
        """Whether the master knows, from this connection, how far this node is."""
        return self.session is not None and self.session.is_attached

    @property
    def safe_end(self) -> int:
        """What the master may be told that this node has."""
        store = self.store
        return (
            min(store.tail.raw_end, int(store.log.flushed)) if self.is_sync else store.tail.raw_end
        )

    def when_flushed(self, then: Callable[[OnelogError | None], None]) -> None:
        """Call once what is here now is on disk, if that was asked for."""
        if not self.is_sync or self.store.log.flushed >= self.store.log_end:
            then(None)
        else:
            self.store.when_flushed(
                self.store.log_end, lambda error: self.runtime.post(lambda: then(error))
            )


@dataclass(eq=False)
class MasterName:
    """What a follower's core is told of its master: one that is not there is not named.

    Then the follower does what it can for it.
    """

    clock: Clock
    gone_ms: int
    """How long a master may be out of reach before it counts as gone."""
    _tell: Callable[[str], None]
    _address: str = ""
    _reported: str = ""
    _attached_ms: int = 0

    def is_at(self, address: str) -> None:
        self._address = self._reported = address
        self._attached_ms = self.clock.now_ms()
        self._tell(address)

    def tick(self, follower: Follower) -> None:
        now = self.clock.now_ms()
        if follower.is_attached:
            self._attached_ms = now
        address = "" if now - self._attached_ms > self.gone_ms else self._address
        if address != self._reported:
            self._reported = address
            self._tell(address)


@dataclass(eq=False)
class MasterSession(ABC):
    """One connection to the master."""

    follower: Follower
    link: Link
    address: str
    _next: int = 0
    """The place of the next byte that is expected."""
    _closed: bool = False
    _reported: int = -1
    _flushing: bool = False
    heartbeat_ms: int = 5_000
    idle_ms: int = 20_000
    _heard_ms: int = field(init=False)
    _sent_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self._heard_ms = self._sent_ms = self.follower.runtime.clock.now_ms()

    @property
    def is_attached(self) -> bool:
        """Whether the master was told how far this node is."""
        return self._reported >= 0

    def begin(self) -> None:
        """Say the first word, when the log is fit to be continued."""
        follower = self.follower
        try:
            follower.store.tail.drop_partial()
        except OnelogError as error:
            self.end(str(error))
            return
        if follower.store.damage:
            start = min(each.start for each in follower.store.damage)
            follower.cut(
                start, "the log is damaged here, and is had from the master again", self._mended
            )
        else:
            follower.when_flushed(self._fit_to_greet)

    def _mended(self, error: OnelogError | None) -> None:
        if error is not None:
            self.end(f"the damage of the log cannot be cut off: {error}")
        elif not self._closed:
            self.follower.epochs.cut(self.follower.store.log_end)
            self.follower.when_flushed(self._fit_to_greet)

    def _fit_to_greet(self, error: OnelogError | None) -> None:
        if error is not None:
            self.end(str(error))
        elif not self._closed:
            self._greet()

    def received(self, data: Buffer) -> None:
        """Bytes arrived."""
        if self._closed:
            return
        self._heard_ms = self.follower.runtime.clock.now_ms()
        try:
            self._handle(data)
            self._tell()  # First: somebody may be waiting for it.
            self._confirm()
        except OnelogError as error:
            self.end(str(error))

    def ready(self) -> None:
        """The backlog is small again."""
        self._tell()

    def lost(self) -> None:
        """The connection is gone."""
        if not self._closed and self._reported >= 0 and not self._is_compared:
            log.warning(
                "the master at %s sent nothing from %d on, though this log goes on to %d: if its "
                "log is shorter, keep the better one of both, and move the other store away",
                self.address,
                self._next,
                self.follower.store.tail.raw_end,
            )
        self._closed = True
        if self.follower.session is self:
            self.follower.session = None

    def end(self, reason: str) -> None:
        """Close the connection, and say why."""
        if self._closed:
            return
        self._closed = True
        # The same trouble again and again is told once.
        level = logging.DEBUG if reason == self.follower.hindrance else logging.WARNING
        self.follower.hindrance = reason
        log.log(level, "connection to the master at %s closed: %s", self.address, reason)
        self.close()

    def close(self) -> None:
        """Close the connection: it is not needed any more."""
        self._closed = True
        self.link.close()
        if self.follower.session is self:
            self.follower.session = None

    @abstractmethod
    def _greet(self) -> None:
        """Say the first word."""

    @abstractmethod
    def _handle(self, data: Buffer) -> None:
        """Take in what the master sends."""

    @abstractmethod
    def _report(self, offset: int) -> bytes:
        """A report."""

    @abstractmethod
    def _confirm(self) -> None:
        """Have entered into the queues what may be."""

    def _append(self, offset: int, data: memoryview) -> None:
        """Bytes of the log: the next ones."""
        store = self.follower.store
        if self._next == 0 and offset % store.log.segment_bytes == 0:
            self._next = offset  # The first ones of all: the log begins where the master has it.
        elif self._next < offset <= store.tail.raw_end:
            self._next = offset  # The master has deleted what is before.
        if offset != self._next:
            raise WireError(
                f"it sent byte {offset} of the log, but byte {self._next} is the next one: if the "
                "master has deleted what is between, move this store away, and it is copied anew"
            )
        if not data:
            return
        self._next += len(data)
        known = store.tail.raw_end - offset
        if known > 0 and offset >= store.log.start:
            self._compare(offset, data[:known])
            offset, data = offset + known, data[known:]
        if data:
            store.tail.append_raw(offset, data)
            self.follower.hindrance = ""

    def _compare(self, offset: int, data: memoryview) -> None:
        while data:
            mine = self.follower.store.tail.read_raw(offset, len(data))
            if mine != data[: len(mine)]:
                raise WireError(
                    f"its log differs from this one between {offset} and {offset + len(mine)}: "
                    "this store is no copy of it; keep the better one, and move the other away"
                )
            offset, data = offset + len(mine), data[len(mine) :]

    def _tell(self) -> None:
        """Report how far the log came, if it did."""
        follower = self.follower
        if self._closed or not self._is_compared:
            return
        end = follower.safe_end
        if end > self._reported:
            self._say(end)
        if follower.is_sync and end < follower.store.log_end and not self._flushing:
            self._flushing = True
            follower.when_flushed(self._flushed)

    @property
    def _is_compared(self) -> bool:
        """Whether all that was asked for again has come, and was the same."""
        return self._reported >= 0 and self._next >= self.follower.store.tail.raw_end

    def _ask(self) -> None:
        """Ask for the log, from a little before its end here."""
        store = self.follower.store
        end = store.tail.raw_end
        # Not 0 if there is anything: that would say that there is nothing.
        self._next = max(int(store.log.start), end - OVERLAP_BYTES, 1) if end else 0
        log.info("following the master at %s from %d on", self.address, end)
        self._say(self._next)

    def _flushed(self, error: OnelogError | None) -> None:
        self._flushing = False
        if error is not None:
            self.end(str(error))
        self._tell()

    def _say(self, offset: int) -> None:
        self._reported = offset
        self._sent_ms = self.follower.runtime.clock.now_ms()
        self.link.send([self._report(offset)])

    def tick(self, now: int) -> None:
        """Time passes."""
        if now - self._heard_ms >= self.idle_ms:
            self.end(f"nothing was heard of it for {now - self._heard_ms} ms")
        elif self._is_compared and now - self._sent_ms >= self.heartbeat_ms:
            self._say(max(self._reported, self.follower.safe_end))


class DefaultSession(MasterSession):
    """A master that sends from where it is asked to: RocketMQ's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reader = default_ha.TransferReader()

    def _greet(self) -> None:
        self._ask()

    def _handle(self, data: Buffer) -> None:
        for piece in self._reader.feed(data):
            if self._reported < 0:
                raise WireError("it sent something before it was asked to")
            self._append(piece.offset, piece.data)

    def _confirm(self) -> None:
        self.follower.confirm(self.follower.store.log_end)

    def _report(self, offset: int) -> bytes:
        return default_ha.encode_report(offset)


class EpochSession(MasterSession):
    """A master that compares histories first, and tells what is confirmed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.heartbeat_ms, self.idle_ms = 500, 5_000
        self._reader = epoch_ha.MasterReader()
        self._greeted = False
        self._confirmed = 0

    def _greet(self) -> None:
        self._greeted = True
        self._sent_ms = self.follower.runtime.clock.now_ms()
        greeting = epoch_ha.Greeting(self.follower.node_id)
        self.link.send([epoch_ha.encode_greeting(greeting)])

    def _report(self, offset: int) -> bytes:
        return epoch_ha.encode_report(offset)

    def _handle(self, data: Buffer) -> None:
        for each in self._reader.feed(data):
            if isinstance(each, epoch_ha.History):
                self._compare_histories(each)
            elif self._reported < 0:
                raise WireError("it sent bytes of the log before it was asked to")
            else:
                self._take(each)

    def _confirm(self) -> None:
        if self._reported >= 0:
            self.follower.confirm(self._confirmed)

    def _take(self, piece: epoch_ha.LogChunk) -> None:
        epochs, known = self.follower.epochs, self.follower.store.tail.raw_end
        is_new = piece.offset == self._next and piece.offset + len(piece.data) > known
        if is_new and piece.data and piece.epoch != epochs.last:
            if piece.epoch < epochs.last or (epochs.entries and piece.epoch_start != piece.offset):
                raise WireError(
                    f"it sent bytes of epoch {piece.epoch} from {piece.epoch_start} on at "
                    f"{piece.offset}; the last epoch here is {epochs.last}"
                )
            epochs.begin(piece.epoch, piece.epoch_start)
        self._append(piece.offset, piece.data)
        self._confirmed = piece.confirmed

    def _compare_histories(self, history: epoch_ha.History) -> None:
        follower = self.follower
        store, epochs = follower.store, follower.epochs
        if not self._greeted or self._reported >= 0:
            raise WireError("it sent its history without being asked")
        if not history.epochs:
            raise WireError("it has no epochs: it is no master of a set")
        if history.epoch < epochs.last:
            raise WireError(
                f"it is master of epoch {history.epoch}, but epoch {epochs.last} is known here: "
                "it was replaced. If this lasts, etcd has lost its data: move this store away, and "
                "it is copied from the master"
            )
        try:
            follower.drop_doubtful()
        except OnelogError as error:
            self._go_on(error)
            return
        end = store.tail.raw_end
        if end == int(store.log.start):
            self._go_on(None)  # Nothing is here that could differ.
            return
        if not epochs.entries:
            raise WireError(
                "this store has messages, but was never part of a replicated set: move it away, "
                "and it is copied from the master"
            )
        common = last_shared(epochs.entries, end, history.epochs, history.end)
        start = int(store.log.start)
        if common is None and (store.confirmed <= start or follower.gives_up()):
            # Nobody but this node had any of it.
            common = start if start == history.epochs[0][1] else None
        if common is None or common < start:
            raise WireError(
                f"its epochs {list(history.epochs)[-5:]} and the ones of this store "
                f"{epochs.entries[-5:]} have nothing in common: if this node has the messages that "
                "count, stop the set, and start this node first; if the master has, move this "
                "store away, and it is copied from the master (or, if nothing was deleted yet: "
                f"`onelog cluster truncate {follower.node_id}`)"
            )
        kept = follower.keeps()
        if common < min(kept, end):
            raise WireError(
                f"it has the log of this node up to {common} only, where {kept} is confirmed: it "
                "lacks messages that were acknowledged, and nothing is cut here. Start the node "
                "that has them all and make it master (`onelog cluster promote`); or give them up: "
                f"`onelog cluster truncate {follower.node_id}`"
            )
        if common < end:
            why = f"the master of epoch {history.epoch} does not have what follows"
            follower.cut(common, why, self._go_on)
        else:
            self._go_on(None)

    def _go_on(self, error: OnelogError | None) -> None:
        if error is not None:
            self.end(f"the log cannot be cut: {error}")
        elif not self._closed:
            self.follower.epochs.cut(self.follower.store.log_end)
            self._ask()
            if self._is_compared:
                self._say(self.follower.safe_end)

"""Batches that are written at once and judged later: sequences of producers, open transactions.

A producer has an id and an epoch, and numbers its messages in each queue. That tells a repeated
batch from a new one, and a batch out of order from one that follows.

What is open and what was aborted is for readers, also those who have only the files
(`store.outcomes`).

Invariant: what is here follows from the batches in the log; what is kept elsewhere only saves
reading them again.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onelog.errors import (
    BrokerBusyError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    TransactionStateError,
)
from onelog.store.outcomes import Outcomes

BATCHES_KEPT = 5
"""As many batches may be on their way at once, so as many can be repeated."""
SEQUENCES = 1 << 31
UNKNOWN = -1
"""The offset of a batch that is on its way into the log."""


class Stamp(NamedTuple):
    """What a batch says of its producer."""

    producer_id: int
    epoch: int
    first: int
    records: int
    transactional: bool = False

    @property
    def last(self) -> int:
        """The number of its last message."""
        return (self.first + self.records - 1) % SEQUENCES


UNNUMBERED = Stamp(-1, -1, -1, 0)
"""Of a batch that is nobody's."""


@dataclass(slots=True, eq=False)
class AcceptedBatch:
    """A batch that was taken: its numbers, and where it is, once that is known."""

    first: int
    last: int
    offset: int = UNKNOWN


@dataclass(slots=True)
class Producer:
    """What one queue knows of one producer."""

    epoch: int
    sent: deque[AcceptedBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    seen_ms: int = 0


class QueueProducers(Outcomes):
    """The producers of one queue."""

    __slots__ = ("_unconfirmed", "on_the_way", "producers")

    def __init__(self) -> None:
        super().__init__()
        self.producers: dict[int, Producer] = {}
        self.on_the_way = 0
        """Batches that were taken, and are not in the log yet."""
        self._unconfirmed: list[tuple[int, int]] = []
        """Where transactions begin, and the markers that end them, which nobody may see yet."""

    def stable_end(self, end: int) -> int:
        """Where readers of committed messages stop, in a queue of which they see all below `end`.

        A marker that they do not see may be lost with the master, and with it how things ended.
        """
        found = super().stable_end(end)
        if self._unconfirmed:
            self._unconfirmed = [each for each in self._unconfirmed if each[1] >= end]
            return min(found, min(self._unconfirmed, default=(found, 0))[0])
        return found

    def take(self, stamp: Stamp, end: int, now_ms: int) -> AcceptedBatch | None:
        """Take a batch, which is to be stored at `end` or behind; None if it was there before.

        To be followed by `stored` or `failed`. What is wrong with it is raised.
        """
        producer_id, epoch, first, _, transactional = stamp
        known = self.producers.get(producer_id)
        if known is not None and self._repeated(known, stamp) is not None:
            return None
        if known is None or epoch > known.epoch:
            known = self.producers[producer_id] = Producer(epoch)
        known.seen_ms = now_ms
        sent = AcceptedBatch(first, stamp.last)
        known.sent.append(sent)
        if transactional:
            self.open.setdefault(producer_id, end)
        self.on_the_way += 1
        return sent

    def repeated(self, stamp: Stamp) -> AcceptedBatch | None:
        """The batch that this one repeats, if it repeats one."""
        known = self.producers.get(stamp.producer_id)
        return None if known is None else self._repeated(known, stamp)

    def _repeated(self, known: Producer, stamp: Stamp) -> AcceptedBatch | None:
        """`repeated`, which also raises what is wrong with a batch."""
        producer_id, epoch, first, _, transactional = stamp
        if epoch < known.epoch:
            raise InvalidProducerEpochError(
                f"producer {producer_id} is at epoch {known.epoch}: another one has taken its place"
            )
        if epoch > known.epoch:
            if first != 0:
                raise _out_of_order(producer_id, first, 0)
            return None
        for sent in known.sent:
            if (sent.first, sent.last) == (first, stamp.last):
                if sent.offset == UNKNOWN:
                    raise BrokerBusyError("the same batch is on its way to the disk already")
                return sent
        if producer_id in self.open and not transactional:
            raise TransactionStateError(
                f"producer {producer_id} has an open transaction: its batches belong to that"
            )
        if known.sent:
            expected = (known.sent[-1].last + 1) % SEQUENCES
            if first != expected:
                raise _out_of_order(producer_id, first, expected)
        return None

    def stored(self, stamp: Stamp, sent: AcceptedBatch, offset: int) -> None:
        """A batch that was taken is in the queue."""
        sent.offset = offset
        self.on_the_way -= 1

    def failed(self, stamp: Stamp, sent: AcceptedBatch) -> None:
        """A batch that was taken is not in the queue, or the queue is not this node's any more."""
        if sent.offset == UNKNOWN:
            self.on_the_way -= 1
        known = self.producers.get(stamp.producer_id)
        if known is not None and sent in known.sent:
            known.sent.remove(sent)

    def replay(self, stamp: Stamp, offset: int, now_ms: int) -> None:
        """A batch was found in the log."""
        known = self.producers.get(stamp.producer_id)
        if known is None or stamp.epoch > known.epoch:
            known = self.producers[stamp.producer_id] = Producer(stamp.epoch)
        known.seen_ms = now_ms
        known.sent.append(AcceptedBatch(stamp.first, stamp.last, offset))
        if stamp.transactional:
            self.open.setdefault(stamp.producer_id, offset)

    def ended(self, producer_id: int, epoch: int, offset: int, now_ms: int, *, kept: bool) -> None:
        """A marker is in the queue: the producer's transaction has ended there."""
        known = self.producers.get(producer_id)
        if known is None:
            known = self.producers[producer_id] = Producer(epoch)
        if epoch > known.epoch:
            known.epoch = epoch
            known.sent.clear()
            known.sent.append(AcceptedBatch(-1, -1, offset))  # The next batch has number 0.
        known.seen_ms = now_ms
        if producer_id in self.open:
            self._unconfirmed.append((self.open[producer_id], offset))
        self.decided(producer_id, offset, kept=kept)

    def forget(self, begin: int, before_ms: int) -> None:
        """The queue begins at `begin` now; producers that were silent since then are gone."""
        if self.aborted and self.aborted[0].last_offset < begin:
            self.aborted = [each for each in self.aborted if each.last_offset >= begin]
        silent = [
            producer_id
            for producer_id, each in self.producers.items()
            if each.seen_ms < before_ms and producer_id not in self.open
        ]
        for producer_id in silent:
            del self.producers[producer_id]

    def kept(self) -> dict[str, Any]:
        """Everything, as plain JSON; not while something is on the way."""
        assert not self.on_the_way
        found: dict[str, Any] = {"covered": self.covered}
        if self.aborted:
            found["aborted"] = [list(each) for each in self.aborted]
        if self.open:
            found["open"] = [list(each) for each in self.open.items()]
        if self.producers:
            found["producers"] = [
                [
                    producer_id,
                    each.epoch,
                    each.seen_ms,
                    [[sent.first, sent.last, sent.offset] for sent in each.sent],
                ]
                for producer_id, each in self.producers.items()
            ]
        return found

    @classmethod
    def restored(cls, kept: dict[str, Any]) -> "QueueProducers":
        """The inverse of `kept`."""
        queue = cls()
        queue.restore(kept)
        for producer_id, epoch, seen_ms, sent in kept.get("producers", ()):
            batches: Iterable[AcceptedBatch] = (AcceptedBatch(*each) for each in sent)
            queue.producers[producer_id] = Producer(
                epoch, deque(batches, maxlen=BATCHES_KEPT), seen_ms
            )
        return queue


def _out_of_order(producer_id: int, first: int, expected: int) -> OutOfOrderSequenceError:
    return OutOfOrderSequenceError(
        f"producer {producer_id} sends number {first} where {expected} follows: a batch was lost"
    )

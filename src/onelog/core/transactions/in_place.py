"""Batches that are written at once and judged later: sequences of producers, open transactions.

A producer has an id and an epoch, and numbers its messages in each queue. That tells a repeated
batch from a new one, and a batch out of order from one that follows.

A transaction's batches lie in their queues like all others. Until a marker behind them says how it
ended, readers of committed messages stop before the first of them: at the queue's stable end. What
was aborted is remembered by producer and place, so that such readers can leave it out.

Invariant: the stable end never goes back. What is here follows from the batches in the log; what is
kept elsewhere only saves reading them again.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onelog.errors import (
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    TransactionStateError,
)

BATCHES_KEPT = 5
"""As many batches may be on their way at once, so as many can be repeated."""
SEQUENCES = 1 << 31
EXPIRY_MS = 24 * 3_600_000


class Sent(NamedTuple):
    """A batch that was stored: its numbers, and where it is."""

    first: int
    last: int
    offset: int


class Aborted(NamedTuple):
    """A transaction that failed: its producer, its first batch, its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Producer:
    """What one queue knows of one producer."""

    epoch: int
    sent: deque[Sent] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    open_offset: int | None = None
    """Where its open transaction begins in this queue."""
    seen_ms: int = 0


class QueueProducers:
    """The producers of one queue."""

    __slots__ = ("aborted", "covered", "producers")

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self.aborted: list[Aborted] = []
        """In the order of their markers."""
        self.covered = 0
        """The queue offset up to which batches are accounted for."""

    def check(
        self, producer_id: int, epoch: int, first: int, count: int, *, transactional: bool
    ) -> Sent | None:
        """Whether a batch may be stored; the one it repeats, if it repeats one."""
        known = self.producers.get(producer_id)
        if known is None:
            return None
        if epoch < known.epoch:
            raise InvalidProducerEpochError(
                f"producer {producer_id} is at epoch {known.epoch}: another one has taken its place"
            )
        if transactional is not (known.open_offset is not None) and known.open_offset is not None:
            raise TransactionStateError(
                f"producer {producer_id} has an open transaction: its batches belong to that"
            )
        last = (first + count - 1) % SEQUENCES
        if epoch > known.epoch or not known.sent:
            if epoch > known.epoch and first != 0:
                raise _out_of_order(producer_id, first, 0)
            return None
        for sent in known.sent:
            if (sent.first, sent.last) == (first, last):
                return sent
        expected = (known.sent[-1].last + 1) % SEQUENCES
        if first != expected:
            raise _out_of_order(producer_id, first, expected)
        return None

    def stored(
        self,
        producer_id: int,
        epoch: int,
        first: int,
        count: int,
        offset: int,
        now_ms: int,
        *,
        transactional: bool,
    ) -> None:
        """A batch is in the queue."""
        known = self.producers.get(producer_id)
        if known is None or epoch > known.epoch:
            open_offset = known.open_offset if known else None
            known = self.producers[producer_id] = Producer(epoch, open_offset=open_offset)
        known.seen_ms = now_ms
        known.sent.append(Sent(first, (first + count - 1) % SEQUENCES, offset))
        if transactional and known.open_offset is None:
            known.open_offset = offset
        self.covered = offset + count

    def ended(self, producer_id: int, epoch: int, offset: int, now_ms: int, *, kept: bool) -> None:
        """A marker is in the queue: the producer's transaction has ended there."""
        known = self.producers.get(producer_id)
        if known is None:
            known = self.producers[producer_id] = Producer(epoch)
        if epoch > known.epoch:
            known.epoch = epoch
            known.sent.clear()
        known.seen_ms = now_ms
        if known.open_offset is not None and not kept:
            self.aborted.append(Aborted(producer_id, known.open_offset, offset))
        known.open_offset = None
        self.covered = offset + 1

    def stable_end(self, end: int) -> int:
        """Where readers of committed messages stop, in a queue that ends at `end`."""
        opened = (each.open_offset for each in self.producers.values())
        return min((offset for offset in opened if offset is not None), default=end)

    def aborted_between(self, begin: int, end: int) -> list[Aborted]:
        """The failed transactions with batches in these offsets."""
        return [
            each for each in self.aborted if each.last_offset >= begin and each.first_offset < end
        ]

    def forget(self, begin: int, before_ms: int) -> None:
        """The queue begins at `begin` now; producers that were silent since then are gone."""
        self.aborted = [each for each in self.aborted if each.last_offset >= begin]
        self.producers = {
            producer_id: each
            for producer_id, each in self.producers.items()
            if each.seen_ms >= before_ms or each.open_offset is not None
        }

    def kept(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            "covered": self.covered,
            "aborted": [list(each) for each in self.aborted],
            "producers": [
                [
                    producer_id,
                    each.epoch,
                    each.open_offset,
                    each.seen_ms,
                    list(map(list, each.sent)),
                ]
                for producer_id, each in self.producers.items()
            ],
        }

    @classmethod
    def restored(cls, kept: dict[str, Any]) -> "QueueProducers":
        """The inverse of `kept`."""
        queue = cls()
        queue.covered = kept["covered"]
        queue.aborted = [Aborted(*each) for each in kept["aborted"]]
        for producer_id, epoch, open_offset, seen_ms, sent in kept["producers"]:
            batches: Iterable[Sent] = (Sent(*each) for each in sent)
            queue.producers[producer_id] = Producer(
                epoch, deque(batches, maxlen=BATCHES_KEPT), open_offset, seen_ms
            )
        return queue


def _out_of_order(producer_id: int, first: int, expected: int) -> OutOfOrderSequenceError:
    return OutOfOrderSequenceError(
        f"producer {producer_id} sends number {first} where {expected} follows: a batch was lost"
    )

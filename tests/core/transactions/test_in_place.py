"""What a queue knows of producers: repeated batches, numbers that follow, the stable end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.core.transactions.in_place import (
    BATCHES_KEPT,
    SEQUENCES,
    AcceptedBatch,
    QueueProducers,
    Stamp,
)
from onelog.errors import (
    BrokerBusyError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    TransactionStateError,
)
from onelog.store.outcomes import Aborted


def put(queue: QueueProducers, stamp: Stamp, offset: int) -> AcceptedBatch | None:
    """Take and store a batch."""
    sent = queue.take(stamp, offset, 1_000)
    if sent is not None:
        queue.stored(stamp, sent, offset)
    return sent


def test_a_repeated_batch_is_known_while_it_is_one_of_the_last_five() -> None:
    queue = QueueProducers()
    for number in range(BATCHES_KEPT + 1):
        put(queue, Stamp(7, 0, 10 * number, 10), 100 * number)
    for number in range(1, BATCHES_KEPT + 1):
        stamp = Stamp(7, 0, 10 * number, 10)
        assert queue.take(stamp, 999, 1) is None
        found = queue.repeated(stamp)
        assert found is not None
        assert found.offset == 100 * number
    with pytest.raises(OutOfOrderSequenceError):
        queue.take(Stamp(7, 0, 0, 10), 999, 1)


def test_numbers_begin_again_after_the_largest_one() -> None:
    queue = QueueProducers()
    put(queue, Stamp(7, 0, SEQUENCES - 3, 5), 0)
    with pytest.raises(OutOfOrderSequenceError):
        queue.take(Stamp(7, 0, 0, 1), 5, 1)
    assert put(queue, Stamp(7, 0, 2, 1), 5) is not None


def test_a_batch_that_is_on_its_way_is_not_taken_twice() -> None:
    queue = QueueProducers()
    stamp = Stamp(7, 0, 0, 1)
    sent = queue.take(stamp, 0, 1)
    assert sent is not None
    with pytest.raises(BrokerBusyError):
        queue.take(stamp, 0, 1)
    queue.failed(stamp, sent)
    assert put(queue, stamp, 0) is not None, "it was not stored the first time"


def test_a_new_epoch_fences_the_old_one_and_begins_anew() -> None:
    queue = QueueProducers()
    put(queue, Stamp(7, 0, 0, 1), 0)
    with pytest.raises(OutOfOrderSequenceError):
        queue.take(Stamp(7, 1, 1, 1), 1, 1)
    put(queue, Stamp(7, 1, 0, 1), 1)
    with pytest.raises(InvalidProducerEpochError):
        queue.take(Stamp(7, 0, 1, 1), 2, 1)


def test_the_batches_of_an_open_transaction_are_all_of_it() -> None:
    queue = QueueProducers()
    put(queue, Stamp(7, 0, 0, 1, True), 5)
    assert queue.stable_end(6) == 5
    with pytest.raises(TransactionStateError):
        queue.take(Stamp(7, 0, 1, 1), 6, 1)
    queue.ended(7, 0, 6, 1, kept=True)
    assert queue.stable_end(7) == 7
    assert put(queue, Stamp(7, 0, 1, 1), 7) is not None


def test_silent_producers_and_deleted_transactions_are_forgotten() -> None:
    queue = QueueProducers()
    put(queue, Stamp(7, 0, 0, 1, True), 0)
    queue.ended(7, 0, 1, 1_000, kept=False)
    put(queue, Stamp(8, 0, 0, 1, True), 2)
    queue.forget(0, 1_001)
    assert queue.producers.keys() == {8}, "one with an open transaction stays"
    assert queue.aborted == [Aborted(7, 0, 1)]
    queue.forget(2, 0)
    assert queue.aborted == []


@given(begin=st.integers(0, 30), end=st.integers(0, 30), data=st.data())
def test_aborted_transactions_are_found_by_their_stretch(
    begin: int, end: int, data: st.DataObject
) -> None:
    queue = QueueProducers()
    at = 0
    while at < 25:
        first = data.draw(st.integers(0, at))
        queue.aborted.append(Aborted(data.draw(st.integers(1, 3)), first, at))
        at += data.draw(st.integers(1, 6))
    found = queue.aborted_between(begin, end)
    assert found == [
        each for each in queue.aborted if each.last_offset >= begin and each.first_offset < end
    ]


class Producing(RuleBasedStateMachine):
    """Producers that send, repeat, skip and end; a list of what was stored is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = QueueProducers()
        self.end = 0
        self.next = dict.fromkeys(range(3), 0)
        self.stored: dict[int, list[tuple[Stamp, int]]] = {each: [] for each in range(3)}
        self.begun: dict[int, int] = {}
        self.stable = 0

    @rule(producer=st.integers(0, 2), count=st.integers(1, 4), transactional=st.booleans())
    def send(self, producer: int, count: int, transactional: bool) -> None:
        stamp = Stamp(producer, 0, self.next[producer], count, transactional)
        if producer in self.begun and not transactional:
            with pytest.raises(TransactionStateError):
                self.queue.take(stamp, self.end, 1)
            return
        assert put(self.queue, stamp, self.end) is not None
        self.stored[producer].append((stamp, self.end))
        if transactional:
            self.begun.setdefault(producer, self.end)
        self.next[producer] += count
        self.end += count

    @rule(producer=st.integers(0, 2), back=st.integers(1, BATCHES_KEPT))
    def repeat(self, producer: int, back: int) -> None:
        if len(self.stored[producer]) >= back:
            stamp, offset = self.stored[producer][-back]
            assert put(self.queue, stamp, self.end) is None
            found = self.queue.repeated(stamp)
            assert found is not None
            assert found.offset == offset

    @rule(producer=st.integers(0, 2), skipped=st.integers(1, 5))
    def skip(self, producer: int, skipped: int) -> None:
        if self.stored[producer]:
            stamp = Stamp(producer, 0, self.next[producer] + skipped, 1, producer in self.begun)
            with pytest.raises(OutOfOrderSequenceError):
                self.queue.take(stamp, self.end, 1)

    @rule(producer=st.integers(0, 2), kept=st.booleans())
    def finish(self, producer: int, kept: bool) -> None:
        if producer in self.begun:
            self.queue.ended(producer, 0, self.end, 1, kept=kept)
            begun = self.begun.pop(producer)
            if not kept:
                assert self.queue.aborted[-1] == Aborted(producer, begun, self.end)
            self.end += 1

    @rule()
    def restart(self) -> None:
        self.queue = QueueProducers.restored(self.queue.kept())

    @invariant()
    def the_stable_end_is_where_the_first_open_one_begins(self) -> None:
        stable = self.queue.stable_end(self.end)
        assert stable == min(self.begun.values(), default=self.end)
        assert stable >= self.stable, "it never goes back"
        self.stable = stable


TestProducing = Producing.TestCase

"""Transactions in place, with the disk and the process failing between any two steps."""

import struct
from pathlib import Path
from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.cursors.offset_notes import Note
from onelog.core.membership.coordinator import CommittingMember, Position
from onelog.core.transactions.in_place import Stamp
from onelog.core.transactions.transactional_ids import (
    EPOCH_MAX,
    IDLE_MAX_MS,
    Incarnation,
    TransactionState,
)
from onelog.errors import (
    InvalidProducerEpochError,
    OnelogError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StoreFullError,
    TransactionEndingError,
    TransactionStateError,
)
from onelog.message import NewMessage
from onelog.record.forms import Form, kafka
from onelog.record.forms.neutral import Neutral
from onelog.store.verify import verify
from tests.core.world import World

ID = "payments"
QUEUES = [("orders", 0), ("orders", 1), ("bills", 0)]


@pytest.fixture
def shop(world: World) -> World:
    world.topic("orders", 2)
    world.topic("bills", 1)
    return world


class Payer:
    """A transactional producer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: list[OnelogError | None] = []
        self.id, self.epoch = world.broker.transactions.in_place.begin(SELF, ID, 60_000)
        self.numbers = dict.fromkeys(QUEUES, 0)

    def send(self) -> None:
        """A message to each queue."""
        self.world.broker.transactions.in_place.add_queues(SELF, ID, self.id, self.epoch, QUEUES)
        for topic, queue_id in QUEUES:
            number = self.numbers[topic, queue_id]
            batch = bytearray(kafka.from_neutral([Neutral(b"k", b"v", (), 1)]))
            batch[22] = kafka.Attribute.TRANSACTIONAL
            struct.pack_into(">qhi", batch, 43, self.id, self.epoch, number)
            message = NewMessage(
                topic, queue_id, kafka.with_crc(bytes(batch)), sys_flag=Form.KAFKA.sys_flag
            )
            stamp = Stamp(self.id, self.epoch, number, 1, True)
            self.world.broker.publish.send(SELF, message, self.stored, stamp=stamp)
            self.numbers[topic, queue_id] += 1
        self.world.end_tick()

    def stored(self, token: Any, appended: Any, error: OnelogError | None) -> None:
        self.told.append(error)

    def move(self, offset: int) -> None:
        """A position of a group."""
        in_place = self.world.broker.transactions.in_place
        in_place.add_group(SELF, ID, self.id, self.epoch, "readers")
        positions = {"orders": {0: Position(offset, Note(0, "note"))}}
        in_place.commit_offsets(
            SELF, ID, self.id, self.epoch, "readers", CommittingMember(), positions
        )

    def end(self, commit: bool, *, renews: bool = False) -> Incarnation:
        """Who it is told to be from now on."""
        told: list[Incarnation] = []

        def ended(producer: Incarnation, error: OnelogError | None) -> None:
            told.append(producer)
            self.told.append(error)

        in_place = self.world.broker.transactions.in_place
        in_place.end(SELF, ID, self.id, self.epoch, commit, ended, renews=renews)
        return told[0]

    def become(self, producer: Incarnation) -> None:
        """Go on as that, with new numbers."""
        self.id, self.epoch = producer
        self.numbers = dict.fromkeys(QUEUES, 0)


def visible(world: World) -> list[int]:
    """How many messages RocketMQ's readers see in each queue."""
    counts = []
    for topic, queue_id in QUEUES:
        at = count = 0
        while True:
            result = world.core.reader.read(topic, queue_id, at, 32, 1 << 20)
            count += result.messages
            if result.next_offset <= at:
                break
            at = result.next_offset
        counts.append(count)
    return counts


def states(world: World) -> list[TransactionState]:
    return [each.state for each in world.broker.transactions.in_place.transactions(SELF)]


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_reaches_all_queues_and_positions(shop: World, commit: bool) -> None:
    payer = Payer(shop)
    payer.send()
    payer.move(1)
    assert visible(shop) == [0, 0, 0]
    payer.end(commit)
    assert payer.told == [None] * 4
    assert visible(shop) == ([1, 1, 1] if commit else [0, 0, 0])
    assert shop.core.offsets.get("readers", "orders", 0) == (1 if commit else None)
    for _ in range(2):
        shop.restart()
        assert visible(shop) == ([1, 1, 1] if commit else [0, 0, 0])
        note = shop.broker.groups.coordinator.notes.get("readers", "orders", 0)
        assert note == (Note(0, "note") if commit else Note())
    shop.close()
    assert verify(shop.folder).problems_total == 0
    shop.start()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ["crash", "power_loss"])
def test_a_crash_after_the_decision_changes_nothing_of_it(
    shop: World, commit: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payer = Payer(shop)
    payer.send()
    payer.move(1)
    with monkeypatch.context() as patch:
        patch.setattr(
            shop.broker.transactions.in_place, "_carry_out", lambda transaction: transaction
        )
        payer.end(commit)
    assert shop.store.wait_flushed(shop.store.log_end)
    getattr(shop, how)()
    assert visible(shop) == ([1, 1, 1] if commit else [0, 0, 0])
    assert shop.core.offsets.get("readers", "orders", 0) == (1 if commit else None)
    assert states(shop) == [TransactionState.COMMITTED if commit else TransactionState.ABORTED]


def test_a_crash_before_the_decision_leaves_it_open_until_its_time_is_up(shop: World) -> None:
    payer = Payer(shop)
    payer.send()
    shop.crash()
    assert visible(shop) == [0, 0, 0]
    assert states(shop) == [TransactionState.ONGOING]
    shop.advance(61_000)
    assert states(shop) == [TransactionState.ABORTED]
    assert visible(shop) == [0, 0, 0]
    shop.send()
    assert visible(shop)[0] == 1, "what is behind it can be read"


def test_an_end_that_the_disk_refuses_is_written_later(
    shop: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    payer = Payer(shop)
    payer.send()
    real = shop.core.writer.write_now

    def refuse(messages: Any, records: Any = ()) -> Any:
        if messages:
            raise StoreFullError("disk is full")
        return real(messages, records)

    with monkeypatch.context() as patch:
        patch.setattr(shop.core.writer, "write_now", refuse)
        with pytest.raises(TransactionEndingError):
            payer.end(commit=True)
        assert states(shop) == [TransactionState.COMMITTING]
        shop.advance(11_000)
        assert states(shop) == [TransactionState.COMMITTING]
    shop.advance(11_000)
    assert states(shop) == [TransactionState.COMMITTED]
    assert visible(shop) == [1, 1, 1]
    payer.end(commit=True)
    assert payer.told[-1] is None


def test_a_topic_that_is_deleted_meanwhile_is_left_out(shop: World) -> None:
    payer = Payer(shop)
    payer.send()
    payer.move(1)
    shop.broker.topics.delete(SELF, "orders")
    payer.end(commit=True)
    assert visible(shop) == [0, 0, 1]
    assert shop.core.offsets.get("readers", "orders", 0) is None


def test_the_last_epoch_is_followed_by_another_producer_id(shop: World) -> None:
    payer = Payer(shop)
    shop.broker.transactions.in_place._record(  # As if it had been taken over thousands of times.
        shop.broker.transactions.in_place._transactions[ID].__class__(
            ID, payer.id, EPOCH_MAX - 1, 60_000
        )
    )
    producer_id, epoch = shop.broker.transactions.in_place.begin(SELF, ID, 60_000)
    assert (producer_id != payer.id, epoch) == (True, 0)


def test_an_id_that_nobody_uses_is_forgotten(shop: World) -> None:
    Payer(shop)
    shop.clock.advance(IDLE_MAX_MS - 5_000)
    shop.broker.transactions.in_place.expire()
    assert states(shop) == [TransactionState.EMPTY]
    shop.clock.advance(10_000)
    shop.broker.transactions.in_place.expire()
    assert states(shop) == []


def test_sequences_go_on_after_a_crash(shop: World, tmp_path: Path) -> None:
    payer = Payer(shop)
    payer.send()
    payer.end(commit=True)
    shop.crash()
    payer.world = shop
    payer.send()
    payer.end(commit=True)
    assert payer.told == [None] * 8
    assert visible(shop) == [2, 2, 2]


# -- an epoch for each transaction ---------------------------------------------------------------


def test_each_end_is_followed_by_another_epoch_and_numbers_begin_anew(shop: World) -> None:
    payer = Payer(shop)
    for commit in (True, False, True):
        payer.send()
        renewed = payer.end(commit, renews=True)
        assert renewed == (payer.id, payer.epoch + 1)
        assert payer.end(commit, renews=True) == renewed, "the answer was lost"
        with pytest.raises(TransactionStateError):
            payer.end(not commit, renews=True)
        with pytest.raises(InvalidProducerEpochError):
            shop.broker.publish.send(
                SELF,
                NewMessage("orders", 0, b""),
                payer.stored,
                stamp=Stamp(payer.id, payer.epoch, 1, 1, True),
            )
        payer.become(renewed)
    assert visible(shop) == [2, 2, 2]
    with pytest.raises(TransactionStateError):
        payer.end(commit=True, renews=True)
    payer.become(payer.end(commit=False, renews=True))
    assert payer.epoch == 4, "also if there was nothing to abort"
    payer.send()
    assert payer.told[-3:] == [None] * 3


def test_a_batch_that_is_lost_at_the_begin_of_the_next_transaction_is_missed(shop: World) -> None:
    payer = Payer(shop)
    payer.send()
    payer.become(payer.end(commit=True, renews=True))
    payer.numbers["orders", 0] = 1
    with pytest.raises(OutOfOrderSequenceError):
        payer.send()


@pytest.mark.parametrize("how", ["crash", "power_loss"])
@pytest.mark.parametrize("decided_only", [True, False])
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_is_answered_the_same_after_a_crash(
    shop: World, commit: bool, decided_only: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payer = Payer(shop)
    payer.send()
    payer.move(1)
    with monkeypatch.context() as patch:
        if decided_only:
            patch.setattr(
                shop.broker.transactions.in_place, "_carry_out", lambda transaction: transaction
            )
        renewed = payer.end(commit, renews=True)
    assert shop.store.wait_flushed(shop.store.log_end)
    getattr(shop, how)()
    payer.world = shop
    assert payer.end(commit, renews=True) == renewed
    assert visible(shop) == ([1, 1, 1] if commit else [0, 0, 0])
    payer.become(renewed)
    payer.send()
    payer.end(commit=True, renews=True)
    assert visible(shop) == ([2, 2, 2] if commit else [1, 1, 1])


@pytest.mark.parametrize("sent", [False, True])
def test_a_crash_before_the_end_leaves_the_transaction_to_its_producer(
    shop: World, sent: bool
) -> None:
    payer = Payer(shop)
    shop.broker.transactions.in_place.add_queues(SELF, ID, payer.id, payer.epoch, QUEUES)
    if sent:
        payer.send()
    shop.crash()
    payer.world = shop
    payer.send()
    payer.become(payer.end(commit=True, renews=True))
    assert visible(shop) == ([2, 2, 2] if sent else [1, 1, 1])


def test_epochs_that_are_used_up_are_followed_by_another_producer_at_an_end(shop: World) -> None:
    payer = Payer(shop)
    record = shop.broker.transactions.in_place._transactions[ID].__class__(
        ID, payer.id, EPOCH_MAX - 1, 60_000
    )
    shop.broker.transactions.in_place._record(record)
    payer.epoch = EPOCH_MAX - 1
    payer.send()
    renewed = payer.end(commit=True, renews=True)
    assert (renewed[0] != payer.id, renewed[1]) == (True, 0)
    shop.crash()
    payer.world = shop
    assert payer.end(commit=True, renews=True) == renewed
    payer.become(renewed)
    payer.send()
    payer.end(commit=True, renews=True)
    assert visible(shop) == [2, 2, 2]


def test_who_asks_for_its_next_epoch_again_is_told_the_same(shop: World) -> None:
    payer, in_place = Payer(shop), shop.broker.transactions.in_place
    first = payer.id, payer.epoch
    renewed = in_place.begin(SELF, ID, 60_000, *first)
    assert in_place.begin(SELF, ID, 60_000, *first) == renewed
    in_place.begin(SELF, ID, 60_000)
    for old in (first, renewed):
        with pytest.raises(ProducerFencedError):
            in_place.begin(SELF, ID, 60_000, *old)
    with pytest.raises(ProducerFencedError):
        payer.end(commit=False, renews=True)


def test_who_lasted_too_long_is_fenced(shop: World) -> None:
    payer = Payer(shop)
    payer.send()
    shop.advance(61_000)
    for renews in (True, False):
        with pytest.raises(ProducerFencedError):
            payer.end(commit=False, renews=renews)

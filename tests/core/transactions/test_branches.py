"""Branches of transactions that another broker coordinates, with the process failing in between."""

import struct
from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.core.cursors.offset_notes import Note
from onelog.core.cursors.offsets import REMOTE_QUEUES
from onelog.core.membership.coordinator import CommittingMember, Position
from onelog.core.transactions.in_place import Stamp
from onelog.core.transactions.transactional_ids import TransactionState
from onelog.errors import (
    InvalidProducerEpochError,
    OnelogError,
    TransactionEndingError,
    TransactionStateError,
)
from onelog.message import NewMessage
from onelog.record.forms import Form, kafka
from onelog.record.forms.neutral import Neutral
from tests.core.world import World

PRODUCER = 1 << 40
QUEUE = ("orders", 0)


@pytest.fixture
def shop(world: World) -> World:
    world.topic("orders", 2)
    return world


def send(world: World, epoch: int = 0, number: int = 0) -> None:
    batch = bytearray(kafka.from_neutral([Neutral(b"k", b"v", (), 1)]))
    batch[22] = kafka.Attribute.TRANSACTIONAL
    struct.pack_into(">qhi", batch, 43, PRODUCER, epoch, number)
    body = kafka.with_crc(bytes(batch))
    message = NewMessage(*QUEUE, body, sys_flag=Form.KAFKA.sys_flag)
    told: list[OnelogError | None] = []

    def stored(token: Any, appended: Any, error: OnelogError | None) -> None:
        told.append(error)

    world.broker.publish.send(SELF, message, stored, stamp=Stamp(PRODUCER, epoch, number, 1, True))
    world.end_tick()
    assert told == [None]


def end(world: World, commit: bool, epoch: int = 0) -> None:
    told: list[OnelogError | None] = []
    world.broker.transactions.branches.end(SELF, PRODUCER, epoch, commit, told.append)
    assert told == [None]


def stable(world: World) -> int:
    return world.broker.cursors.settled(SELF, *QUEUE, 0, 10)[0]


def test_batches_of_a_transaction_elsewhere_need_a_branch(shop: World) -> None:
    with pytest.raises(TransactionStateError):
        send(shop)
    shop.broker.transactions.branches.join(SELF, PRODUCER, 0, [("orders", 1)])
    with pytest.raises(TransactionStateError):
        send(shop)
    shop.broker.transactions.branches.join(SELF, PRODUCER, 0, [QUEUE])
    send(shop)
    with pytest.raises(InvalidProducerEpochError):
        send(shop, epoch=1)
    end(shop, commit=True)
    with pytest.raises(TransactionStateError):
        send(shop, number=1)


@pytest.mark.parametrize("commit", [True, False])
def test_a_branch_survives_a_crash_and_ends_once(shop: World, commit: bool) -> None:
    shop.broker.transactions.branches.join(SELF, PRODUCER, 3, [QUEUE])
    send(shop, epoch=3)
    place = REMOTE_QUEUES + 4
    positions = {"orders": {1: Position(0, Note(0, "here")), place: Position(9, Note(1, "there"))}}
    shop.broker.transactions.branches.commit_offsets(
        SELF, PRODUCER, 3, "readers", CommittingMember(), positions
    )
    shop.crash()
    assert len(shop.broker.transactions.branches) == 1
    assert stable(shop) == 0
    wanted = {"orders": [1, place]}
    coordinator = shop.broker.groups.coordinator
    found = dict(dict(coordinator.positions(SELF, "readers", wanted))["orders"])
    assert all(each.is_pending for each in found.values())
    for _ in range(2):
        end(shop, commit, epoch=4)
    assert stable(shop) == 2, "a batch and one marker"
    assert bool(shop.broker.cursors.settled(SELF, *QUEUE, 0, 10)[1]) != commit
    shop.crash()
    assert len(shop.broker.transactions.branches) == 0
    coordinator = shop.broker.groups.coordinator
    found = dict(dict(coordinator.positions(SELF, "readers", wanted))["orders"])
    assert [each.offset for each in found.values()] == ([0, 9] if commit else [-1, -1])
    assert not any(each.is_pending for each in found.values())


def test_an_older_end_does_not_end_a_newer_transaction(shop: World) -> None:
    shop.broker.transactions.branches.join(SELF, PRODUCER, 1, [QUEUE])
    shop.broker.transactions.branches.join(SELF, PRODUCER, 2, [QUEUE])
    end(shop, commit=True, epoch=1)
    assert len(shop.broker.transactions.branches) == 1
    with pytest.raises(InvalidProducerEpochError):
        shop.broker.transactions.branches.join(SELF, PRODUCER, 1, [QUEUE])


def test_an_end_is_carried_out_when_all_others_know_it(shop: World) -> None:
    in_place = shop.broker.transactions.in_place
    name = "payments"
    producer_id, epoch = in_place.begin(SELF, name, 60_000)
    in_place.add_queues(SELF, name, producer_id, epoch, [QUEUE])
    in_place.add_others(SELF, name, producer_id, epoch, [("orders", 5)])
    told: list[OnelogError | None] = []

    def when_ended(_: object, error: OnelogError | None) -> None:
        told.append(error)

    with pytest.raises(TransactionEndingError):
        in_place.end(SELF, name, producer_id, epoch, True, when_ended)
    shop.crash()
    in_place = shop.broker.transactions.in_place
    (found,) = in_place.transactions(SELF)
    assert (found.state, found.others) == (TransactionState.COMMITTING, frozenset({("orders", 5)}))
    asked: list[TransactionState] = []

    def tell(transaction: Any) -> bool:
        asked.append(transaction.state)
        return len(asked) < 3

    in_place.tell_others = tell
    for _ in range(2):
        with pytest.raises(TransactionEndingError):
            in_place.finish(SELF, name)
    in_place.end(SELF, name, producer_id, epoch, True, when_ended)
    assert told == [None]
    (found,) = in_place.transactions(SELF)
    assert (found.state, found.others) == (TransactionState.COMMITTED, frozenset())
    assert asked == [TransactionState.COMMITTING] * 3

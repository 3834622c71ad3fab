"""Leases over several queues, requests that wait, and who is told when."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onelog.config import BrokerConfig
from onelog.core.access import SELF
from onelog.core.durable.waiting import ANY_QUEUE
from onelog.core.filters.tags import subscribe
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.core.queues.lending import HELD_MAX, Leased
from onelog.errors import (
    FilterDisabledError,
    FlushTimeoutError,
    OnelogError,
    StoreError,
    StoreFailedError,
    TopicNotFoundError,
)
from onelog.message import NewMessage
from tests.core.leasing import GROUP, LEASE_MS, STAY, TICK_MS, TOPIC, Reader, bodies, reading
from tests.core.world import SMALL_STORE


def request(reader: Reader, *queues: int, count_max: int = 32) -> LeaseRequest:
    """A request without anything of RocketMQ's: some queues, in this order."""
    keys = tuple((TOPIC, queue_id) for queue_id in queues)
    return LeaseRequest(GROUP, lambda: keys, keys, count_max, LEASE_MS)


def test_queues_are_looked_into_in_the_order_that_the_protocol_says(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=3)
    for n in range(3):
        reader.world.send(queue_id=n)
    answers = reader.ask(request(reader, 2, 0, 1, count_max=2))
    reader.end_tick()
    assert [(part.queue_id, part.offsets) for part in answers[0].parts] == [(2, (0,)), (0, (0,))]
    assert answers[0].left == 1


def test_all_that_one_request_gets_is_leased_under_one_stamp(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=3)
    for n in range(9):
        reader.world.send(queue_id=n % 3)
    leased = reader.pop()
    assert len(leased) == 9
    assert len({each.handle for each in leased}) == 1
    assert {each.queue_id for each in leased} == {0, 1, 2}


def test_the_rest_is_what_could_still_be_had(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    for n in range(10):
        reader.world.send(queue_id=n % 2)
    answers = reader.ask(reader.request(4))
    reader.end_tick()
    assert (sum(len(part.offsets) for part in answers[0].parts), answers[0].left) == (4, 6)


def test_an_answer_is_bounded_in_bytes_but_never_empty_for_that(tmp_path: Path) -> None:
    reader = reading(
        tmp_path, queues=4, broker_config=replace(BrokerConfig(), pull_bytes_max=1_000)
    )
    for n in range(12):
        reader.world.send(queue_id=n % 4, body=b"x" * 800)
    got = [len(reader.pop()) for _ in range(12)]
    assert sum(got) == 12
    assert max(got) <= 2


def test_nothing_is_told_before_it_is_recorded(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    answers = reader.ask(reader.request())
    assert answers == []
    reader.world.end_tick()
    assert len(answers) == 1


def test_conditions_on_properties_can_be_switched_off(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send(colour="red", body=b"red")
    reader.world.send(colour="blue", body=b"blue")
    wanted = subscribe(TOPIC, "colour = 'blue'", "SQL92")
    assert bodies(reader.pop(subscription=wanted)) == [b"blue"]
    reader.world.core.reconfigure(replace(BrokerConfig(), property_filter=False))
    with pytest.raises(FilterDisabledError):
        reader.pop(subscription=wanted)


# -- waiting -----------------------------------------------------------------------------------


class Poll:
    """A request that is held."""

    def __init__(
        self, reader: Reader, wait_ms: int = 60_000, queue_id: int = -1, owner: Any = None
    ) -> None:
        self._answers = reader.ask(reader.request(1, queue_id), wait_ms, owner)
        self._reader = reader

    @property
    def answer(self) -> Leased | None:
        """What it was answered with, when the tick is over."""
        self._reader.world.end_tick()
        return self._answers[0] if self._answers else None

    def is_answered(self) -> bool:
        return self.answer is not None

    @property
    def got(self) -> list[int]:
        answer = self.answer
        return [] if answer is None else [each for part in answer.parts for each in part.offsets]


@pytest.mark.parametrize("queue_id", [ANY_QUEUE, 1])
def test_a_held_request_ends_when_a_message_arrives(tmp_path: Path, queue_id: int) -> None:
    reader = reading(tmp_path, queues=2)
    poll = Poll(reader, queue_id=queue_id)
    assert poll.answer is None
    reader.world.send(queue_id=1)
    assert poll.got == [0]


def test_a_held_request_for_a_queue_sleeps_while_others_fill(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    poll = Poll(reader, queue_id=1)
    reader.world.send(queue_id=0)
    assert poll.answer is None


def test_a_held_request_ends_when_its_time_is_up(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    poll = Poll(reader, 5_000)
    reader.world.advance(4_900)
    assert not poll.is_answered()
    reader.world.advance(200)
    assert poll.is_answered()
    assert poll.got == []


def test_one_message_wakes_one_of_many(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    polls = [Poll(reader) for _ in range(5)]
    reader.world.send()
    assert [poll.got for poll in polls] == [[0], [], [], [], []]
    reader.world.send()
    assert [poll.got for poll in polls] == [[0], [1], [], [], []]


def test_many_that_wait_are_not_looked_after_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reading(tmp_path, queues=2)
    polls = [Poll(reader) for _ in range(50)]
    looks: list[LeaseRequest] = []
    lending = reader.world.core.lending
    look = lending.has_messages

    def counted(request: LeaseRequest) -> bool:
        looks.append(request)
        return look(request)

    monkeypatch.setattr(lending, "has_messages", counted)
    for n in range(3):
        reader.world.send(queue_id=n % 2)
        assert sum(poll.answer is not None for poll in polls) == n + 1
    assert len(looks) < 10, "per message: one that finds it, and one or two for all others"


def test_a_message_that_comes_back_wakes_who_waits(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    (leased,) = reader.pop(policy=STAY)
    poll = Poll(reader)
    other = Poll(Reader(reader.world, "another-group"))
    assert poll.answer is None
    assert other.got == [0], "it never had it"
    reader.release(leased)
    assert poll.got == [0]


def test_a_message_that_is_moved_wakes_who_waits(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.pop()
    poll = Poll(reader)
    reader.world.advance(LEASE_MS + TICK_MS)
    assert poll.got == [0]


def test_a_topic_that_goes_ends_the_wait_and_disturbs_nobody_else(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    told: list[Leased | OnelogError] = []
    reader.world.broker.queues.lease(
        SELF, reader.request(), 60_000, lambda _, leased: told.append(leased)
    )
    reader.world.core.topics.delete(TOPIC, [])
    reader.world.core.waiting.arrived(TOPIC, 0)
    assert [type(each) for each in told] == [TopicNotFoundError]


def test_held_requests_are_counted_and_bounded(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    polls = [Poll(reader) for _ in range(HELD_MAX)]
    assert polls[-1].answer is None
    refused = Poll(reader).answer
    assert refused is not None
    assert refused.is_refused
    held = reader.world.core.lending.held
    assert held(GROUP, TOPIC, ANY_QUEUE) == HELD_MAX
    assert held(GROUP, TOPIC, 0) == held("another", TOPIC, ANY_QUEUE) == 0
    assert Poll(reader, queue_id=0).answer is None


def test_an_owner_that_goes_is_not_told_and_takes_nothing_along(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    gone, other = Poll(reader, owner="c1"), Poll(reader, owner="c2")
    reader.world.broker.groups.channel_closed("c1")
    reader.world.send()
    assert (gone.answer, other.got) == (None, [0])


def test_who_asks_for_no_message_hears_that_there_is_one(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    empty = reader.ask(reader.request(0))
    held = reader.ask(reader.request(0), 60_000)
    assert [each.left for each in empty] == [0]
    assert held == []
    reader.world.send()
    assert [each.left for each in held] == [1]
    assert len(reader.leases) == 0


# -- safety ----------------------------------------------------------------------------------------


class SlowDisk:
    """Keeps the store's flush thread from telling anybody, until it is told to."""

    def __init__(self, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushed: list[Callable[[StoreError | None], None]] = []
        self._reader = reader
        monkeypatch.setattr(
            reader.world.store, "when_flushed", lambda _, callback: self.flushed.append(callback)
        )

    def flush(self, error: StoreError | None = None) -> None:
        while self.flushed:
            self.flushed.pop()(error)
            self._reader.world.run_posted()


def test_under_synchronous_flush_an_acknowledgement_is_told_when_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reading(tmp_path, store_config=replace(SMALL_STORE, flush="sync"))
    disk = SlowDisk(reader, monkeypatch)
    reader.world.core.writer.put(NewMessage(TOPIC, 0, b"x"), reader.world.on_stored)
    reader.world.end_tick()
    disk.flush()
    (leased,) = reader.pop()
    assert reader.answers == [None], "what is handed out need not wait"
    heard: list[OnelogError | None] = []
    reader.ack(leased)
    reader.world.core.leases.when_safe(heard.append)
    assert heard == []
    disk.flush()
    assert heard == [None]
    monkeypatch.undo()
    reader.world.close()


@pytest.mark.parametrize("fails", [True, False])
def test_an_acknowledgement_that_does_not_get_to_the_disk_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    reader = reading(tmp_path, store_config=replace(SMALL_STORE, flush="sync"))
    disk = SlowDisk(reader, monkeypatch)
    heard: list[OnelogError | None] = []
    reader.world.core.leases.when_safe(heard.append)
    if fails:
        disk.flush(StoreFailedError("the disk is gone"))
    else:
        reader.world.advance(reader.world.broker_config.flush_timeout_ms)
    (error,) = heard
    assert isinstance(error, StoreFailedError if fails else FlushTimeoutError)
    monkeypatch.undo()
    reader.world.close()


def test_under_asynchronous_flush_it_is_told_once_it_is_written(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    (leased,) = reader.pop()
    heard: list[OnelogError | None] = []
    reader.leases.acknowledge(GROUP, TOPIC, 0, leased.offset, leased.handle)
    reader.world.core.leases.when_safe(heard.append)
    assert heard == []
    reader.world.end_tick()
    assert heard == [None]
    reader.world.close()

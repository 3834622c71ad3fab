"""POP over all queues of a topic and its retry topic, and requests that wait."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from onelog.config import BrokerConfig
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.waiting import ANY_QUEUE
from onelog.core.filters.tags import subscribe
from onelog.core.leases.pop import POLLS_MAX, PopRequest
from onelog.core.leases.supply import Terms
from onelog.errors import (
    FilterDisabledError,
    FlushTimeoutError,
    GroupPermissionError,
    InvalidQueueError,
    OnelogError,
    StoreError,
    StoreFailedError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.message import NewMessage
from onelog.rocketmq.profile import NAMING
from tests.core.leasing import GROUP, LEASE_MS, ORDERED, TICK_MS, TOPIC, Reader, bodies, reading
from tests.core.world import SMALL_STORE

RETRY = NAMING.lease_retry_topic(GROUP, TOPIC)


def test_a_request_for_one_queue_gets_nothing_of_the_others(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    reader.world.send(queue_id=0, body=b"0")
    reader.world.send(queue_id=1, body=b"1")
    assert bodies(reader.pop(queue_id=1)) == [b"1"]
    assert reader.pop(queue_id=1) == []


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
    popped = reader.world.broker.pop.pop(reader.request(4))
    assert (sum(len(part.offsets) for part in popped.parts), popped.rest) == (4, 6)


def test_neither_old_nor_new_messages_starve_the_others(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    for _ in range(64):
        reader.world.send(body=b"old")
    while reader.pop():
        pass
    reader.world.advance(LEASE_MS + TICK_MS)
    for _ in range(2_000):
        reader.world.send(queue_id=1, body=b"new")
    served = {b"old": 0, b"new": 0}
    for _ in range(40):
        for each in reader.pop(8):
            served[each.body] += 1
            reader.ack(each)
    assert served[b"old"] > 0
    assert served[b"new"] > served[b"old"]


def test_an_answer_is_bounded_in_bytes_but_never_empty_for_that(tmp_path: Path) -> None:
    reader = reading(
        tmp_path, queues=4, broker_config=replace(BrokerConfig(), pull_bytes_max=1_000)
    )
    for n in range(12):
        reader.world.send(queue_id=n % 4, body=b"x" * 800)
    got = [len(reader.pop()) for _ in range(12)]
    assert sum(got) == 12
    assert max(got) <= 2


def test_ordered_requests_leave_the_retry_topic_alone(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.pop()
    reader.world.advance(LEASE_MS + TICK_MS)
    assert reader.world.store.max_offset(RETRY, 0) == 1
    assert reader.pop(fate=ORDERED) == []
    assert len(reader.pop()) == 1


def test_who_may_not_pop_is_told_why(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    broker = reader.world.broker
    with pytest.raises(TopicNotFoundError):
        Reader(reader.world, topic="nowhere").pop()
    for queue_id in (1, -2):
        with pytest.raises(InvalidQueueError, match="is illegal"):
            reader.pop(queue_id=queue_id)
    broker.groups.put(GroupConfig(GROUP, consume_enable=False))
    with pytest.raises(GroupPermissionError):
        reader.pop()
    broker.admin.create_topic(TopicConfig("mute", 1, 1, perm=2))
    with pytest.raises(TopicPermissionError):
        Reader(reader.world, "others", "mute").pop()


def test_conditions_on_properties_can_be_switched_off(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send(colour="red", body=b"red")
    reader.world.send(colour="blue", body=b"blue")
    wanted = Terms(LEASE_MS, subscription=subscribe(TOPIC, "colour = 'blue'", "SQL92"))
    request = PopRequest(GROUP, TOPIC, ANY_QUEUE, 32, wanted)
    popped = reader.world.broker.pop.pop(request)
    assert [list(part.offsets) for part in popped.parts] == [[1]]
    reader.world.broker.reconfigure(replace(BrokerConfig(), property_filter=False))
    with pytest.raises(FilterDisabledError):
        reader.world.broker.pop.pop(request)


# -- waiting -----------------------------------------------------------------------------------


class Poll:
    """A request that is held."""

    def __init__(self, reader: Reader, timeout_ms: int = 60_000, queue_id: int = -1) -> None:
        self.ended: list[bool] = []
        self.reader = reader
        self.request = reader.request(1, queue_id)
        self.got: list[int] = []
        self.wait = reader.world.broker.pop.hold(self.request, timeout_ms, self._end, None)

    def _end(self, _: object, timed_out: bool) -> None:
        self.ended.append(timed_out)
        if not timed_out:
            popped = self.reader.world.broker.pop.pop(self.request)
            self.got += [offset for part in popped.parts for offset in part.offsets]


@pytest.mark.parametrize("queue_id", [ANY_QUEUE, 1])
def test_a_held_request_ends_when_a_message_arrives(tmp_path: Path, queue_id: int) -> None:
    reader = reading(tmp_path, queues=2)
    poll = Poll(reader, queue_id=queue_id)
    reader.world.send(queue_id=1)
    assert poll.ended == [False]
    assert poll.got == [0]


def test_a_held_request_for_a_queue_sleeps_while_others_fill(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    poll = Poll(reader, queue_id=1)
    reader.world.send(queue_id=0)
    assert poll.ended == []


def test_a_held_request_ends_when_its_time_is_up(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    poll = Poll(reader, 5_000)
    reader.world.advance(4_900)
    assert poll.ended == []
    reader.world.advance(200)
    assert poll.ended == [True]


def test_one_message_wakes_one_of_many(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    polls = [Poll(reader) for _ in range(5)]
    reader.world.send()
    assert [poll.ended for poll in polls] == [[False], [], [], [], []]
    reader.world.send()
    assert [len(poll.ended) for poll in polls] == [1, 1, 0, 0, 0]


def test_many_that_wait_are_not_looked_after_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reading(tmp_path, queues=2)
    polls = [Poll(reader) for _ in range(50)]
    looks: list[PopRequest] = []
    pop = reader.world.broker.pop
    look = pop.has_messages

    def counted(request: PopRequest) -> bool:
        looks.append(request)
        return look(request)

    monkeypatch.setattr(pop, "has_messages", counted)
    for n in range(3):
        reader.world.send(queue_id=n % 2)
        assert sum(map(len, (poll.ended for poll in polls))) == n + 1
    assert len(looks) < 10, "per message: one that finds it, and one or two for all others"


def test_a_message_that_comes_back_wakes_who_waits(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.pop()
    poll = Poll(reader)
    other = Poll(Reader(reader.world, "another-group"))
    assert poll.ended == []
    reader.world.advance(LEASE_MS + TICK_MS)
    assert poll.ended == [False]
    assert other.ended == []


def test_a_topic_that_goes_ends_the_wait_and_disturbs_nobody_else(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.topic("other", 1)
    ended: list[bool] = []
    pop = reader.world.broker.pop
    pop.hold(reader.request(), 60_000, lambda _, late: ended.append(late), None)
    reader.world.broker.topics.delete(TOPIC, [])
    reader.world.broker.waiting.arrived(TOPIC, 0)
    assert ended == [False]


def test_held_requests_are_counted_and_bounded(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    polls = [Poll(reader) for _ in range(POLLS_MAX)]
    assert polls[-1].wait is not None
    assert Poll(reader).wait is None
    pop = reader.world.broker.pop
    assert pop.held(GROUP, TOPIC, ANY_QUEUE) == POLLS_MAX
    assert pop.held(GROUP, TOPIC, 0) == pop.held("another", TOPIC, ANY_QUEUE) == 0
    assert Poll(reader, queue_id=0).wait is not None


# -- looking -----------------------------------------------------------------------------------


def test_peeking_shows_what_is_unread_and_leases_nothing(tmp_path: Path) -> None:
    reader = reading(tmp_path, queues=2)
    for n in range(6):
        reader.world.send(queue_id=n % 2)
    reader.pop(2, queue_id=0)
    pop = reader.world.broker.pop
    for _ in range(2):
        peeked = pop.peek(reader.request(3))
        assert len(peeked.records) >= 1
        assert peeked.rest == 4
    assert len(reader.leases) == 2
    assert pop.has_messages(reader.request())
    assert len(reader.pop()) == 4
    assert not pop.has_messages(reader.request())
    assert pop.peek(reader.request()).records == []


def test_peeking_goes_on_where_retention_left_off(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    world = reader.world
    world.send()
    assert len(reader.pop()) == 1
    world.send()
    world.clock.advance(1_000)
    world.send(body=b"kept")
    world.store.retain({TOPIC: 500})
    assert b"kept" in bytes(world.broker.pop.peek(reader.request()).records[0])


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
    reader.world.broker.writer.put(NewMessage(TOPIC, 0, b"x"), reader.world.on_stored)
    reader.world.end_tick()
    disk.flush()
    (leased,) = reader.pop()
    assert reader.answers == [None], "what is handed out need not wait"
    heard: list[OnelogError | None] = []
    reader.ack(leased)
    reader.world.broker.pop.when_safe(heard.append)
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
    reader.world.broker.pop.when_safe(heard.append)
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
    reader.world.broker.pop.when_safe(heard.append)
    assert heard == []
    reader.world.end_tick()
    assert heard == [None]
    reader.world.close()

"""Batches that are staged by tasks and committed by a driver."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from onelog.core.prepared_batches import (
    IDLE_MS_MAX,
    PART_BYTES_MAX,
    RETRY_MS,
    Committed,
    Part,
)
from onelog.errors import (
    BatchFencedError,
    InvalidQueueError,
    InvalidRequestError,
    MessageTooLargeError,
    OnelogError,
    StagedPartError,
    StoreFullError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.message import LOOPBACK, NewRun
from tests.core.world import TROUBLES, World


def unpack(part: Part) -> NewRun:
    source = bytes(part.body)
    parts = [(0, body, b"") for body in source.split(b",") if body]
    return NewRun(part.topic, part.queue_id, parts, source)


class Job:
    """A query that writes to a broker in a test's world."""

    def __init__(self, world: World, query: str = "copy") -> None:
        self.world = world
        self.query = query
        self.committed: list[tuple[Committed | None, OnelogError | None]] = []
        self.attach()

    def attach(self) -> None:
        self.world.broker.prepared_batches.unpack = unpack

    def stage(self, batch: int, *bodies: bytes, queue_id: int = 0, topic: str = "orders") -> int:
        part = Part(
            self.query, batch, "0", topic, queue_id, len(bodies), b",".join(bodies), 1, LOOPBACK
        )
        self.world.broker.prepared_batches.stage(part, self.world.on_stored)
        self.world.end_tick()
        told = self.world.told.pop()
        assert told.error is None
        return int(told.appended.queue_offset)

    def commit(self, batch: int, *parts: int) -> None:
        def told(_: Any, committed: Committed | None, error: OnelogError | None) -> None:
            self.committed.append((committed, error))

        self.world.broker.prepared_batches.commit(self.query, batch, parts, told)

    def settle(self) -> None:
        while self.world.soon:
            self.world.end_tick()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    world = World(tmp_path / "store")
    world.topic()
    return Job(world)


def test_staged_messages_are_invisible_until_their_batch_is_committed(job: Job) -> None:
    first = job.stage(0, b"a", b"b")
    second = job.stage(0, b"c", queue_id=1)
    assert job.world.bodies("orders") == []
    job.commit(0, first, second)
    job.settle()
    assert job.committed == [(Committed(0, False), None)]
    assert job.world.bodies("orders") == [b"a", b"b"]
    assert job.world.bodies("orders", 1) == [b"c"]
    assert job.world.broker.prepared_batches.last_batch("copy") == 0


def test_parts_that_the_commit_does_not_name_never_appear(job: Job) -> None:
    job.stage(0, b"loser")
    winner = job.stage(0, b"winner")
    job.commit(0, winner)
    job.settle()
    assert job.world.bodies("orders") == [b"winner"]


def test_a_second_commit_of_a_batch_changes_nothing(job: Job) -> None:
    first, other = job.stage(3, b"a"), job.stage(3, b"b")
    job.commit(3, first)
    job.settle()
    job.commit(3, other)
    job.commit(2, other)
    job.settle()
    assert job.committed[1:] == [(Committed(3, True), None)] * 2
    assert job.world.bodies("orders") == [b"a"]


def test_a_commit_that_is_repeated_while_it_runs_is_answered_when_it_ends(job: Job) -> None:
    parts = [job.stage(0, b"%d" % number) for number in range(3)]
    job.commit(0, *parts)
    job.commit(0, *parts)
    assert job.committed == []
    job.settle()
    assert job.committed == [(Committed(0, False), None)] * 2
    assert job.world.bodies("orders") == [b"0", b"1", b"2"]


def test_messages_for_a_batch_that_is_committed_come_too_late(job: Job) -> None:
    job.commit(5, job.stage(5, b"a"))
    job.settle()
    with pytest.raises(BatchFencedError, match="has committed batch 5"):
        job.stage(5, b"zombie")
    job.stage(6, b"next")


def test_a_batch_waits_for_the_one_before_it(job: Job) -> None:
    parts = [job.stage(0, b"a"), job.stage(0, b"b")]
    later = job.stage(1, b"c")
    job.commit(0, *parts)
    with pytest.raises(BatchFencedError, match="still being published"):
        job.commit(1, later)
    job.settle()
    job.commit(1, later)
    job.settle()
    assert job.world.bodies("orders") == [b"a", b"b", b"c"]


def test_queries_do_not_disturb_one_another(job: Job) -> None:
    other = Job(job.world, "other")
    mine, theirs = job.stage(0, b"mine"), other.stage(0, b"theirs")
    with pytest.raises(StagedPartError, match="of query 'other', batch 0; not of 'copy'"):
        job.commit(0, theirs)
    assert job.world.broker.prepared_batches.last_batch("copy") is None
    job.commit(0, mine)
    other.commit(0, theirs)
    job.settle()
    assert sorted(job.world.bodies("orders")) == [b"mine", b"theirs"]


@pytest.mark.parametrize("parts", [(99,), (-1,), (0, 0)])
def test_a_commit_of_what_is_not_staged_is_refused_and_changes_nothing(
    job: Job, parts: tuple[int, ...]
) -> None:
    place = job.stage(0, b"a")
    with pytest.raises((StagedPartError, InvalidRequestError)):
        job.commit(0, *parts)
    job.commit(0, place)
    job.settle()
    assert job.world.bodies("orders") == [b"a"]


def test_parts_of_another_batch_are_refused(job: Job) -> None:
    place = job.stage(1, b"a")
    with pytest.raises(StagedPartError, match="batch 1; not of 'copy', batch 2"):
        job.commit(2, place)


def test_an_empty_batch_counts_as_committed(job: Job) -> None:
    job.commit(0)
    job.settle()
    assert job.committed == [(Committed(0, False), None)]
    assert job.world.broker.prepared_batches.last_batch("copy") == 0


def test_parts_are_checked_when_they_come(job: Job) -> None:
    with pytest.raises(TopicNotFoundError):
        job.stage(0, b"a", topic="nowhere")
    with pytest.raises(InvalidQueueError):
        job.stage(0, b"a", queue_id=4)
    job.world.topic("closed", perm=4)
    with pytest.raises(TopicPermissionError):
        job.stage(0, b"a", topic="closed")
    with pytest.raises(MessageTooLargeError, match="stage several"):
        job.stage(0, b"x" * (PART_BYTES_MAX + 1))
    with pytest.raises(InvalidRequestError, match="negative"):
        job.stage(-1, b"a")
    job.query = "x" * 201
    with pytest.raises(InvalidRequestError, match="1 to 200"):
        job.stage(0, b"a")


def test_what_is_committed_is_known_after_a_crash_and_after_a_restart(job: Job) -> None:
    job.commit(7, job.stage(7, b"a"))
    job.settle()
    for again in (job.world.crash, job.world.restart):
        again()
        job.attach()
        job.settle()
        assert job.world.broker.prepared_batches.last_batch("copy") == 7
        assert job.world.bodies("orders") == [b"a"]
        with pytest.raises(BatchFencedError):
            job.stage(7, b"a")


@pytest.mark.parametrize("ticks", range(6))
def test_a_crash_while_a_batch_is_published_leaves_neither_gaps_nor_duplicates(
    job: Job, ticks: int
) -> None:
    parts = [job.stage(0, b"%da" % number, b"%db" % number) for number in range(4)]
    job.commit(0, *parts)
    for _ in range(ticks):
        job.world.end_tick()
    job.world.crash()
    job.attach()
    job.settle()
    expected = [b"%d%c" % (number, letter) for number in range(4) for letter in b"ab"]
    assert job.world.bodies("orders") == expected
    job.commit(0, *parts)
    job.settle()
    assert job.world.bodies("orders") == expected


def test_a_part_that_the_crash_cut_in_two_is_completed(job: Job) -> None:
    world = job.world
    world.send(body=b"before")
    job.commit(0, job.stage(0, b"a", b"b", b"c"))
    end = next(iter(world.store.entries("orders", 0, 2, 1)))[0]
    store = world.store
    segment = store.log.segment_at(end)
    with open(segment.path, "r+b") as file:
        file.seek(end - segment.start)
        file.write(bytes(int(store.log_end) - end))
    world.crash()
    assert world.bodies("orders") == [b"before", b"a"]
    job.attach()
    job.settle()
    assert world.bodies("orders") == [b"before", b"a", b"b", b"c"]


def test_a_batch_that_the_disk_refuses_is_told_of_and_published_later(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    parts = [job.stage(0, b"a"), job.stage(0, b"b")]
    retention = job.world.store.retention
    retention.disk = lambda folder: 99.0
    job.commit(0, *parts)
    job.world.store.retain()
    job.settle()
    assert [type(error) for _, error in job.committed] == [StoreFullError]
    for _ in range(3):
        job.world.advance(RETRY_MS)
        job.settle()
    assert caplog.text.count("cannot be published yet") == 1
    retention.disk = lambda folder: 10.0
    job.world.store.retain()
    job.commit(0, *parts)
    job.world.advance(RETRY_MS)
    job.settle()
    assert job.committed[1:] == [(Committed(0, False), None)]
    assert job.world.bodies("orders") == [b"a", b"b"]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_batch_that_fails_for_whatever_reason_is_published_in_the_end(
    job: Job, trouble: Exception
) -> None:
    parts = [job.stage(0, b"a"), job.stage(0, b"b")]
    with mock.patch.object(job.world.store, "append_runs", side_effect=trouble):
        job.commit(0, *parts)
        job.settle()
    job.world.advance(RETRY_MS)
    job.settle()
    assert job.world.bodies("orders") == [b"a", b"b"]


def test_a_broker_that_stops_while_it_publishes_goes_on_when_it_is_started(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.commit(0, job.stage(0, b"a"), job.stage(0, b"b"))
    left = list(job.world.soon)
    job.world.close()
    for callback in left:
        callback()
    assert "cannot be published" not in caplog.text
    job.world.start()
    job.attach()
    job.settle()
    assert job.world.bodies("orders") == [b"a", b"b"]


def test_queries_that_rested_for_very_long_are_forgotten(job: Job) -> None:
    job.commit(0, job.stage(0, b"a"))
    job.settle()
    job.world.clock.advance(IDLE_MS_MAX + 1)
    job.world.broker.prepared_batches.expire()
    assert job.world.broker.prepared_batches.last_batch("copy") is None

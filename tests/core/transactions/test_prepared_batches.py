"""Batches that are staged by tasks and committed by a driver."""

import struct
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from onelog.core.access import SELF
from onelog.core.durable.tables import STAGED_TOPIC
from onelog.core.transactions import prepared_batches
from onelog.core.transactions.prepared_batches import (
    IDLE_MS_MAX,
    ONE_OFF_MS_MAX,
    PART_BYTES_MAX,
    RETRY_MS,
    Committed,
)
from onelog.errors import (
    BatchFencedError,
    BrokerBusyError,
    InvalidQueueError,
    InvalidRequestError,
    MessageTooLargeError,
    OnelogError,
    StagedPartError,
    StoreError,
    StoreFullError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.message import NewMessage, NewRun, encode_properties
from onelog.store.appender import Appender
from tests.core.world import HELD_S_MAX, SMALL_STORE, TROUBLES, World


class Job:
    """A query that writes to a broker in a test's world."""

    def __init__(self, world: World, query: str = "copy") -> None:
        self.world = world
        self.query = query
        self.committed: list[tuple[Committed | None, OnelogError | None]] = []

    def stage(
        self,
        batch: int,
        *bodies: bytes,
        queue_id: int = 0,
        topic: str = "orders",
        one_off: bool = False,
    ) -> int:
        run = NewRun(topic, queue_id, [(0, body, b"") for body in bodies], b",".join(bodies))
        self.world.core.prepared_batches.stage(
            self.query, batch, "0", run, self.world.on_stored, one_off=one_off
        )
        self.world.end_tick()
        told = self.world.told.pop()
        assert told.error is None
        return int(told.appended.queue_offset)

    def commit(self, batch: int, *parts: int, one_off: bool = False) -> None:
        def told(_: Any, committed: Committed | None, error: OnelogError | None) -> None:
            self.committed.append((committed, error))

        self.world.core.prepared_batches.commit(self.query, batch, parts, told, one_off=one_off)

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
    assert job.world.core.prepared_batches.last_batch("copy") == 0


def test_parts_that_the_commit_does_not_name_never_appear(job: Job) -> None:
    job.stage(0, b"loser")
    winner = job.stage(0, b"winner")
    job.commit(0, winner)
    job.settle()
    assert job.world.bodies("orders") == [b"winner"]


@pytest.mark.usefixtures("no_garbage")
def test_very_many_parts_are_committed_and_published_in_turns_with_others(job: Job) -> None:
    count, world = 4_000, job.world
    for number in range(count):
        body = b"%d" % number
        run = NewRun("orders", 0, [(0, body, b"")], body)
        world.core.prepared_batches.stage(job.query, 0, "0", run, world.on_stored)
    world.end_tick()
    parts = [int(told.appended.queue_offset) for told in world.told]
    world.told.clear()
    world.timer.longest_cpu_s = 0.0
    world.timer.measured(lambda: job.commit(0, *parts))
    assert world.core.prepared_batches.last_batch("copy") is None
    job.commit(0, *parts)
    with pytest.raises(BatchFencedError, match="being committed"):
        job.commit(1, parts[0])
    others = 0
    while not job.committed:
        world.send("orders", 1)
        others += 1
    job.settle()
    assert world.timer.longest_cpu_s < HELD_S_MAX
    assert job.committed == [(Committed(0, False), None)] * 2
    assert others > count
    assert world.bodies("orders") == [b"%d" % number for number in range(count)]


def test_a_part_that_is_missing_far_behind_is_told_and_nothing_is_decided(job: Job) -> None:
    parts = [job.stage(0, b"%d" % number) for number in range(250)]
    job.commit(0, *parts, 10**6)
    job.settle()
    ((committed, error),) = job.committed
    assert committed is None
    assert "nothing is staged at 1000000" in str(error)
    assert job.world.bodies("orders") == []
    job.commit(0, *parts)
    job.settle()
    assert len(job.world.bodies("orders")) == 250


def test_parts_that_are_on_disk_only_are_read_before_they_are_looked_at(job: Job) -> None:
    parts = [job.stage(0, b"a"), job.stage(0, b"b")]
    with mock.patch.object(job.world.store, "is_warm", return_value=False):
        job.commit(0, *parts)
        job.settle()
    assert job.committed == [(Committed(0, False), None)]
    assert job.world.bodies("orders") == [b"a", b"b"]


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
    with pytest.raises(StagedPartError, match="is not of query 'copy'"):
        job.commit(0, theirs)
    assert job.world.core.prepared_batches.last_batch("copy") is None
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
    with pytest.raises(StagedPartError, match="is not of query 'copy', batch 2"):
        job.commit(2, place)


def test_an_empty_batch_counts_as_committed(job: Job) -> None:
    job.commit(0)
    job.settle()
    assert job.committed == [(Committed(0, False), None)]
    assert job.world.core.prepared_batches.last_batch("copy") == 0


def test_parts_are_checked_when_they_come(job: Job) -> None:
    with pytest.raises(TopicNotFoundError):
        job.stage(0, b"a", topic="nowhere")
    with pytest.raises(InvalidQueueError):
        job.stage(0, b"a", queue_id=4)
    job.world.topic("closed", perm=4)
    with pytest.raises(TopicPermissionError):
        job.stage(0, b"a", topic="closed")
    with pytest.raises(MessageTooLargeError, match="stage several"):
        job.stage(0, b"x" * (PART_BYTES_MAX // 2), b"x" * (PART_BYTES_MAX // 2))
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
        job.settle()
        assert job.world.core.prepared_batches.last_batch("copy") == 7
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
    job.settle()
    expected = [b"%d%c" % (number, letter) for number in range(4) for letter in b"ab"]
    assert job.world.bodies("orders") == expected
    job.commit(0, *parts)
    job.settle()
    assert job.world.bodies("orders") == expected


def tear(world: World, offset: int) -> None:
    """Cut the log off, as a crash may do, before the message at an offset of queue 0."""
    store = world.store
    end = next(iter(store.entries("orders", 0, offset, 1)))[0]
    segment = store.log.segment_at(end)
    with open(segment.path, "r+b") as file:
        file.seek(end - segment.start)
        file.write(bytes(int(store.log_end) - end))


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_a_part_that_the_crash_cut_in_two_is_completed_before_anything_else_is_written(
    job: Job, whole: int
) -> None:
    world = job.world
    world.send(body=b"before")
    job.commit(0, job.stage(0, b"a", b"b", b"c"))
    tear(world, 1 + whole)
    world.crash()
    assert world.bodies("orders") == [b"before", b"a", b"b", b"c"], "at once"
    world.send(body=b"after")
    job.settle()
    world.crash()
    job.settle()
    assert world.bodies("orders") == [b"before", b"a", b"b", b"c", b"after"]


def test_what_the_tick_has_for_the_same_queue_is_not_taken_for_a_part(job: Job) -> None:
    world = job.world
    job.commit(0, job.stage(0, b"a"), job.stage(0, b"b", b"c"))
    world.broker.publish.send(SELF, NewMessage("orders", 0, b"between"), world.on_stored)
    world.end_tick()
    assert world.bodies("orders") == [b"a", b"between", b"b", b"c"]
    tear(world, 3)
    world.crash()
    assert world.bodies("orders") == [b"a", b"between", b"b", b"c"], "at once"


def test_a_torn_part_is_completed_before_another_query_goes_on_in_the_same_queue(
    job: Job,
) -> None:
    other = Job(job.world, "other")
    mine, theirs = [job.stage(0, b"a"), job.stage(0, b"b")], other.stage(0, b"x", b"y")
    job.commit(0, *mine)
    other.commit(0, theirs)
    tear(job.world, 2)
    job.world.crash()
    job.settle()
    assert job.world.bodies("orders") == [b"a", b"x", b"y", b"b"]


def test_a_broker_does_not_start_with_a_torn_part_that_cannot_be_completed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Appender.append

    def refuse(appender: Appender, batches: list[NewMessage | NewRun]) -> object:
        if any(isinstance(each, NewRun) for each in batches):
            raise StoreFullError("no room")
        return append(appender, batches)

    job.commit(0, job.stage(0, b"a", b"b"))
    tear(job.world, 1)
    with monkeypatch.context() as patched:
        patched.setattr(Appender, "append", refuse)
        with pytest.raises(StoreError, match=r"batch 0 of query copy is half published.*no room"):
            job.world.crash()
    job.world.store.close()
    job.world.start()
    assert job.world.bodies("orders") == [b"a", b"b"]


def test_decided_parts_outlive_the_files_of_the_log_until_they_are_published(job: Job) -> None:
    world = job.world
    parts = [job.stage(0, b"a"), job.stage(0, b"b")]
    orphan = job.stage(1, b"never committed")
    for _ in range(30):
        world.send(queue_id=1, body=b"x" * 100_000)
    job.commit(0, *parts)
    world.clock.advance(SMALL_STORE.retention_ms + 1)
    world.store.retention.disk = lambda folder: 88.0
    assert world.retain().segments_deleted == 0
    world.crash()
    world.store.retention.disk = lambda folder: 88.0
    assert world.retain().segments_deleted == 0
    job.settle()
    assert world.bodies("orders") == [b"a", b"b"]
    assert world.retain().segments_deleted > 0
    with pytest.raises(StagedPartError, match="stage it again"):
        job.commit(1, orphan)


def test_decided_parts_are_published_on_a_disk_that_is_too_full_for_messages(job: Job) -> None:
    parts = [job.stage(0, b"a"), job.stage(0, b"b")]
    job.commit(0, *parts)
    job.world.store.retention.disk = lambda folder: 92.0
    job.world.store.retain()
    job.settle()
    assert job.committed == [(Committed(0, False), None)]


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
    with mock.patch.object(job.world.store, "append", side_effect=trouble):
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
    job.settle()
    assert job.world.bodies("orders") == [b"a", b"b"]


def test_queries_that_rested_for_very_long_are_forgotten(job: Job) -> None:
    job.commit(0, job.stage(0, b"a"))
    job.settle()
    job.world.clock.advance(IDLE_MS_MAX + 1)
    job.world.core.prepared_batches.expire()
    assert job.world.core.prepared_batches.last_batch("copy") is None


def test_what_the_version_before_staged_and_decided_is_published(job: Job) -> None:
    """It kept parts in the form of RocketMQ's batches."""
    world = job.world
    for number in range(2):
        batch = b"".join(
            struct.pack(">iiiii", 22 + 2 + 4, 0, 0, 7, 2) + body + b"\0\x04k\x01v\x02"
            for body in (b"%da" % number, b"%db" % number)
        )
        labels = {"query": "copy", "batch": "3", "attempt": "0", "topic": "orders", "queue": "0"}
        properties = encode_properties({**labels, "count": "2"})
        world.store.append([NewMessage(STAGED_TOPIC, 0, batch, properties)])
    decided = {"batch": 3, "parts": [0, 1], "ms": world.clock.now_ms(), "note": ""}
    changes = [("commit:copy", decided), ("part:copy", [3, 0, 0])]
    world.core.tables.write([("prepared_batches", key, value) for key, value in changes])
    world.store.append([NewMessage("orders", 0, b"0a")])
    world.crash()
    assert world.bodies("orders") == [b"0a", b"0b"], "completed at once"
    job.settle()
    assert world.bodies("orders") == [b"0a", b"0b", b"1a", b"1b"]
    assert (world.messages("orders")[3].flag, world.messages("orders")[3].properties) == (
        7,
        b"k\x01v\x02",
    )


def test_batch_writes_take_no_place_from_queries_that_go_on(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_batches, "QUERIES_MAX", 2)
    monkeypatch.setattr(prepared_batches, "ONE_OFFS_MAX", 3)
    batches = job.world.core.prepared_batches
    job.commit(0)
    for number in range(10):
        write = Job(job.world, f"write-{number}")
        write.commit(0, write.stage(0, b"%d" % number, one_off=True), one_off=True)
        write.settle()
    job.world.crash()
    batches = job.world.core.prepared_batches
    known = [n for n in range(10) if batches.last_batch(f"write-{n}") is not None]
    assert known == [7, 8, 9], "the oldest are forgotten first"
    assert len(job.world.bodies("orders")) == 10
    assert batches.last_batch("copy") == 0
    stream = Job(job.world, "stream")
    stream.commit(0)
    full = Job(job.world, "one too many")
    with pytest.raises(BrokerBusyError, match="2 queries have committed here"):
        full.commit(0)
    write.query = "write-10"
    write.commit(0, write.stage(0, b"10", one_off=True), one_off=True)


def test_a_batch_write_that_is_being_published_is_not_forgotten(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_batches, "ONE_OFFS_MAX", 1)
    job.commit(0, job.stage(0, b"a"), job.stage(0, b"b"), one_off=True)
    other = Job(job.world, "other")
    part = other.stage(0, b"c", one_off=True)
    with pytest.raises(BrokerBusyError, match="try again"):
        other.commit(0, part, one_off=True)
    job.settle()
    other.commit(0, part, one_off=True)
    other.settle()
    assert job.world.bodies("orders") == [b"a", b"b", b"c"]


def test_batch_writes_are_forgotten_after_a_day_also_those_of_older_writers(job: Job) -> None:
    older = Job(job.world, f"spark-batch-{'0a' * 16}")
    older.commit(0)
    job.commit(0, one_off=True)
    stream = Job(job.world, "stream")
    stream.commit(0)
    job.world.clock.advance(ONE_OFF_MS_MAX + 1)
    batches = job.world.core.prepared_batches
    batches.expire()
    assert [batches.last_batch(q) for q in (older.query, job.query)] == [None, None]
    assert batches.last_batch("stream") == 0

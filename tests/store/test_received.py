"""A replica's log: byte for byte its master's, and known to queues when it is confirmed."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from onelog.clock import ManualClock
from onelog.errors import (
    OffsetOutOfRangeError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreVersionError,
)
from onelog.message import NewMessage
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.message_store import MessageStore
from tests.store.replicas import TINY, copy_log, keys_of, log_bytes, open_gated, queues_of
from tests.store.samples import append_plain, overwrite, sample_messages


@pytest.fixture
def master(tmp_path: Path) -> MessageStore:
    clock = ManualClock()
    store = MessageStore.open(tmp_path / "master", TINY, clock)
    for message in sample_messages(120):
        store.append([message])
        clock.advance(300)
    return store


@pytest.mark.parametrize("step", [1, 7, 100, 3000, 1 << 20])
def test_a_replica_has_the_log_of_its_master_however_it_is_split(
    master: MessageStore, tmp_path: Path, step: int
) -> None:
    master.delete_topic("Orders")
    master.append([*sample_messages(20)])
    end = int(master.log_end)
    with open_gated(tmp_path / "b") as follower:
        copy_log(master, follower, step, end)
        assert follower.log_end == follower.tail.raw_end == end
        assert log_bytes(follower) == log_bytes(master)
        assert not queues_of(follower)
        touched = follower.tail.confirm(end)
        assert touched is not None
        assert set(queues_of(follower)) <= touched
        assert follower.confirmed == end
        assert queues_of(follower) == queues_of(master)
        assert keys_of(follower) == keys_of(master)


def test_what_is_not_confirmed_waits_also_over_a_restart(
    master: MessageStore, tmp_path: Path
) -> None:
    end = int(master.log_end)
    with open_gated(tmp_path / "b") as follower:
        copy_log(master, follower, 1000, end - 10)
        follower.tail.confirm(end // 2)
        known = follower.confirmed
        assert end // 2 - 4000 < known <= end // 2
        assert queues_of(follower) == queues_of(master, known)
    with open_gated(tmp_path / "b") as follower:
        assert follower.confirmed == known
        assert follower.tail.raw_end == follower.log_end < end - 10
        assert queues_of(follower) == queues_of(master, known)
        copy_log(master, follower, 1000, end)
        follower.tail.confirm(end)
        assert queues_of(follower) == queues_of(master)
        assert keys_of(follower) == keys_of(master)
    with MessageStore.open(tmp_path / "b", TINY, ManualClock()) as alone:
        assert queues_of(alone) == queues_of(master)


def test_a_checkpoint_that_is_torn_or_not_ours_confirms_nothing(
    master: MessageStore, tmp_path: Path
) -> None:
    end = int(master.log_end)
    with open_gated(tmp_path / "b") as follower:
        copy_log(master, follower, 1000, end)
        follower.tail.confirm(end // 2)
        known = follower.confirmed
    checkpoint = tmp_path / "b" / "checkpoint"
    data = bytearray(checkpoint.read_bytes())
    data[7] ^= 1  # Of the times up to which log and queues are on disk,
    data[15] ^= 1  # which our part of the file has, too.
    checkpoint.write_bytes(data)
    (tmp_path / "b" / "abort").touch()
    with open_gated(tmp_path / "b") as follower:
        assert follower.log_end == end
        assert follower.confirmed <= known
        assert queues_of(follower) == queues_of(master, follower.confirmed)
        follower.tail.confirm(end)
        assert queues_of(follower) == queues_of(master)


def test_a_gated_master_hides_what_waits_and_gives_no_offset_twice(tmp_path: Path) -> None:
    with open_gated(tmp_path / "a") as store:
        one = store.append([NewMessage("t", 0, b"1")])[0]
        with pytest.raises(Exception, match="properties"):
            store.append([NewMessage("t", 0, b"2", b"x" * 40_000)])
        two, three = store.append([NewMessage("t", 0, b"2"), NewMessage("t", 1, b"3")])
        assert (two.queue_offset, three.queue_offset) == (1, 0)
        assert store.max_offset("t", 0) == 0
        assert store.next_offset("t", 0) == 2
        assert store.tail.confirm(one.log_offset + one.size) == {("t", 0)}
        assert store.max_offset("t", 0) == 1
        assert store.tail.confirm(three.log_offset) == set()
        assert store.tail.confirm(int(store.log_end)) == {("t", 0), ("t", 1)}
        assert [bytes(m.body) for m in store.messages("t", 0, 0, 9)] == [b"1", b"2"]


def test_a_tail_that_came_as_bytes_has_to_be_confirmed_before_anything_is_appended(
    master: MessageStore, tmp_path: Path
) -> None:
    message = NewMessage("t", 0, b"mine")
    end = int(master.log_end)
    with open_gated(tmp_path / "b") as follower:
        copy_log(master, follower, 1000, end - 10)
        for refused in (
            lambda: follower.append([message]),
            lambda: follower.delete_topic("Orders"),
        ):
            follower.tail.confirm(end // 2)
            with pytest.raises(StoreBusyError, match="not confirmed"):
                refused()
        follower.tail.drop_partial()
        assert follower.tail.raw_end == follower.log_end
        follower.tail.confirm(end)
        assert follower.append([message])[0].queue_offset == 0
        assert follower.max_offset("t", 0) == 0
        follower.tail.set_gated(False)
        assert follower.max_offset("t", 0) == 1
        assert follower.confirmed == follower.log_end
        with pytest.raises(StoreError, match="gate"):
            follower.tail.append_raw(follower.tail.raw_end, b"more")


def test_who_follows_again_knows_its_own_tail_by_its_bytes(tmp_path: Path) -> None:
    with open_gated(tmp_path / "a") as store:
        append_plain(store, "t", 25)
        told: list[StoreError | None] = []
        store.when_confirmed(int(store.log_end), told.append)
        store.tail.follow()
        assert "another's" in str(told[0])
        assert store.next_offset("t", 0) == store.max_offset("t", 0) == 0
        store.tail.confirm(int(store.log_end))
        assert store.max_offset("t", 0) == 13
        assert store.append([NewMessage("t", 0, b"on")])[0].queue_offset == 13


def test_zeros_at_the_end_of_a_segment_may_be_left_out(
    master: MessageStore, tmp_path: Path
) -> None:
    with open_gated(tmp_path / "b") as follower:
        for segment in master.log.segments:
            used = segment.data_end(0)
            follower.tail.append_raw(segment.start, segment.read(0, used))
        assert follower.tail.raw_end == master.log_end
        follower.tail.confirm(follower.tail.raw_end)
        assert queues_of(follower) == queues_of(master)
        assert log_bytes(follower) == log_bytes(master)
        with pytest.raises(StoreError, match="do not follow"):
            follower.tail.append_raw(follower.tail.raw_end + 1, b"x")
        with pytest.raises(StoreError, match="do not follow"):
            follower.tail.append_raw(master.log.segments[-1].start + TINY.segment_bytes, b"x")


@pytest.mark.parametrize("segment_bytes", [4096, 16384])
def test_segments_of_another_size_are_found_out(
    master: MessageStore, tmp_path: Path, segment_bytes: int
) -> None:
    config = replace(TINY, segment_bytes=segment_bytes)
    with (
        open_gated(tmp_path / "b", config) as follower,
        pytest.raises(StoreVersionError, match="segment_bytes"),
    ):
        copy_log(master, follower, 700, int(master.log_end))


def test_damage_in_the_masters_log_is_received_as_it_is(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "a", TINY, ManualClock()) as store:
        append_plain(store, "t", 200)
        ends = [entry[0] for entry in store.entries("t", 0, 0, 200)]
    overwrite(tmp_path / "a" / "commitlog" / f"{0:020d}", ends[10] + 2, b"damaged")
    overwrite(tmp_path / "a" / "commitlog" / f"{0:020d}", ends[20], bytes(300))
    (tmp_path / "a" / "checkpoint").unlink()
    shutil.rmtree(tmp_path / "a" / "consumequeue")
    with (
        MessageStore.open(tmp_path / "a", TINY, ManualClock()) as master,
        open_gated(tmp_path / "b") as follower,
    ):
        assert len(master.damage) == 2
        end = int(master.log_end)
        while follower.tail.raw_end < end:
            at = follower.tail.raw_end
            follower.tail.append_raw(at, bytes(master.tail.read_raw(at, 333)))
            follower.tail.confirm(end)
        assert follower.confirmed == follower.log_end == end
        assert log_bytes(follower) == log_bytes(master)
        assert queues_of(follower) == queues_of(master)
        assert [each[:2] for each in follower.damage] == [each[:2] for each in master.damage]


def test_a_full_disk_stops_the_queues_and_not_for_ever(
    master: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = int(master.log_end)
    with open_gated(tmp_path / "b") as follower:
        copy_log(master, follower, 1000, end)
        follower.tail.confirm(end // 3)
        known, keys, confirmed = queues_of(follower), keys_of(follower), follower.confirmed
        allocate, left = ConsumeQueue._allocate, [3]

        def fails_after_some(queue: ConsumeQueue, until: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise StoreFullError("no room on the disk")
            allocate(queue, until)

        monkeypatch.setattr(ConsumeQueue, "_allocate", fails_after_some)
        with pytest.raises(StoreFullError):
            follower.tail.confirm(end)
        monkeypatch.undo()
        assert (queues_of(follower), keys_of(follower)) == (known, keys)
        assert follower.confirmed == confirmed
        follower.tail.confirm(end)
        assert queues_of(follower) == queues_of(master)
        assert keys_of(follower) == keys_of(master)


def test_a_topic_that_rocketmq_made_anew_is_believed_when_a_second_message_follows(
    tmp_path: Path,
) -> None:
    """It writes no record of a deletion: offsets begin again, and one bit could be wrong."""
    with MessageStore.open(tmp_path / "a", TINY, ManualClock()) as master:
        places = [master.append([NewMessage("t", 0, b"%d" % n)])[0] for n in range(8)]
        master.queue_table.delete_topic("t")
        places += [master.append([NewMessage("t", 0, b"new %d" % n)])[0] for n in range(2)]
        with open_gated(tmp_path / "b") as follower:
            copy_log(master, follower, 1000, int(master.log_end))
            for place in places:
                follower.tail.confirm(place.log_offset + place.size)
            assert queues_of(follower) == queues_of(master)


def test_without_queues_only_what_was_confirmed_is_made_anew(
    master: MessageStore, tmp_path: Path
) -> None:
    end = int(master.log_end)
    with open_gated(tmp_path / "b") as follower:
        copy_log(master, follower, 1000, end)
        follower.tail.confirm(end // 2)
        known, confirmed = queues_of(follower), follower.confirmed
    shutil.rmtree(tmp_path / "b" / "consumequeue")
    with open_gated(tmp_path / "b") as follower:
        assert queues_of(follower) == known
        assert (follower.confirmed, follower.log_end) == (confirmed, end)


def test_a_replica_reads_on_from_anywhere(master: MessageStore) -> None:
    end = int(master.log_end)
    assert bytes(master.tail.read_raw(100, 50)) == log_bytes(master)[100:150]
    assert len(master.tail.read_raw(TINY.segment_bytes - 10, 50)) == 10
    assert len(master.tail.read_raw(end - 3, 50)) == 3
    assert not master.tail.read_raw(end, 50)
    with pytest.raises(OffsetOutOfRangeError):
        master.tail.read_raw(end + 1, 50)


def test_what_is_held_back_is_decided_before_others_are_appended(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "a", TINY, ManualClock()) as master:
        append_plain(master, "other", 150)
        master.append([NewMessage("t", 0, b"%d" % n) for n in range(3)])
        start = master.log.segments[-1].start
        last = master.append([NewMessage("fill", 0, bytes(TINY.segment_bytes - 2000))])[0]
        (only,) = master.append([NewMessage("t", 0, b"the only one of a later segment")])
        with open_gated(tmp_path / "b") as follower:
            begin = only.log_offset // TINY.segment_bytes * TINY.segment_bytes
            assert start < begin or last.log_offset >= begin
            follower.tail.append_raw(begin, bytes(master.tail.read_raw(begin, TINY.segment_bytes)))
            follower.tail.confirm(int(master.log_end))
            follower.tail.set_gated(False)
            assert follower.append([NewMessage("t", 0, b"next")])[0].queue_offset == 4


def test_a_disk_that_fails_while_messages_are_entered_leaves_none_of_them_twice(
    master: MessageStore, tmp_path: Path
) -> None:
    end = int(master.log_end)
    with open_gated(tmp_path / "b") as follower:
        copy_log(master, follower, 3000, end)
        follower.tail.confirm(end // 2)
        known = follower.confirmed
        allocate, write = os.posix_fallocate, os.pwrite
        left = iter(range(5))

        def until_it_fails(fd: int, at: int, size: int) -> None:
            if next(left, None) is None:
                raise OSError(errno.EIO, "broken")
            allocate(fd, at, size)

        def refuse(*args: object) -> int:
            raise OSError(errno.EIO, "broken")

        with (
            mock.patch.object(os, "posix_fallocate", until_it_fails),
            mock.patch.object(os, "pwrite", refuse),
        ):
            for _ in range(2):  # It cannot even take back what it has put in.
                with pytest.raises(StoreError):
                    follower.tail.confirm(end)
                assert follower.confirmed == known
        assert os.pwrite is write
        follower.tail.confirm(end)
        assert queues_of(follower) == queues_of(master)
        assert keys_of(follower) == keys_of(master)

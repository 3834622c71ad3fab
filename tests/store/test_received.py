"""A replica's log: byte for byte its master's, and known to queues when it is confirmed."""

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from onelog.clock import ManualClock
from onelog.errors import StoreError
from onelog.message import NewMessage
from onelog.store.message_store import MessageStore
from tests.store.replicas import TINY, copy_log, keys_of, log_bytes, open_gated, queues_of
from tests.store.samples import sample_messages


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
        assert follower.log_end == follower.raw_end == end
        assert log_bytes(follower) == log_bytes(master)
        assert not queues_of(follower)
        touched = follower.confirm(end)
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
        follower.confirm(end // 2)
        known = follower.confirmed
        assert end // 2 - 4000 < known <= end // 2
        assert queues_of(follower) == queues_of(master, known)
    with open_gated(tmp_path / "b") as follower:
        assert follower.confirmed == known
        assert follower.raw_end == follower.log_end < end - 10
        assert queues_of(follower) == queues_of(master, known)
        copy_log(master, follower, 1000, end)
        follower.confirm(end)
        assert queues_of(follower) == queues_of(master)
        assert keys_of(follower) == keys_of(master)
    with MessageStore.open(tmp_path / "b", TINY, ManualClock()) as alone:
        assert queues_of(alone) == queues_of(master)


def test_a_gated_master_hides_what_waits_and_gives_no_offset_twice(tmp_path: Path) -> None:
    with open_gated(tmp_path / "a") as store:
        one = store.append([NewMessage("t", 0, b"1")])[0]
        with pytest.raises(Exception, match="properties"):
            store.append([NewMessage("t", 0, b"2", b"x" * 40_000)])
        two, three = store.append([NewMessage("t", 0, b"2"), NewMessage("t", 1, b"3")])
        assert (two.queue_offset, three.queue_offset) == (1, 0)
        assert store.max_offset("t", 0) == 0
        assert store.next_offset("t", 0) == 2
        assert store.confirm(one.log_offset + one.size) == {("t", 0)}
        assert store.max_offset("t", 0) == 1
        assert store.confirm(three.log_offset) == set()
        assert store.confirm(int(store.log_end)) == {("t", 0), ("t", 1)}
        assert [bytes(m.body) for m in store.messages("t", 0, 0, 9)] == [b"1", b"2"]


def test_a_disk_that_fails_while_messages_are_entered_leaves_none_of_them_twice(
    master: MessageStore, tmp_path: Path
) -> None:
    end = int(master.log_end)
    with open_gated(tmp_path / "b") as follower:
        copy_log(master, follower, 3000, end)
        follower.confirm(end // 2)
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
                    follower.confirm(end)
                assert follower.confirmed == known
        assert os.pwrite is write
        follower.confirm(end)
        assert queues_of(follower) == queues_of(master)
        assert keys_of(follower) == keys_of(master)

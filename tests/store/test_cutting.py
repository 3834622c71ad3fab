"""Cutting the tail of a log: what is left is whole, what went is kept aside."""

from pathlib import Path

import pytest

from onelog.clock import ManualClock
from onelog.errors import StoreError
from onelog.message import NewMessage
from onelog.store.message_store import MessageStore
from onelog.store.verify import verify
from tests.store.replicas import TINY, copy_log, keys_of, log_bytes, open_gated, queues_of
from tests.store.samples import append_plain, sample_messages


def fill(store: MessageStore, count: int) -> list[int]:
    """Append messages, and say where the log ended after each."""
    ends = []
    for message in sample_messages(count):
        store.append([message])
        ends.append(int(store.log_end))
    return ends


def test_a_cut_of_what_waits_touches_the_log_only(tmp_path: Path) -> None:
    with open_gated(tmp_path / "a") as store:
        ends = fill(store, 100)
        store.tail.confirm(ends[40])
        known, keys, log = queues_of(store), keys_of(store), log_bytes(store)
        told: list[StoreError | None] = []
        store.when_confirmed(ends[45], told.append)
        barrier = store.barrier()
        cut = store.tail.cut(ends[60], "another history")
        assert (cut.log_offset, cut.rewound) == (ends[60], False)
        assert store.log_end == store.tail.raw_end == ends[60]
        assert (queues_of(store), keys_of(store)) == (known, keys)
        assert cut.size == sum(len(path.read_bytes().rstrip(b"\0")) for path in cut.kept)
        for path in cut.kept:
            content, at = path.read_bytes(), int(path.name)
            assert content[: len(log) - at] == log[at : at + len(content)]
        assert [str(error) for error in told] == [f"the log was cut at {ends[60]}: another history"]
        with pytest.raises(StoreError, match="cut"):
            barrier()
        store.tail.confirm(int(store.log_end))
        assert store.confirmed == ends[60]
        store.append([NewMessage("t", 0, b"goes on")])
        store.tail.confirm(int(store.log_end))
        assert store.max_offset("t", 0) == 1
    assert verify(tmp_path / "a", index_slots=64, index_entries=200).clean


@pytest.mark.parametrize("at", [0, 1, 30, 70, 99])
def test_a_cut_of_what_queues_know_rewinds_them(tmp_path: Path, at: int) -> None:
    with MessageStore.open(tmp_path / "a", TINY, ManualClock()) as store:
        ends = [0, *fill(store, 99)]
        at = min(at, len(ends) - 1)
        expected = MessageStore.open(tmp_path / "b", TINY, ManualClock())
        fill(expected, 99)
        fine = queues_of(expected, ends[at]), keys_of(expected, ends[at])
        expected.close()
        store.flush()
        cut = store.tail.cut(ends[at], "test")
        assert cut.rewound is (at < len(ends) - 1)
        assert (queues_of(store), keys_of(store)) == fine
        assert store.log_end == store.confirmed == ends[at]
        append_plain(store, "more", 20)
        assert store.max_offset("more", 0) == 10
    assert verify(tmp_path / "a", index_slots=64, index_entries=200).clean
    with MessageStore.open(tmp_path / "a", TINY, ManualClock()) as store:
        assert store.recovery.clean
        assert store.max_offset("more", 1) == 10


def test_a_topic_whose_deletion_is_cut_is_there_again(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "a", TINY, ManualClock()) as store:
        append_plain(store, "gone", 50)
        append_plain(store, "other", 50)
        before, end = queues_of(store), int(store.log_end)
        store.delete_topic("gone")
        append_plain(store, "gone", 5)
        store.tail.cut(end, "nobody else deleted it")
        assert queues_of(store) == before
        append_plain(store, "gone", 2)
        assert store.max_offset("gone", 0) == 26


def test_a_deletion_waits_and_what_follows_it_counts_from_the_start(tmp_path: Path) -> None:
    with open_gated(tmp_path / "a") as store:
        append_plain(store, "gone", 30)
        store.tail.confirm(int(store.log_end))
        append_plain(store, "gone", 4)
        before = int(store.log_end)
        store.delete_topic("gone")
        again = store.append([NewMessage("gone", 0, b"new"), NewMessage("gone", 1, b"new")])
        store.delete_topic("gone")
        deleted = int(store.log_end)
        last = store.append([NewMessage("gone", 0, b"newest", inner_count=3)])
        assert [each.queue_offset for each in (*again, *last)] == [0, 0, 0]
        assert store.next_offset("gone", 0) == 3
        assert store.max_offset("gone", 0) == 15
        store.tail.confirm(before)
        assert store.max_offset("gone", 0) == 17
        store.tail.confirm(deleted)
        assert store.max_offset("gone", 0) == 0
        assert store.append([NewMessage("gone", 0, b"x")])[0].queue_offset == 3
        store.tail.confirm(int(store.log_end))
        assert store.max_offset("gone", 0) == store.next_offset("gone", 0) == 4
        with open_gated(tmp_path / "b") as follower:
            copy_log(store, follower, 100, int(store.log_end))
            follower.tail.confirm(int(store.log_end))
            assert queues_of(follower) == queues_of(store)


def test_a_log_that_was_cut_to_nothing_begins_elsewhere(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "a", TINY, ManualClock()) as master:
        fill(master, 200)
        start, end = master.log.segments[2].start, int(master.log_end)
        with open_gated(tmp_path / "b") as follower:
            copy_log(master, follower, 500, 2 * TINY.segment_bytes - 100)
            follower.tail.confirm(end)
            assert follower.tail.cut(0, "too old").rewound
            follower.tail.append_raw(start, bytes(master.tail.read_raw(start, 5000)))
            copy_log(master, follower, 500, end)
            follower.tail.confirm(end)
            assert follower.log_min == start
            assert log_bytes(follower) == log_bytes(master)[start:]
        with MessageStore.open(tmp_path / "b", TINY, ManualClock()) as alone:
            shown = {
                place: [e for e in es if e[0] >= start] for place, es in queues_of(master).items()
            }
            assert queues_of(alone) == {place: es for place, es in shown.items() if es}
    assert verify(tmp_path / "b", index_slots=64, index_entries=200).clean

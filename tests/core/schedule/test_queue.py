"""Reading the queue of timed messages."""

from dataclasses import replace
from pathlib import Path

import pytest

from onelog.core.schedule import records as timed_messages
from onelog.core.schedule.queue import TimerQueue
from onelog.errors import OffsetOutOfRangeError
from onelog.message import NewMessage, encode_properties
from onelog.names import TIMER_TOPIC
from onelog.store.message_store import MessageStore
from tests.core.world import SMALL_STORE

NOW_MS = 1_700_000_000_000


def timed(number: int, body: bytes = b"x") -> NewMessage:
    own = encode_properties({"TIMER_DELIVER_MS": str(NOW_MS + number)})
    return timed_messages.scheduled(NewMessage("orders", 0, body, own), NOW_MS + number)


@pytest.mark.parametrize("record_crc", [False, True])
def test_due_times_are_read_many_at_a_time(tmp_path: Path, record_crc: bool) -> None:
    with MessageStore.open(tmp_path, replace(SMALL_STORE, record_crc=record_crc)) as store:
        queue = TimerQueue(store)
        assert (queue.begin, queue.end) == (0, 0)
        # Over several files of queue and log, with other messages in between.
        for number in range(2_500):
            store.append([timed(number, b"x" * 1_000), NewMessage("orders", 1, b"x" * 100)])
        assert len(store.log.segments) > 2
        batch = queue.read(100, 2_000)
        assert (batch.end, batch.unclear) == (2_100, [])
        assert batch.last_at == queue.log_offset_of(2_099)
        assert batch.plain.offsets.tolist() == list(range(100, 2_100))
        assert batch.plain.dues.tolist() == [NOW_MS + number for number in range(100, 2_100)]
        assert queue.read(2_400, 2_000).end == queue.end == 2_500


def test_what_does_not_end_with_its_time_is_unclear(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SMALL_STORE) as store:
        queue = TimerQueue(store)
        plain = timed(5)
        ends = plain.properties[:-1]
        others = [
            b"",
            b"\x02",
            ends,
            ends[:-1] + b"x\x02",
            ends[:-2] + b"\x02",
            plain.properties + b"A\x01b\x02",
            plain.properties.replace(b"OUT_MS\x010", b"OUT_MS\x011"),
            plain.properties[-timed_messages.TAIL_BYTES + 1 :],
        ]
        store.append([plain, *[plain._replace(properties=other) for other in others], plain])
        batch = queue.read(0, 100)
        assert batch.plain.offsets.tolist() == [0, len(others) + 1]
        assert batch.unclear == list(range(1, len(others) + 1))


def test_messages_are_found_by_their_offset(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SMALL_STORE) as store:
        queue = TimerQueue(store)
        with pytest.raises(OffsetOutOfRangeError):
            queue.message(0)
        assert queue.log_offset_of(0) == -1
        store.append([timed(number, b"%d" % number) for number in range(3)])
        assert bytes(queue.message(1).body) == b"1"
        assert store.message_at(queue.log_offset_of(2)).topic == TIMER_TOPIC
        for offset in (-1, 3):
            assert queue.log_offset_of(offset) == -1
            with pytest.raises(OffsetOutOfRangeError):
                queue.message(offset)


def test_what_is_far_from_the_end_of_the_log_may_be_cold(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, replace(SMALL_STORE, segment_bytes=8 << 20)) as store:
        queue = TimerQueue(store)
        store.append([timed(number) for number in range(10)])
        assert queue.cold_ranges([1, 2], 10) == []
        for _ in range(70):
            store.append([NewMessage("orders", 0, b"x" * (1 << 20))])
        store.append([timed(10)])
        assert queue.cold_ranges([10], 10) == []
        ranges = queue.cold_ranges([3, 10, 4, 5, 99], 2)
        assert [at for at, _ in ranges] == [queue.log_offset_of(3), queue.log_offset_of(4)]

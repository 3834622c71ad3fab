"""The log: places, segments, cuts."""

from pathlib import Path
from typing import cast

import pytest

from onelog.errors import (
    MessageError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    StoreCorruptError,
    StoreFullError,
    StoreVersionError,
)
from onelog.message import Appended, LogOffset, Message, NewMessage
from onelog.record.decode import Broken
from onelog.record.layout import BLANK, MAGIC_BLANK
from onelog.store.commitlog import CommitLog
from onelog.store.segment import Segment
from tests.store.log_records import scan_log

SEGMENT = 4096


def new_log(folder: Path, **options: bool) -> CommitLog:
    return CommitLog(folder, SEGMENT, **options)


def put(log: CommitLog, *bodies: bytes, topic: str = "t") -> list[Appended]:
    messages = [NewMessage(topic, 0, body) for body in bodies]
    return cast(list[Appended], log.append(messages, range(len(bodies)), 1000))


def bodies_of(log: CommitLog, start: int = 0) -> list[bytes]:
    return [bytes(m.body) for m in scan_log(log, start) if isinstance(m, Message)]


def test_records_follow_each_other_without_gaps(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    first, second = put(log, b"one", b"three")
    assert first.log_offset == 0
    assert second.log_offset == first.size
    assert log.end == first.size + second.size
    assert bytes(log.message_at(second.log_offset).body) == b"three"


def test_a_record_that_does_not_fit_goes_to_a_new_segment_behind_a_blank_one(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path)
    places = put(log, *[b"x" * 900] * 6)
    assert [place.log_offset // SEGMENT for place in places] == [0, 0, 0, 0, 1, 1]
    assert places[4].log_offset == SEGMENT
    end = places[3].log_offset + places[3].size
    rest, magic = BLANK.unpack_from(log.segments[0].view, end)
    assert (rest, magic) == (SEGMENT - end, MAGIC_BLANK)
    assert bodies_of(log) == [b"x" * 900] * 6


@pytest.mark.parametrize("spare", range(7, 11))
def test_eight_bytes_must_be_left_for_the_blank_record(tmp_path: Path, spare: int) -> None:
    log = new_log(tmp_path)
    overhead = put(log, b"")[0].size
    put(log, b"y" * (SEGMENT - 2 * overhead - spare))
    assert len(log.segments) == (1 if spare >= 8 else 2)
    assert len(bodies_of(log)) == 2


def test_a_full_segment_is_followed_by_a_new_one(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    overhead = put(log, b"")[0].size
    put(log, b"y" * (SEGMENT - 2 * overhead - 8))
    assert log.end == SEGMENT - 8
    assert put(log, b"next")[0].log_offset == SEGMENT


def test_a_message_that_no_segment_can_hold_is_refused_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path)
    put(log, b"before")
    end = log.end
    with pytest.raises(MessageTooLargeError, match=r"'t' needs a record of \d+ bytes; .* 4088"):
        put(log, b"fits", b"z" * SEGMENT)
    assert log.end == end
    assert bodies_of(log) == [b"before"]
    assert len(log.segments) == 1


def test_a_number_that_does_not_fit_its_field_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    with pytest.raises(MessageError, match="too large"):
        log.append([NewMessage("t", 0, b"", flag=1 << 40)], [0], 1000)
    assert log.end == 0


def test_a_write_that_fails_half_way_leaves_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path)
    put(log, b"kept")
    end = log.end
    write = Segment.write
    calls = []

    def fail_the_second(self: Segment, buffers: list[bytes], at: int, size: int) -> None:
        write(self, buffers, at, size)
        calls.append(at)
        if len(calls) == 2:
            raise StoreFullError("no room")

    monkeypatch.setattr(Segment, "write", fail_the_second)
    with pytest.raises(StoreFullError):
        put(log, *[b"x" * 900] * 6)
    assert log.end == end
    assert len(log.segments) == len(list(tmp_path.iterdir())) == 1
    assert log.segments[0].data_end(int(end)) == end


def test_reopening_finds_the_same_records(tmp_path: Path) -> None:
    put(new_log(tmp_path), *[b"m%d" % n for n in range(100)])
    assert bodies_of(new_log(tmp_path)) == [b"m%d" % n for n in range(100)]


def test_scanning_goes_over_damage_and_says_what_is_there(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, b"whole", b"damaged", b"after")
    at = log.message_at(0).size
    log.segments[0].write([b"\xff"], at + 90, 1)
    whole, damaged, after, last = scan_log(log, 0)
    assert [bytes(m.body) for m in (whole, after) if isinstance(m, Message)] == [b"whole", b"after"]
    assert damaged == Broken(at, "the body's CRC does not match")
    assert isinstance(last, Broken)
    assert last.empty


def test_truncating_drops_later_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    places = put(log, *[b"x" * 900] * 12)
    log.truncate(places[2].log_offset)
    assert len(bodies_of(log)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["0" * 20]
    assert put(log, b"again")[0].log_offset == places[2].log_offset


def test_slices_are_views_of_the_log_and_stay_in_range(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    first, second = put(log, b"one", b"two")
    assert len(log.slice(0, first.size + second.size)) == log.end
    for offset, size in [(-1, 10), (0, int(log.end) + 1), (1 << 62, 1), (0, -1)]:
        with pytest.raises(OffsetOutOfRangeError, match=str(offset)):
            log.slice(offset, size)
    for offset in (-1, int(log.end), 1 << 62):
        with pytest.raises(OffsetOutOfRangeError, match=str(offset)):
            log.message_at(offset)
    with pytest.raises(StoreCorruptError, match="no record at log offset 5"):
        log.message_at(5)


def test_the_oldest_segment_goes_and_its_slices_stay(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    first, *_ = put(log, *[b"x" * 900] * 6)
    held = log.slice(first.log_offset, first.size)
    log.drop_first().path.unlink()
    assert log.start == SEGMENT
    assert bytes(held[88:988]) == b"x" * 900
    with pytest.raises(OffsetOutOfRangeError):
        log.message_at(0)


def test_flushing_moves_the_mark_over_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    put(log, *[b"x" * 900] * 6)
    assert log.flushed == 0
    assert log.flush() == log.end == log.flushed


def test_other_segment_sizes_are_refused_with_the_size_to_use(tmp_path: Path) -> None:
    put(new_log(tmp_path), *[b"x" * 900] * 6)
    with pytest.raises(StoreVersionError, match="segment_bytes=4096"):
        CommitLog(tmp_path, 8192)


def test_a_missing_segment_is_noticed(tmp_path: Path) -> None:
    put(new_log(tmp_path), *[b"x" * 900] * 12)
    (tmp_path / f"{SEGMENT:020d}").unlink()
    with pytest.raises(StoreCorruptError, match="does not follow"):
        new_log(tmp_path)


def test_a_segment_that_was_just_being_made_is_completed(tmp_path: Path) -> None:
    put(new_log(tmp_path), b"x")
    (tmp_path / f"{SEGMENT:020d}").touch()
    log = new_log(tmp_path)
    assert [segment.size for segment in log.segments] == [SEGMENT, SEGMENT]
    assert bodies_of(log) == [b"x"]


def test_reading_only_creates_and_changes_nothing(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "none", SEGMENT, writable=False)
    assert (log.start, log.end) == (LogOffset(0), LogOffset(0))
    assert not (tmp_path / "none").exists()

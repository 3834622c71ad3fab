"""Reading: ranges, limits, statuses, ids, keys, times, cold data."""

from random import Random

import pytest

from onelog.clock import ManualClock
from onelog.errors import MessageError, OffsetOutOfRangeError
from onelog.message import NewMessage, encode_host, encode_properties, java_hash
from onelog.store import reader
from onelog.store.message_store import MessageStore
from onelog.store.reader import COLUMNS_MIN, FetchStatus, _collect, _collect_columns, _collect_many
from tests.store.conftest import OpenStore


def fill(store: MessageStore, count: int, topic: str = "t", queues: int = 1) -> None:
    for n in range(count):
        store.append([NewMessage(topic, n % queues, b"%04d" % n)])


def test_neighbours_leave_as_one_slice(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 10)
    result = store.read("t", 0, 2, 5)
    assert (result.status, result.messages, result.next_offset) == (FetchStatus.FOUND, 5, 7)
    assert len(result.slices) == 1
    assert len(result.slices[0]) == result.size


def test_records_of_others_between_them_split_the_slices(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 12, queues=3)
    result = store.read("t", 1, 0, 32)
    assert [len(s) for s in result.slices] == [result.size // 4] * 4
    assert [bytes(store.record(at, size)) for at, size in result.ranges] == result.slices


def test_a_run_is_split_where_a_segment_ends(open_store: OpenStore) -> None:
    store = open_store()
    for _ in range(40):
        store.append([NewMessage("t", 0, b"x" * 1000)])
    result = store.read("t", 0, 0, 40, 1 << 20)
    assert result.messages == 40
    assert len(result.slices) == len(store.log.segments) == 3


def test_reads_are_bounded_by_count_and_bytes_but_give_at_least_one(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 10)
    one = store.read("t", 0, 0, 1).size
    assert store.read("t", 0, 0, 3).messages == 3
    assert store.read("t", 0, 0, 32, 2 * one).messages == 2
    assert store.read("t", 0, 0, 32, 2 * one + 1).messages == 2
    assert store.read("t", 0, 0, 32, 1).messages == 1
    assert store.read("t", 0, 0, 0).messages == 1


@pytest.mark.parametrize(
    ("topic", "offset", "status", "following"),
    [
        ("none", 0, FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        ("t", 5, FetchStatus.OFFSET_OVERFLOW_ONE, 5),
        ("t", 6, FetchStatus.OFFSET_OVERFLOW_BADLY, 5),
        ("t", 1 << 62, FetchStatus.OFFSET_OVERFLOW_BADLY, 5),
    ],
)
def test_reads_past_the_end_say_why(
    open_store: OpenStore, topic: str, offset: int, status: FetchStatus, following: int
) -> None:
    store = open_store()
    fill(store, 5)
    result = store.read(topic, 0, offset)
    assert (result.status, result.next_offset, result.slices) == (status, following, [])


@pytest.mark.parametrize("offset", [-1, 1 << 63, -(1 << 70)])
def test_offsets_that_cannot_be_are_errors_that_name_the_limit(
    open_store: OpenStore, offset: int
) -> None:
    store = open_store()
    fill(store, 1)
    for call in (lambda: store.read("t", 0, offset), lambda: store.store_time("t", 0, offset)):
        with pytest.raises(OffsetOutOfRangeError, match=rf"{offset} is outside 0\.\."):
            call()
    with pytest.raises(OffsetOutOfRangeError):
        store.message_at(offset)


def test_a_message_is_found_by_its_id(open_store: OpenStore) -> None:
    store = open_store()
    host = encode_host("10.0.0.9", 10911)
    (place,) = store.append([NewMessage("t", 0, b"me", store_host=host)])
    message = store.message_at(place.log_offset)
    assert message.message_id == "0A00000900002A9F" + f"{place.log_offset:016X}"
    assert bytes(store.message_by_id(message.message_id).body) == b"me"
    for bad in ("", "xyz", "00" * 15, "FF" * 16):
        with pytest.raises((MessageError, OffsetOutOfRangeError)):
            store.message_by_id(bad)


def test_keys_are_exact_though_hashes_are_not(open_store: OpenStore) -> None:
    store = open_store()
    assert java_hash("t#Aa") == java_hash("t#BB")
    for key in ("Aa", "BB", "Aa"):
        store.append([NewMessage("t", 0, key.encode(), encode_properties({"KEYS": key}))])
    found = [bytes(store.message_at(at).body) for at in store.find_by_key("t", "Aa")]
    assert found == [b"Aa", b"Aa"]
    assert len(store.find_by_key("t", "Aa", count_max=1)) == 1


def test_keys_are_found_by_exact_time(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store()
    begin = clock.now_ms()
    for _ in range(5):
        store.append([NewMessage("t", 0, b"", encode_properties({"UNIQ_KEY": "u"}))])
        clock.advance(300)
    assert len(store.find_by_key("t", "u", begin + 300, begin + 900)) == 3
    assert store.find_by_key("t", "u", begin + 901, begin + 1000) == []


def test_offsets_are_found_by_time(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store()
    begin = clock.now_ms()
    for _ in range(5):  # Stored at +0, +0, +100, +100, ...
        fill(store, 2)
        clock.advance(100)
    by_time = store.offset_by_time
    assert [by_time("t", 0, begin + ms) for ms in (-1, 0, 1, 100, 250, 400, 401)] == [
        0,
        0,
        2,
        2,
        6,
        8,
        10,
    ]
    assert [by_time("t", 0, begin + ms, upper=True) for ms in (-1, 0, 1, 100, 999)] == [
        0,
        1,
        1,
        3,
        9,
    ]
    assert by_time("none", 0, begin) == 0
    assert store.store_time("t", 0, 4) == begin + 200
    assert store.store_time("t", 0, 10) is None
    assert store.store_time("none", 0, 0) is None


def test_a_slice_outlives_its_segment(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store()
    for _ in range(40):
        store.append([NewMessage("t", 0, b"x" * 1000)])
        clock.advance(1000)
    held = store.read("t", 0, 0, 1).slices[0]
    content = bytes(held)
    store.retention.disk = lambda _: 86.0
    assert store.retain().segments_deleted == 2
    assert bytes(held) == content
    result = store.read("t", 0, 0)
    assert (result.status, result.next_offset) == (
        FetchStatus.OFFSET_TOO_SMALL,
        store.min_offset("t", 0),
    )


def test_a_read_that_races_with_deletion_says_so(open_store: OpenStore) -> None:
    store = open_store()
    for _ in range(40):
        store.append([NewMessage("t", 0, b"x" * 1000)])
    store.log.drop_first()
    result = store.read("t", 0, 0)
    assert result.status is FetchStatus.MESSAGE_WAS_REMOVING
    assert store.read("t", 0, result.next_offset).status is FetchStatus.FOUND
    assert store.messages("t", 0, 0, 99)[0].queue_offset == result.next_offset


@pytest.mark.parametrize("counts", [(1, 1, 3), (1, 70, 150), (150,)])
def test_many_messages_are_read_as_few_are(open_store: OpenStore, counts: tuple[int, ...]) -> None:
    store = open_store()
    chance = Random(7)
    for n in range(400 if max(counts) == 3 else 40):
        store.append(
            [
                NewMessage("t", chance.randrange(2), b"%04d" % n, inner_count=chance.choice(counts))
                for _ in range(chance.randrange(1, 5))
            ]
        )
    queue = store.queue_table.find("t", 0)
    assert queue is not None
    assert queue.end > 2 * COLUMNS_MIN
    for offset in (0, 1, 17, 300, queue.end - 1):
        for count_max in (COLUMNS_MIN, 10_000):
            for bytes_max in (1, 100, 5_000, 1 << 20):
                few = _collect(queue, offset, count_max, bytes_max)
                if max(counts) == 3:  # Else columns end before: they look at what may be needed.
                    many = _collect_columns(queue, offset, count_max, bytes_max)
                    assert many == few, (offset, count_max, bytes_max)
                if min(counts) > 1 and offset < queue.end - 1:
                    ranges, count, *rest = _collect_many(queue, offset, count_max, bytes_max)
                    assert (ranges, min(count, count_max), *rest) == few
    every = store.read("t", 0, 0, 100_000, 1 << 20)
    assert every.next_offset == queue.end
    assert b"".join(every.slices) == b"".join(
        part for offset in _records(store) for part in store.read("t", 0, offset, 1, 1).slices
    )


def test_a_read_of_many_records_among_those_of_others_ends_after_so_many_places(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    fill(store, 3 * COLUMNS_MIN, queues=2)
    every = store.read("t", 1, 0, 10_000, 1 << 20)
    assert len(every.ranges) == 3 * COLUMNS_MIN // 2
    monkeypatch.setattr(reader, "RANGES_MAX", 100)
    offset, slices = 0, list[memoryview]()
    for expected in (100, 100, 100, 84):
        some = store.read("t", 1, offset, 10_000, 1 << 20)
        assert (some.messages, len(some.ranges)) == (expected, expected)
        assert some.size == sum(map(len, some.slices))
        offset = some.next_offset
        slices += some.slices
    assert slices == every.slices


def _records(store: MessageStore) -> list[int]:
    """The first offset of each record of the queue."""
    found, before = [], -1
    for offset, (at, _, _) in enumerate(store.entries("t", 0, 0, 100_000)):
        if at != before:
            found.append(offset)
        before = at
    return found


def test_what_was_just_written_is_warm_and_cold_reads_give_the_same(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 10)
    result = store.read("t", 0, 0, 10)
    ((at, size),) = result.ranges
    assert store.is_warm(at, size)
    assert store.log.is_warm(at, size)
    assert store.read_cold(at, size) == result.slices[0]

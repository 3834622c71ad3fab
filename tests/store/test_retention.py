"""Retention: by age, hour, disk, topic."""

from pathlib import Path

import pytest

from onelog.clock import ManualClock
from onelog.config import StoreConfig
from onelog.errors import ConfigError, StoreClosedError, StoreFailedError, StoreFullError
from onelog.message import NewMessage, NewRun, SysFlag, encode_properties
from onelog.store.message_store import MessageStore
from onelog.store.retention import HEAD_ROOM_OF_DUE, parse_hours
from tests.store.conftest import SMALL, OpenStore

HOUR_MS = 3_600_000
EVERY_HOUR = StoreConfig(
    segment_bytes=SMALL.segment_bytes,
    queue_file_entries=10,
    index_slots=64,
    index_entries=20,
    retention_ms=10 * HOUR_MS,
    retention_hours=";".join(f"{hour:02d}" for hour in range(24)),
)
NEVER_BY_HOUR = StoreConfig(
    segment_bytes=SMALL.segment_bytes,
    queue_file_entries=10,
    retention_ms=10 * HOUR_MS,
    retention_hours="",
)


def fill(store: MessageStore, clock: ManualClock, segments: int, topic: str = "t") -> None:
    """One segment an hour, 15 messages each."""
    for _ in range(segments):
        for n in range(15):
            properties = encode_properties({"KEYS": f"k{n}"})
            store.append([NewMessage(topic, 0, b"x" * 900, properties)])
        clock.advance(HOUR_MS)


@pytest.fixture(autouse=True)
def half_empty_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onelog.store.retention.disk_percent", lambda _: 50.0)


def test_expired_segments_go_and_queues_and_index_follow(
    open_store: OpenStore, clock: ManualClock, tmp_path: Path
) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 20)
    assert store.retain().segments_deleted == 10  # At most ten a round.
    done = store.retain()
    assert done.reason == "the set hour"
    oldest = store.messages("t", 0, int(store.min_offset("t", 0)), 1)[0]
    assert store.log_min == oldest.log_offset
    assert clock.now_ms() - store.messages("t", 0, int(store.min_offset("t", 0)), 99)[
        -1
    ].store_ms < (10 * HOUR_MS)
    files = sorted((tmp_path / "store" / "consumequeue" / "t" / "0").iterdir())
    assert int(files[0].name) // 20 <= store.min_offset("t", 0) < int(files[0].name) // 20 + 10
    assert all(at >= store.log_min for at in store.find_by_key("t", "k3"))
    assert store.index.files[0].last_log >= store.log_min


def test_fresh_segments_stay_at_the_set_hour(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 5)
    assert store.retain().segments_deleted == 0


def test_expired_segments_wait_for_the_hour_unless_the_disk_fills_or_somebody_asks(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(NEVER_BY_HOUR)
    fill(store, clock, 14)
    assert store.retain().segments_deleted == 0
    store.retention.disk = lambda _: 76.0
    assert store.retain().segments_deleted > 0
    fill(store, clock, 3)
    store.retention.disk = lambda _: 10.0
    assert store.retain().segments_deleted == 0
    assert store.retention.run({}, manual=True).segments_deleted > 0


def test_over_85_percent_fresh_segments_go_but_never_the_active_one(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(NEVER_BY_HOUR)
    fill(store, clock, 5)
    store.retention.disk = lambda _: 86.0
    done = store.retain()
    assert done.segments_deleted == 4
    assert len(store.log.segments) == 1
    assert "86 % full" in done.reason
    assert store.append([NewMessage("t", 0, b"go on")])[0].queue_offset == 75


def test_over_90_percent_writes_are_refused_until_there_is_room(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(NEVER_BY_HOUR)
    store.retention.disk = lambda _: 91.0
    store.retain()
    with pytest.raises(StoreFullError, match=r"91\.0 % full; writes are refused from 90 %"):
        store.append([NewMessage("t", 0, b"")])
    store.retention.disk = lambda _: 60.0
    store.retain()
    store.append([NewMessage("t", 0, b"")])
    store.retention.disk = lambda _: 95.0
    store.retain()
    store.close()
    assert open_store(NEVER_BY_HOUR).recovery.clean


def test_a_longer_retention_of_one_topic_keeps_its_segments(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 2)
    (place,) = store.append([NewMessage("archive", 0, b"keep me")])
    fill(store, clock, 12)
    longer = {"archive": 1000 * HOUR_MS}
    store.retain(longer)
    assert bytes(store.message_at(place.log_offset).body) == b"keep me"
    assert store.log_min > 0
    store.retain()
    assert store.log_min > place.log_offset


def test_a_shorter_retention_of_one_topic_hides_its_messages(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 4, "short")
    fill(store, clock, 1, "long")
    done = store.retain({"short": 2 * HOUR_MS})
    assert done.messages_deleted == {("short", 0): 45}
    assert (store.min_offset("short", 0), store.max_offset("short", 0)) == (45, 60)
    assert store.min_offset("long", 0) == 0
    assert store.log_min == 0


@pytest.mark.parametrize("gone", [False, True])
def test_a_segment_is_as_old_as_its_newest_message_however_late_the_next_one_came(
    open_store: OpenStore, clock: ManualClock, gone: bool
) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 2, "quiet")
    if gone:
        store.delete_topic("quiet")
    clock.advance(11 * HOUR_MS)
    store.append([NewMessage("late", 0, b"x" * 4_000)])
    assert len(store.log.segments) == 3
    assert store.retain().segments_deleted == 2


def test_a_segment_with_old_messages_and_new_ones_is_new(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(EVERY_HOUR)
    store.append([NewMessage("quiet", 0, b"x" * 4_000)])
    for _ in range(2):
        clock.advance(11 * HOUR_MS)
        while len(store.log.segments) == 1:
            store.append([NewMessage("late", 0, b"x" * 900)])
        assert store.retain().segments_deleted == 0
        assert store.retain().segments_deleted == 0
        clock.advance(-2 * HOUR_MS)
    clock.advance(4 * HOUR_MS)
    assert store.retain().segments_deleted == 1


def test_what_went_is_counted_by_queue(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 12)
    done = store.retain()
    assert done.messages_deleted == {("t", 0): int(store.min_offset("t", 0))}
    assert done.bytes_deleted >= done.segments_deleted * EVERY_HOUR.segment_bytes
    assert done.log_start == store.log_min


def test_the_start_of_a_queue_is_the_same_after_reopening(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 14)
    store.retain()
    start, end = store.min_offset("t", 0), store.max_offset("t", 0)
    assert start > 0
    store.close()
    store = open_store(EVERY_HOUR)
    assert (store.min_offset("t", 0), store.max_offset("t", 0)) == (start, end)


def test_hours_are_checked() -> None:
    assert parse_hours("04;16") == {4, 16}
    assert parse_hours("") == frozenset()
    for bad in ("24", "x", "-1"):
        with pytest.raises(ConfigError, match=bad):
            parse_hours(bad)


# -- clocks --------------------------------------------------------------------------------------


def test_what_was_stored_while_the_clock_was_ahead_expires_with_what_came_after_it(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 2)
    clock.advance(8_760 * HOUR_MS)
    fill(store, clock, 3)
    clock.advance(-8_763 * HOUR_MS)
    fill(store, clock, 14)
    store.retain()
    left = store.messages("t", 0, int(store.min_offset("t", 0)), 999)
    assert store.min_offset("t", 0) > 5 * 15
    assert max(message.store_ms for message in left) <= clock.now_ms()


def test_while_nothing_came_after_the_clock_was_corrected_nothing_counts_as_old(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(EVERY_HOUR)
    clock.advance(8_760 * HOUR_MS)
    fill(store, clock, 3)
    clock.advance(-8_763 * HOUR_MS)
    clock.advance(100 * HOUR_MS)
    assert store.retain().segments_deleted == 0


def test_a_damaged_first_record_does_not_keep_the_file_before_it_for_ever(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 14)
    second = store.log.segments[1]
    with open(second.path, "r+b") as file:
        file.seek(0)
        file.write(bytes(200))
    store.retain()
    assert store.log_min > second.start


# -- what the owner needs ------------------------------------------------------------------------


@pytest.mark.parametrize("percent", [50.0, 86.0])
def test_what_the_owner_still_needs_is_kept_whatever_its_age(
    open_store: OpenStore, clock: ManualClock, caplog: pytest.LogCaptureFixture, percent: float
) -> None:
    store = open_store(EVERY_HOUR)
    fill(store, clock, 14)
    third = store.log.segments[2]
    store.retention.disk = lambda _: percent
    store.retention.kept_from = third.start + 100
    for _ in range(3):
        store.retain()
    assert store.log_min == third.start
    assert caplog.text.count(f"{third.path} should be deleted, but holds what still") == 1
    store.retention.kept_from = int(store.log_end)
    store.retain()
    assert store.log_min > third.start


def test_the_owner_writes_on_for_a_while_when_others_are_refused(open_store: OpenStore) -> None:
    store = open_store(NEVER_BY_HOUR)
    message = NewMessage("t", 0, b"x")
    store.retention.disk = lambda _: 94.0
    store.retain()
    store.append_own([message])
    with store.head_room():
        store.append_runs([NewRun.of(message)])
    with pytest.raises(StoreFullError):
        store.append([message])
    store.retention.disk = lambda _: 96.0
    with pytest.raises(StoreFullError), store.head_room(HEAD_ROOM_OF_DUE):
        store.append([message])
    store.append_own([message])
    store.retention.disk = lambda _: 97.0
    with pytest.raises(StoreFullError):
        store.append_own([message])
    store.retain()
    store.append_own([message])  # Half of what is left now.
    store.retention.disk = lambda _: 99.0
    store.retain()
    with pytest.raises(StoreFullError):
        store.append_own([message])
    assert store.max_offset("t", 0) == 4
    store.close()
    with pytest.raises(StoreClosedError):
        store.append_own([message])


def test_a_log_that_fills_the_disk_between_two_rounds_is_refused_before_the_disk_is_full(
    open_store: OpenStore,
) -> None:
    store = open_store(NEVER_BY_HOUR)
    store.retention.disk = lambda _: 50.0 + 10 * len(store.log.segments)
    message = NewMessage("t", 0, b"x" * 900)
    while len(store.log.segments) < 4:
        store.append([message])
    with pytest.raises(StoreFullError, match="full; writes are refused from 90 % on"):
        store.append([message])
    store.retention.disk = lambda _: 50.0
    store.retain()
    store.append([NewMessage("t", 0, b"x")])


def test_a_disk_that_fails_during_the_owners_write_is_not_forgiven(open_store: OpenStore) -> None:
    store = open_store(NEVER_BY_HOUR)
    store.retention.disk = lambda _: 91.0
    store.retain()
    with store.head_room():
        store.refusals.refuse_for_good(StoreFailedError("the disk is gone"))
    store.retention.disk = lambda _: 10.0
    store.retain()
    with pytest.raises(StoreFailedError):
        store.append([NewMessage("t", 0, b"x")])


# -- by size ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 3, 7, 20_000])
def test_a_topic_with_a_size_keeps_its_newest_messages(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("onelog.store.retention._ENTRIES_AT_ONCE", at_once)
    store = open_store(NEVER_BY_HOUR)
    places = []
    for number in range(12):
        count = 1 + number % 4
        batch = NewMessage("t", 0, b"x" * 500, sys_flag=int(SysFlag.NEED_UNWRAP), inner_count=count)
        store.append([batch])
        store.append([NewMessage("other", 0, b"y" * 500)])
        places += [number] * count
    (_, size, _) = next(iter(store.entries("t", 0, 0, 1)))
    for kept in (11, 8, 3, 1):
        store.retention.run({}, {"t": kept * size})
        assert store.min_offset("t", 0) == places.index(12 - kept)
        store.retention.run({}, {"t": kept * size + 1})
        assert store.min_offset("t", 0) == places.index(12 - kept), "nothing comes back"
    done = store.retention.run({}, {"t": 0})
    assert done.messages_deleted == {("t", 0): len(places) - places.index(11)}
    assert store.min_offset("t", 0) == store.max_offset("t", 0)
    assert (store.min_offset("other", 0), done.segments_deleted) == (0, 0)
    store.retention.run({}, {"t": 10, "nowhere": 10})


def test_a_queue_keeps_at_least_the_size_of_its_topic(open_store: OpenStore) -> None:
    store = open_store(NEVER_BY_HOUR)
    for _ in range(5):
        store.append([NewMessage("t", 0, b"x" * 500)])
    (_, size, _) = next(iter(store.entries("t", 0, 0, 1)))
    for limit, first in ((6 * size, 0), (5 * size, 0), (4 * size + 1, 0), (4 * size, 1)):
        store.retention.run({}, {"t": limit})
        assert store.min_offset("t", 0) == first

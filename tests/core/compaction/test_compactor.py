"""What is left of a compacted topic, for whom, and for how long."""

import shutil

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.topics import CLEANUP_POLICY
from onelog.core.queues.lease_ledger import IN_PLACE
from onelog.core.transactions.in_place import Stamp
from onelog.errors import MessageError
from onelog.message import NewMessage, NewRun
from onelog.names import COMPACTED_TOPIC
from onelog.record.forms import Form, kafka
from onelog.record.forms.kafka import Codec
from onelog.store.verify import verify
from tests.core.compaction.queues import (
    MINUTE,
    TOPIC,
    Seen,
    compact,
    latest,
    make,
    pulled_by_rocketmq,
    seen,
    send,
)
from tests.core.leasing import LEASE_MS, Reader
from tests.core.sharing import Sharer
from tests.core.world import HELD_S_MAX, World

DAY = 86_400_000


def pass_days(world: World, days: int) -> None:
    """Let days pass at once; what was to be done in each of their minutes is done a few times."""
    world.clock.advance(days * DAY)
    world.advance(MINUTE)


def left(world: World) -> list[tuple[int, bytes | None]]:
    return [(each.offset, each.value) for each in seen(world)]


def test_of_each_key_the_last_message_stays_at_its_offset(world: World) -> None:
    make(world)
    send(world, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    send(world, (b"c", b"4"))
    send(world, (b"b", b"5"), (b"d", b"6"))
    send(world, (b"a", b"7"))
    assert len(seen(world)) == 7
    compact(world)
    assert left(world) == [(2, b"3"), (3, b"4"), (4, b"5"), (5, b"6"), (6, b"7")]
    send(world, (b"z", b"8"))
    compact(world)  # What was the newest message is not any more.
    assert left(world) == [(3, b"4"), (4, b"5"), (5, b"6"), (6, b"7"), (7, b"8")]
    assert world.store.min_offset(TOPIC, 0) == 0
    assert [each.offset for each in seen(world, 5)] == [5, 6, 7]


def test_what_is_young_is_left_alone(world: World) -> None:
    make(world, min_compaction_lag_ms=str(10 * MINUTE))
    for value in (b"1", b"2", b"3"):
        send(world, (b"a", value))
    world.advance(5 * MINUTE)
    assert len(seen(world)) == 3
    world.advance(6 * MINUTE)
    assert left(world) == [(1, b"2"), (2, b"3")]


def test_without_enough_that_is_new_nothing_is_done(world: World) -> None:
    make(world, min_cleanable_dirty_ratio="0.5")
    send(world, *((b"k%d" % number, b"") for number in range(100)))
    send(world, (b"z", b""))
    compact(world)
    remains = world.core.compaction.compacted[TOPIC, 0]
    for _ in range(50):
        send(world, (b"a", b"x"))
    compact(world)
    assert world.core.compaction.compacted[TOPIC, 0] is remains
    for _ in range(51):
        send(world, (b"a", b"y"))
    compact(world)
    assert len(seen(world)) == 103


def test_a_queue_that_does_not_change_is_gone_over_once(world: World) -> None:
    make(world)
    send(world, (b"a", b"1"), (b"a", b"2"))
    send(world, *((b"k%d" % number, b"") for number in range(50)))
    compact(world)
    remains = world.core.compaction.compacted[TOPIC, 0]
    assert (remains.clean, remains.messages) == (2, 1)
    world.advance(20 * MINUTE)
    assert world.core.compaction.compacted[TOPIC, 0] is remains


def test_what_is_old_is_compacted_however_little_it_is(world: World) -> None:
    make(world, min_cleanable_dirty_ratio="1", max_compaction_lag_ms=str(30 * MINUTE))
    for value in (b"1", b"2"):
        send(world, (b"a", value))
    compact(world)
    send(world, (b"b", b"3"), (b"b", b"4"))
    send(world, (b"c", b"5"))
    world.advance(20 * MINUTE)
    assert len(seen(world)) == 5
    world.advance(20 * MINUTE)
    assert left(world) == [(1, b"2"), (3, b"4"), (4, b"5")]


def test_a_tombstone_goes_some_time_after_what_it_deletes(world: World) -> None:
    make(world)
    send(world, (b"a", b"1"), (b"b", b"2"))
    send(world, (b"a", None))
    send(world, (b"c", b"3"))
    compact(world)
    assert seen(world) == [Seen(1, b"b", b"2"), Seen(2, b"a", None), Seen(3, b"c", b"3")]
    world.advance(5 * MINUTE)
    send(world, (b"b", None))
    send(world, (b"d", b"4"))
    compact(world)
    assert [each.offset for each in seen(world)] == [2, 3, 4, 5]
    world.advance(4 * MINUTE)
    assert [each.offset for each in seen(world)] == [3, 4, 5]
    world.advance(20 * MINUTE)
    assert [each.offset for each in seen(world)] == [3, 5]


def test_however_often_a_queue_is_gone_over_its_tombstones_are_known_in_few_parts(
    world: World,
) -> None:
    make(world, delete_retention_ms=str(30 * MINUTE))
    for number in range(130):
        send(world, (b"k%d" % number, None))
        send(world, (b"z", b""))
        world.advance(20_000)
        assert len(world.core.compaction.compacted[TOPIC, 0].cleaned) <= 52
        # None of the last half hour is lacking, and none stays for much longer.
        kept = [each for each in seen(world) if each.value is None]
        assert min(number + 1, 88) <= len(kept) <= 98
    world.advance(40 * MINUTE)
    assert {each.key for each in seen(world)} == {b"z"}


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_stay_compressed(world: World, codec: Codec) -> None:
    make(world)
    send(world, *((b"k%d" % (number % 10), bytes(100)) for number in range(20)), codec=codec)
    send(world, (b"z", b""))
    compact(world)
    assert [each.offset for each in seen(world)] == [*range(10, 21)]
    (record,) = world.store.messages(COMPACTED_TOPIC, 0, 0, 10)
    assert kafka.read_head(record.body).attributes == codec


def test_rocketmqs_readers_see_the_same(world: World) -> None:
    make(world)
    world.send(TOPIC, body=b"1", KEYS="a", TAGS="x")
    send(world, (b"a", b"2"), (b"b", b"3"))
    world.send(TOPIC, body=b"4", KEYS="b", colour="red")
    world.send(TOPIC, body=b"5", KEYS="c")
    world.send(TOPIC, body=b"6", KEYS="d")
    compact(world)
    assert pulled_by_rocketmq(world) == [(1, b"2"), (3, b"4"), (4, b"5"), (5, b"6")]
    assert left(world) == [(1, b"2"), (3, b"4"), (4, b"5"), (5, b"6")]


def run_of(properties: list[bytes]) -> NewRun:
    return NewRun(TOPIC, 0, [(0, b"run", each) for each in properties], b"run".join(properties))


def test_messages_without_a_key_are_refused_or_dropped(world: World) -> None:
    world.topic(TOPIC, 1)
    world.send(TOPIC, body=b"lost")
    world.topic(TOPIC, 1, attributes={CLEANUP_POLICY: "compact", "segment.ms": "1"})
    for _ in range(2):
        with pytest.raises(MessageError, match="key is missing"):
            world.publish(NewMessage(TOPIC, 0, b"x"))
        with pytest.raises(MessageError, match="key is missing"):
            world.broker.publish.send(SELF, run_of([b"KEYS\x01a\x02", b""]), world.on_stored)
        world.broker.publish.send(SELF, run_of([b"KEYS\x01a\x02"] * 2), world.on_stored)
        world.end_tick()
    send(world, (b"a", b"1"))
    send(world, (b"b", b"2"))
    compact(world)
    assert left(world) == [(5, b"1"), (6, b"2")]


def test_transactions_are_waited_for_and_what_they_abort_is_gone(world: World) -> None:
    make(world)
    world.core.batch_producers.covers = lambda stamp, queue: None
    send(world, (b"a", b"1"), (b"b", b"2"))

    def marker(producer: int, *, commit: bool) -> None:
        body = kafka.control_batch(producer, 0, world.clock.now_ms(), commit=commit)
        flags = Form.KAFKA.sys_flag
        (place,) = world.store.append([NewMessage(TOPIC, 0, body, sys_flag=flags)])
        world.core.batch_producers.ended((TOPIC, 0), producer, 0, place.queue_offset, kept=commit)

    send(world, (b"a", b"aborted"), stamp=Stamp(7, 0, 0, 1, True))
    send(world, (b"b", b"3"), stamp=Stamp(8, 0, 0, 1, True))
    send(world, (b"c", b"4"))
    compact(world)
    assert seen(world) == [Seen(0, b"a", b"1"), Seen(1, b"b", b"2")]
    marker(7, commit=False)
    marker(8, commit=True)
    send(world, (b"d", b"5"), stamp=Stamp(7, 0, 1, 1, True))
    send(world, (b"d", b"6"))
    compact(world)  # Up to the transaction that began just now.
    expected = [(0, b"1"), (3, b"3"), (4, b"4")]
    assert left(world) == expected
    assert pulled_by_rocketmq(world) == expected
    marker(7, commit=True)
    send(world, (b"e", b"7"))
    compact(world)
    assert left(world) == [*expected, (8, b"6"), (10, b"7")]


def test_more_keys_than_fit_take_more_than_one_pass(world: World) -> None:
    make(world)
    world.core.compaction.keys_max = 10
    for number in range(100):
        send(world, (b"k%d" % (number % 50), b"%d" % number))
    send(world, (b"z", b""))
    world.advance(20 * MINUTE)
    assert [each.offset for each in seen(world)] == [*range(50, 101)]


def test_a_topic_becomes_compacted_and_back(world: World) -> None:
    world.topic(TOPIC, 1)
    for value in (b"1", b"2", b"3"):
        send(world, (b"a", value))
    compact(world)
    assert len(seen(world)) == 3
    make(world)
    compact(world)
    assert left(world) == [(1, b"2"), (2, b"3")]
    world.topic(TOPIC, 1)
    for value in (b"4", b"5"):
        send(world, (b"a", value))
    compact(world)
    assert left(world) == [(1, b"2"), (2, b"3"), (3, b"4"), (4, b"5")]
    make(world)
    compact(world)
    assert left(world) == [(3, b"4"), (4, b"5")]
    world.topic(TOPIC, 1)
    pass_days(world, 4)  # As old as messages may be.
    assert left(world) == [(4, b"5")]
    assert not world.core.compaction.compacted


def test_records_can_be_deleted_from_both_parts(world: World) -> None:
    make(world)
    for number in range(10):
        send(world, (b"k%d" % number, b""))
    compact(world)
    assert world.broker.topics.delete_before(SELF, TOPIC, 0, 4) == 4
    assert [each.offset for each in seen(world)] == [*range(4, 10)]
    world.crash()
    assert [each.offset for each in seen(world)] == [*range(4, 10)]
    send(world, (b"z", b""))
    compact(world)
    assert [each.offset for each in seen(world)] == [*range(4, 11)]
    assert world.broker.topics.delete_before(SELF, TOPIC, 0, -1) == 11
    assert seen(world) == []
    send(world, (b"z", b"1"))
    send(world, (b"z", b"2"))
    send(world, (b"z", b"3"))
    compact(world)
    assert left(world) == [(12, b"2"), (13, b"3")]


def test_a_deleted_topic_leaves_nothing(world: World) -> None:
    make(world)
    for value in (b"1", b"2", b"3"):
        send(world, (b"a", value))
    compact(world)
    world.broker.topics.delete(SELF, TOPIC)
    assert not world.core.compaction.compacted
    make(world)
    send(world, (b"a", b"4"))
    assert left(world) == [(0, b"4")]


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_it_is_the_same_after_a_stop(world: World, end: str) -> None:
    make(world)
    for number in range(30):
        send(world, (b"k%d" % (number % 7), b"%d" % number))
        if number % 5 == 0:
            compact(world)
        if number % 4 == 0:
            before = seen(world)
            getattr(world, end)()
            assert seen(world) == before
    assert latest(seen(world)) == {b"k%d" % (each % 7): b"%d" % each for each in range(30)}


def test_a_pass_that_was_cut_off_counts_for_nothing(world: World) -> None:
    make(world)
    for number in range(20):
        send(world, (b"k%d" % (number % 7), bytes(50_000)))
    before = len(seen(world))
    while not world.store.max_offset(COMPACTED_TOPIC, 0):
        world.advance(1)
    assert not world.core.compaction.compacted
    world.crash()
    assert len(seen(world)) == before == 20
    compact(world)
    assert [each.offset for each in seen(world)] == [*range(12, 20)]


def test_what_is_left_outlives_the_log_that_held_it(world: World) -> None:
    make(world)
    for number in range(20):
        send(world, (b"k%d" % (number % 5), b"%d" % number))
    expected = {b"k%d" % (each % 5): b"%d" % each for each in range(20)}
    for _ in range(4):
        compact(world)
        world.topic("noise", 1)
        for _ in range(30):
            world.send("noise", body=bytes(100_000))
        pass_days(world, 4)
        start = world.store.log_min
        for _ in range(5):
            world.retain()
            world.advance(MINUTE)
        assert world.store.log_min > start
        assert latest(seen(world)) == expected
        world.crash()
        assert latest(seen(world)) == expected
    assert world.store.min_offset(TOPIC, 0) == 0
    assert send(world, (b"k0", b"new")) == 20
    assert latest(seen(world)) == {**expected, b"k0": b"new"}


def test_messages_that_are_too_young_are_carried_over_as_they_are(world: World) -> None:
    make(world, min_compaction_lag_ms=str(10 * DAY))
    for number in range(4):
        send(world, (b"a", b"%d" % number))
    world.topic("noise", 1)
    for _ in range(30):
        world.send("noise", body=bytes(100_000))
    pass_days(world, 4)
    for _ in range(5):
        world.retain()
        world.advance(MINUTE)
    assert world.store.log_min > 0
    assert [each.offset for each in seen(world)] == [0, 1, 2, 3]
    remains = world.core.compaction.compacted[TOPIC, 0]
    world.advance(10 * MINUTE)
    assert world.core.compaction.compacted[TOPIC, 0] is remains
    pass_days(world, 7)
    assert [each.offset for each in seen(world)] == [3]


def test_a_topic_that_deletes_too_forgets_old_messages(world: World) -> None:
    make(world, "compact,delete", retention_ms=str(DAY))
    send(world, (b"a", b"1"), (b"b", b"2"))
    send(world, (b"a", b"3"))
    send(world, (b"c", b"4"))
    compact(world)
    assert [each.offset for each in seen(world)] == [1, 2, 3]
    world.clock.advance(DAY // 2)
    send(world, (b"d", b"5"))
    send(world, (b"e", b"6"))
    world.clock.advance(DAY // 2)
    world.advance(10 * MINUTE)
    assert [each.offset for each in seen(world)] == [4, 5]


def test_what_does_not_delete_keeps_its_messages_longer_than_it_says(world: World) -> None:
    make(world, retention_ms=str(MINUTE))
    assert world.core.topics.retention_ms() == {}
    send(world, (b"a", b"1"))
    send(world, (b"b", b"2"))
    pass_days(world, 1)
    world.retain()
    assert [each.offset for each in seen(world)] == [0, 1]


def expire(world: World) -> None:
    """Have the log go that is there now, as far as it may."""
    world.topic("noise", 1)
    for _ in range(30):
        world.send("noise", body=bytes(100_000))
    pass_days(world, 4)
    start = world.store.log_min
    for _ in range(5):
        world.retain()
        world.advance(MINUTE)
    assert world.store.log_min > start


def test_places_by_time_are_found_in_what_is_left(world: World) -> None:
    make(world)
    begin_ms = world.clock.now_ms()
    for number in range(5):
        send(world, (b"k%d" % (number // 2), b""))
        world.clock.advance(1_000)
    compact(world)
    expire(world)
    send(world, (b"z", b""))
    broker = world.broker

    def first(since_ms: int) -> int | None:
        found = broker.topics.first_message_since(SELF, TOPIC, 0, since_ms)
        return None if found is None else found.offset

    assert [first(begin_ms + each * 1_000) for each in range(6)] == [1, 1, 3, 3, 4, 5]
    assert first(world.clock.now_ms() + 1) is None
    last = broker.topics.latest_message(SELF, TOPIC, 0)
    assert last is not None
    assert last.offset == 5
    assert broker.topics.offset_by_time(SELF, TOPIC, 0, begin_ms) == 0
    assert broker.topics.offset_by_time(SELF, TOPIC, 0, world.clock.now_ms() + 1) == 6


def test_a_lease_on_what_is_left_comes_back(world: World) -> None:
    make(world)
    for number in range(4):
        send(world, (b"k%d" % (number // 2), b"%d" % number))
    send(world, (b"z", b""))
    compact(world)
    expire(world)
    reader = Reader(world, topic=TOPIC)
    assert [each.body for each in reader.take(2, policy=IN_PLACE)] == [b"1", b"3"]
    world.advance(2 * LEASE_MS)
    assert [(each.offset, each.body) for each in reader.take(2, policy=IN_PLACE)] == [
        (1, b"1"),
        (3, b"3"),
    ]


def test_what_a_share_group_gave_back_is_had_from_what_is_left(world: World) -> None:
    make(world)
    for number in range(4):
        send(world, (b"k%d" % (number % 3), b"%d" % number))
    ann = Sharer(world, topic=TOPIC)
    assert list(ann.take()) == [0, 1, 2, 3]
    ann.give_back(0, 1, 2)
    ann.accept(3)
    send(world, (b"z", b""))
    expire(world)
    assert [each.offset for each in seen(world)] == [1, 2, 3, 4]
    assert ann.take() == {1: 2, 2: 2, 4: 1}, "message 0 was compacted"
    ann.accept(1, 2, 4)
    assert ann.position == 5


def test_queues_that_are_made_anew_go_on_behind_what_is_left(world: World) -> None:
    make(world)
    for number in range(5):
        send(world, (b"k%d" % number, b""))
    compact(world)
    expire(world)
    assert world.store.queue_table.get(TOPIC, 0).start == 5
    world.close()
    shutil.rmtree(world.folder / "consumequeue")
    world.start()
    assert [each.offset for each in seen(world)] == [*range(5)]
    assert send(world, (b"z", b"")) == 5
    world.crash()
    assert [each.offset for each in seen(world)] == [*range(6)]


def test_what_is_not_compacted_any_more_is_not_carried_over(world: World) -> None:
    make(world)
    for number in range(5):
        send(world, (b"a", b"%d" % number))
    compact(world)
    world.topic(TOPIC, 1)
    expire(world)
    assert seen(world) == []
    assert world.store.min_offset(TOPIC, 0) == 5
    assert not world.core.compaction.compacted


def test_a_loss_of_power_takes_nothing_that_was_on_disk(world: World) -> None:
    make(world)
    for number in range(10):
        send(world, (b"k%d" % (number % 3), b"%d" % number))
    assert world.store.wait_flushed(world.store.log_end)
    compact(world)
    assert len(seen(world)) == 4
    world.power_loss()
    assert latest(seen(world)) == {b"k0": b"9", b"k1": b"7", b"k2": b"8"}
    expire(world)
    compact(world)
    world.power_loss()
    assert latest(seen(world)) == {b"k0": b"9", b"k1": b"7", b"k2": b"8"}


def test_nobody_waits_for_a_pass(world: World, no_garbage: None) -> None:
    make(world)
    for _ in range(20):
        send(world, *((b"%d" % (each % 500), bytes(100)) for each in range(1_000)))
    send(world, (b"z", b""))
    world.timer.longest_cpu_s = 0
    compact(world)
    assert len(seen(world)) == 501
    assert world.timer.longest_cpu_s < HELD_S_MAX


def test_a_store_with_compacted_queues_is_right(world: World) -> None:
    make(world)
    for number in range(30):
        send(world, (b"k%d" % (number % 7), b"%d" % number))
        if number % 10 == 0:
            compact(world)
    expire(world)
    world.crash()
    world.close()
    found = verify(world.folder, index_slots=1_000, index_entries=4_000)
    assert [str(each) for each in found.problems] == []
    world.start()

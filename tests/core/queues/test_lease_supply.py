"""What is handed out: what came back, then what is wanted of the unread; nothing that is gone."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onelog.core.cursors.pending_reads import Missing
from onelog.core.queues.lease_supply import LeaseRequest
from onelog.message import NewMessage
from onelog.rocketmq.profile import NAMING
from tests.core.leasing import (
    GROUP,
    LEASE_MS,
    ORDERED,
    STAY,
    TICK_MS,
    TOPIC,
    Reader,
    bodies,
    reading,
)

RETRY = NAMING.lease_retry_topic(GROUP, TOPIC)


def test_messages_that_are_not_wanted_are_passed_over(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(10):
        reader.world.send(body=b"%d" % n, TAGS="odd" if n % 2 else "even")
    leased = reader.pop(tags="odd")
    assert bodies(leased) == [b"1", b"3", b"5", b"7", b"9"]
    assert [each.offset for each in leased] == [1, 3, 5, 7, 9]
    assert reader.cursor() == 1
    reader.ack(*leased)
    assert reader.cursor() == 10


def test_where_nothing_is_wanted_the_cursor_goes_on(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for _ in range(10):
        reader.world.send(TAGS="x")
    assert reader.pop(tags="y") == []
    assert reader.cursor() == 10
    reader.world.crash()
    assert reader.pop() == []


def test_a_record_that_queues_share_is_leased_under_the_offset_of_each(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    for n in range(4):
        message = NewMessage(
            "elsewhere", 0, b"%d" % n, b"TAGS\x01%s\x02" % (b"ab"[n % 2 : n % 2 + 1])
        )
        reader.world.store.append([message._replace(extra_queues=(TOPIC,))])
    assert [each.offset for each in reader.pop()] == [0, 1, 2, 3, 4]
    reader.group = "others"
    leased = reader.pop(tags="b")
    assert [each.offset for each in leased] == [2, 4]
    assert bodies(leased) == [b"1", b"3"]


def test_one_that_stays_waits_for_a_member_that_wants_it(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send(body=b"a", TAGS="a")
    reader.world.send(body=b"b", TAGS="b")
    reader.take(policy=STAY)
    reader.world.advance(LEASE_MS + TICK_MS)
    assert bodies(reader.take(policy=STAY, tags="b")) == [b"b"]
    assert bodies(reader.take(policy=STAY, tags="a")) == [b"a"]


def test_a_queue_that_lost_its_end_is_followed(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    reader.world.send()
    reader.pop()
    queue = reader.leases._queues[GROUP, TOPIC, 0]
    queue.next = 9
    assert reader.pop() == []
    for n in range(3):
        reader.world.send(body=b"%d" % n)
    assert len(reader.pop()) == 3


def test_messages_that_retention_deleted_are_finished(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    world = reader.world
    for _ in range(3):
        world.send()
    reader.take(1)
    reader.take(1, policy=STAY)
    again = reader.take(1, policy=ORDERED, attempt_id="a")
    assert again == [], "others are out"
    world.advance(LEASE_MS + TICK_MS)
    world.clock.advance(1_000)
    world.send(body=b"kept")
    world.store.retain({TOPIC: 500, RETRY: 500})
    assert world.store.min_offset(TOPIC, 0) == 3
    assert bodies(reader.pop()) == [b"kept"]
    assert reader.cursor() == 3


def slow(reader: Reader, wanted: str = "") -> Callable[[Mapping[str, str]], bool]:
    """A filter that takes 4 ms for a message, and wants those of this colour; there are 10 ms."""

    def matches(properties: Mapping[str, str]) -> bool:
        reader.world.seconds += 0.004
        return properties["colour"] == wanted

    return matches


def look(reader: Reader, request: LeaseRequest) -> Any:
    """What one look at the queue gives, or why it does not."""
    return reader.leases.take(request, TOPIC, 0, 32, 1 << 20, reader.leases.stamp())


def test_a_slow_filter_takes_its_time_tick_by_tick_and_the_cursor_goes_on(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(8):
        reader.world.send(body=b"%d" % n, colour="red" if n == 7 else "blue")
    request = reader.request(predicate=slow(reader, "red"))
    for seen in (3, 6):
        assert look(reader, request) == Missing(later=True)
        reader.end_tick()
        assert reader.cursor() == seen
    assert look(reader, request).offsets == (7,)


def test_what_a_slow_filter_found_goes_out_at_once(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(8):
        reader.world.send(body=b"%d" % n, colour="red" if n == 1 else "blue")
    assert bodies(reader.pop(predicate=slow(reader, "red"))) == [b"1"]


def test_a_request_that_finds_the_time_of_filters_used_up_has_its_turn_later(
    tmp_path: Path,
) -> None:
    reader = reading(tmp_path)
    for _ in range(4):
        reader.world.send(colour="blue")
    look(reader, reader.request(predicate=slow(reader)))
    reader.group = "others"
    assert look(reader, reader.request(predicate=slow(reader))) == Missing(later=True)
    assert len(reader.pop()) == 4


def test_a_slow_filter_on_what_came_back_takes_its_time_too(tmp_path: Path) -> None:
    reader = reading(tmp_path)
    for n in range(8):
        reader.world.send(body=b"%d" % n, colour="red" if n in (2, 4) else "blue")
    assert len(reader.take(policy=STAY)) == 8
    reader.world.advance(LEASE_MS + TICK_MS)
    assert bodies(reader.take(policy=STAY, predicate=slow(reader, "red"))) == [b"2"]
    assert bodies(reader.take(policy=STAY)) == [b"%d" % n for n in (0, 1, 3, 4, 5, 6, 7)]

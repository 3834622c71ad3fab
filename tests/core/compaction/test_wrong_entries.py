"""Entries that lie about what is left of a compacted topic: every way to find a message."""

import pytest

from onelog.core.access import SELF
from onelog.core.filters.tags import subscribe
from onelog.names import COMPACTED_TOPIC
from onelog.record.decode import decode_messages
from tests.core.compaction.queues import TOPIC, compact, make, pulled_by_rocketmq, seen, send
from tests.core.world import World
from tests.security.test_red_state import COUNT, LIES, lie

_LIES = [kind for kind in LIES if "other topic" not in kind]


def filled(world: World) -> None:
    """A queue of which a part was compacted to `COUNT` records of their own, and a part was not."""
    make(world, segment_ms="600000")
    for number in range(2 * COUNT):
        send(world, (b"key%d" % (number % COUNT), b"value%d" % number))
        world.clock.advance(1_000)
    world.advance(20 * 60_000)
    send(world, (b"last", b"one"))
    compact(world)
    world.topic("others", 1)
    for number in range(COUNT):
        world.send("others", body=b"%d" % number)


def answers(world: World) -> list[object]:
    """What all ways to look for messages find."""
    store, topics = world.store, world.broker.topics
    found: list[object] = [*seen(world), *pulled_by_rocketmq(world)]
    begin = world.begin_ms
    found += [
        topics.offset_by_time(SELF, TOPIC, 0, begin + seconds * 1_000)
        for seconds in range(0, 2 * COUNT + 2, 3)
    ]
    for text, form in (("TAGS IS NULL", "SQL92"), ("some || *", "TAG"), ("some", "TAG")):
        offset = int(store.min_offset(TOPIC, 0))
        for _ in range(100):
            result = world.pull(offset, TOPIC, subscription=subscribe(TOPIC, text, form))
            found += [
                (each.queue_offset, bytes(each.body))
                for part in result.slices
                for each in decode_messages(part)
            ]
            if result.next_offset <= offset:
                break
            offset = result.next_offset
    found += [store.find_by_key(TOPIC, key) for key in ("key0", "key7", "nothing")]
    return found


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("kind", _LIES)
def test_entries_of_what_is_left_that_lie_change_no_answer(
    world: World, kind: str, crash: bool
) -> None:
    filled(world)
    entries = world.store.max_offset(COMPACTED_TOPIC, 0)
    assert entries >= COUNT
    right = answers(world)
    lie(world, LIES[kind], COMPACTED_TOPIC, crash=crash)
    assert answers(world) == right
    world.restart()
    assert answers(world) == right


@pytest.mark.parametrize("kind", _LIES)
def test_entries_of_a_compacted_topic_that_lie_change_no_answer(world: World, kind: str) -> None:
    filled(world)
    right = answers(world)
    lie(world, LIES[kind], TOPIC)
    assert answers(world) == right
    assert [each.offset for each in seen(world)][-1] == 2 * COUNT


@pytest.mark.parametrize("kind", _LIES)
def test_compaction_goes_on_over_entries_that_lie(world: World, kind: str) -> None:
    filled(world)
    before = {each.key: each.value for each in seen(world)}
    lie(world, LIES[kind], COMPACTED_TOPIC)
    send(world, (b"key3", b"newer"))
    compact(world)
    send(world, (b"last", b"two"))
    compact(world)
    assert {each.key: each.value for each in seen(world)} == {
        **before,
        b"key3": b"newer",
        b"last": b"two",
    }

"""Topics and groups of any name, in every part of the broker that keeps names."""

from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.names import Naming
from onelog.core.membership.assignment import RequestMode
from onelog.errors import InvalidGroupError, InvalidTopicError
from onelog.names import NAME_BYTES_MAX
from onelog.rocketmq.profile import NAMING
from onelog.store.readonly import open_readonly
from onelog.store.verify import verify
from tests.core.leasing import Reader, bodies
from tests.core.world import World, pulled

NAMES = [
    "orders",
    "%RETRY%g",
    "payments.eu-west.v1",
    "sensors/kitchen/temp",
    "/",
    ".",
    "..",
    "../up",
    "a b",
    "user@host",
    "a@b@1",
    "~",
    "~1",
    "50%",
    "back\\slash",
    'quo"te',
    "Ünïcode 题",
    "a,b",
    "x" * NAME_BYTES_MAX,
    "題" * 85,
    "/" * NAME_BYTES_MAX,
]


def _use(world: World, name: str) -> None:
    """Do everything that leaves the name somewhere."""
    world.topic(name, 2)
    world.send(name, 1, b"first")
    world.send(name, 1, b"second")
    world.core.groups.put(GroupConfig(name, retry_times_max=3))
    world.commit(name, name, 1, 1)
    world.core.offsets.flush()
    if not NAMING.is_retry(name):
        world.core.request_modes.set(name, name, RequestMode("POP", 2))
    leasing = "leasing@" + name[:50]
    world.core.groups.require(leasing)
    leased = Reader(world, leasing, name).take(queue_id=1)
    assert bodies(leased) == [b"first", b"second"]


def _check(world: World, name: str) -> None:
    broker = world.broker
    assert world.core.topics.require(name).write_queues == 2
    assert world.bodies(name, 1) == [b"first", b"second"]
    assert pulled(world.pull(0, name, 1, group=name)) == [b"first", b"second"]
    assert broker.cursors.query(SELF, name, name, 1) == 1
    assert name in world.core.offsets.groups_of(name)
    assert world.core.groups.require(name).retry_times_max == 3
    if not NAMING.is_retry(name):
        assert world.core.request_modes.all()[name, name] == RequestMode("POP", 2)
    reader = Reader(world, "leasing@" + name[:50], name)
    assert reader.take(queue_id=1) == []
    assert world.core.stats.get_rate(name, name) > 0


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_a_name_survives_a_restart_and_a_kill(world: World, name: str) -> None:
    _use(world, name)
    _check(world, name)
    world.restart()
    _check(world, name)
    world.crash()
    _check(world, name)


def test_all_names_live_side_by_side(world: World) -> None:
    for name in NAMES:
        _use(world, name)
    world.crash()
    for name in NAMES:
        _check(world, name)
    reader = open_readonly(world.folder)
    for name in NAMES:
        found = reader.messages(name, 1, 0, 10)
        assert [bytes(each.body) for each in found] == [b"first", b"second"]
    assert verify(world.folder).clean
    for name in NAMES:
        world.broker.topics.delete(SELF, name)
        assert world.messages(name, 1) == []
    world.restart()
    assert not {*NAMES} & {*world.store.queues()}


def test_a_deletion_forgets_only_what_is_named(world: World) -> None:
    for topic, group in [("a", "b@c"), ("a@b", "c")]:
        world.topic(topic)
        world.fill(topic, 0, 9)
        world.commit(group, topic, 0, len(group))
        world.pull(0, topic, group=group)
    world.broker.topics.delete(SELF, "a")
    world.restart()
    assert world.core.offsets.all() == {("c", "a@b"): {0: 1}}


@pytest.mark.parametrize("name", ["", "a\x00", "a\nb", "x" * 256, "\x85"])
def test_what_is_no_name_is_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidTopicError):
        world.topic(name)
    with pytest.raises(InvalidGroupError):
        world.core.groups.require(name)


@pytest.mark.parametrize("naming", [Naming(), NAMING])
def test_topics_that_are_made_for_groups_have_names_that_fit(naming: Naming) -> None:
    long, other = "g" * NAME_BYTES_MAX, "g" * (NAME_BYTES_MAX - 1) + "h"
    for made in (naming.retry_topic, naming.dead_letter_topic):
        assert len(made(long).encode()) <= NAME_BYTES_MAX
        assert made(long) != made(other)
        assert made("題" * 85) != made("題" * 84)
        assert made("g").endswith("g")
    assert naming.is_retry(naming.retry_topic(long))
    assert naming.is_retry(naming.lease_retry_topic(long, long))
    assert not naming.is_retry(naming.dead_letter_topic(long))


def test_a_failed_message_of_a_long_group_comes_again_and_then_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "store")
    group = "g/" * 127
    world.topic("orders")
    world.core.groups.put(GroupConfig(group, retry_times_max=1))
    reader = Reader(world, group)
    world.send("orders", 0, b"bad")
    for _ in range(2):
        assert bodies(reader.pop()) == [b"bad"]
        world.advance(11_000)
        world.end_tick()
    assert world.bodies(NAMING.dead_letter_topic(group)) == [b"bad"]
    world.close()

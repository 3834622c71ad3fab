from onelog.core.access import SELF
from onelog.core.catalog.placements import Placement, TopicPlacement
from onelog.core.catalog.topics import TopicConfig
from tests.core.world import World


def test_partitions_go_round_brokers_and_take_their_queues_in_order() -> None:
    placement = Placement(1, []).grown(5, [0, 1]).grown(2, [2]).grown_to([1, 1, 0])
    assert placement.nodes == [0, 1, 0, 1, 0, 2, 2, 1, 1, 0]
    placed = TopicPlacement(placement, 1)
    assert placed.queues == [0, 0, 1, 1, 2, 0, 1, 2, 3, 3]
    assert placed.partitions == [1, 3, 7, 8]
    assert TopicPlacement(placement, 3).partitions == []


def test_a_placement_is_read_as_it_was_written() -> None:
    placement = Placement(7, [(3, [0, 1])], {"retention.ms": "5"}, 9)
    assert Placement.decode(placement.encode()) == placement
    assert Placement.decode(Placement(7, []).encode()).nodes == []


def test_placements_are_there_after_a_restart_until_their_topic_is_deleted(world: World) -> None:
    for name in ("orders", "gone"):
        world.broker.topics.create(SELF, TopicConfig(name, 0, 0))
        world.broker.topics.placements.put(name, Placement(7, [(3, [0, 1])]).encode())
    world.broker.topics.delete(SELF, "gone")
    before = world.broker.topics.placements.all()
    assert list(before) == ["orders"]
    world.restart()
    assert world.broker.topics.placements.all() == before


def test_a_topic_may_be_told_when_it_came_into_being(world: World) -> None:
    broker = world.broker
    broker.topics.create(SELF, TopicConfig("orders", 1, 1, created_ms=7))
    assert broker.topics.require(SELF, "orders").created_ms == 7
    broker.topics.create(SELF, TopicConfig("orders", 2, 2))
    assert broker.topics.require(SELF, "orders").created_ms == 7, "it is the same topic"
    broker.topics.create(SELF, TopicConfig("orders", 2, 2, created_ms=8))
    assert broker.topics.require(SELF, "orders").created_ms == 8, "others know better"

"""Sharing queues out, and how a group wants to consume a topic."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.config import BrokerConfig
from onelog.core.membership.assignment import STRATEGIES, RequestMode, average, circle, shared
from onelog.errors import (
    GroupNotFoundError,
    InvalidGroupError,
    TopicNotFoundError,
    TopicPermissionError,
)
from onelog.rocketmq.profile import NAMING
from tests.core.world import World, entries_of


def test_neighbouring_queues_go_to_one_member() -> None:
    queues = list(range(8))
    assert [average(queues, member, 3) for member in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_queues_are_dealt_like_cards() -> None:
    queues = list(range(8))
    assert [circle(queues, member, 3) for member in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_the_members_after_the_last_queue_get_none() -> None:
    for strategy in STRATEGIES.values():
        assert [strategy(["a", "b"], member, 4) for member in range(4)] == [["a"], ["b"], [], []]


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@given(queues=st.integers(0, 50), members=st.integers(1, 20))
def test_every_queue_goes_to_exactly_one_member_and_none_gets_two_more_than_another(
    strategy: object, queues: int, members: int
) -> None:
    assert callable(strategy)
    shares = [strategy(list(range(queues)), member, members) for member in range(members)]
    assert sorted(queue for share in shares for queue in share) == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("share", [-1, 0, 3, 9])
def test_without_a_share_or_with_nearly_everybodys_each_member_takes_from_all(share: int) -> None:
    assert shared(["a", "b"], 0, 4, average, share) is None


def test_a_member_takes_from_the_queues_of_those_after_it_too() -> None:
    queues = list(range(8))
    assert shared(queues, 0, 4, average, 1) == [0, 1, 2, 3]
    assert shared(queues, 3, 4, average, 1) == [6, 7, 0, 1]
    assert shared(queues, 3, 4, average, 2) == [6, 7, 0, 1, 2, 3]


def test_with_more_members_than_queues_everyone_still_has_one() -> None:
    assert [shared(["a", "b"], member, 5, average, 1) for member in range(5)] == [
        ["a"],
        ["b"],
        ["a"],
        ["b"],
        ["a"],
    ]
    assert shared([], 1, 5, average, 1) == []


def test_a_group_pulls_until_it_is_told_otherwise_and_remembers(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.topic("orders")
    world.core.groups.require("readers")
    assert world.core.request_modes.of("readers", "orders") == RequestMode("PULL", 0)
    world.core.request_modes.set("readers", "orders", RequestMode("POP", 2))
    for again in (world.crash, world.restart):
        again()
        modes = world.core.request_modes
        assert modes.of("readers", "orders") == RequestMode("POP", 2)
        assert modes.of("others", "orders") == RequestMode("PULL", 0)
    world.close()


def test_a_group_without_a_mode_of_its_own_consumes_by_the_default(tmp_path: Path) -> None:
    config = BrokerConfig(default_request_mode="pop", default_pop_share=3)
    world = World(tmp_path / "store", broker_config=config)
    world.topic("orders")
    for group in ("readers", "others"):
        world.core.groups.require(group)
    modes = world.core.request_modes
    modes.set("others", "orders", RequestMode("PULL"))
    assert modes.of("readers", "orders") == RequestMode("POP", 3)
    assert modes.of("others", "orders") == RequestMode("PULL")
    assert modes.of("readers", NAMING.retry_topic("readers")) == RequestMode("PULL")
    assert modes.all() == {("orders", "others"): RequestMode("PULL")}
    world.core.reconfigure(replace(config, default_request_mode="pull"))
    assert modes.of("readers", "orders") == RequestMode("PULL")
    world.close()


def test_setting_a_mode_makes_the_group_as_its_first_use_would(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.topic("orders")
    world.core.request_modes.set("readers", "orders", RequestMode("POP"))
    assert world.core.groups.get("readers") is not None
    world.core.groups.auto_create = False
    with pytest.raises(GroupNotFoundError):
        world.core.request_modes.set("others", "orders", RequestMode("POP"))
    world.close()


def test_a_mode_needs_a_topic_that_exists_and_names_that_can_be(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.topic("orders")
    modes = world.core.request_modes
    with pytest.raises(TopicNotFoundError):
        modes.set("readers", "nowhere", RequestMode("POP"))
    with pytest.raises(TopicPermissionError, match="retry topic is not allowed"):
        modes.set("readers", NAMING.retry_topic("readers"), RequestMode("POP"))
    with pytest.raises(InvalidGroupError):
        modes.set("n" * 256, "orders", RequestMode("POP"))
    assert entries_of(modes) == {}
    assert world.core.groups.get("readers") is None
    world.close()

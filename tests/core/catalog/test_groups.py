from dataclasses import replace

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.errors import GroupNotFoundError, InvalidGroupError
from onelog.rocketmq.names import SYSTEM_GROUPS
from tests.core.world import World


def test_a_group_is_created_by_its_first_use_and_stays(world: World) -> None:
    assert world.core.groups.require("readers") == GroupConfig("readers")
    world.crash()
    assert world.core.groups.get("readers") == GroupConfig("readers")


def test_with_auto_creation_off_unknown_groups_are_unknown(world: World) -> None:
    world.core.reconfigure(replace(world.broker_config, auto_create_groups=False))
    with pytest.raises(GroupNotFoundError):
        world.core.groups.require("readers")
    for name in (*SYSTEM_GROUPS, "CID_RMQ_SYS_other", "__MONITOR_CONSUMER"):
        assert world.core.groups.require(name).name == name


def test_every_setting_comes_back_after_a_restart(world: World) -> None:
    config = GroupConfig(
        "readers",
        consume_enable=False,
        consume_from_min_enable=False,
        consume_broadcast_enable=False,
        consume_message_orderly=True,
        retry_queues=3,
        retry_times_max=5,
        retry_policy={"type": "EXPONENTIAL"},
        broker_id=2,
        slow_broker_id=4,
        notify_members=False,
        sys_flag=1,
        consume_timeout_minutes=7,
        attributes={"k": "v"},
    )
    world.broker.groups.put(SELF, config)
    before = world.core.groups.version
    world.broker.groups.put(SELF, config)
    assert world.core.groups.version == before
    world.restart()
    assert world.core.groups.get("readers") == config
    assert world.core.groups.version == before


def test_changed_settings_of_a_system_group_are_kept(world: World) -> None:
    world.broker.groups.put(SELF, GroupConfig("TOOLS_CONSUMER", retry_queues=4))
    world.restart()
    assert world.core.groups.require("TOOLS_CONSUMER").retry_queues == 4


def test_a_deleted_group_takes_its_positions_along_when_asked(world: World) -> None:
    world.topic("orders")
    world.fill("orders", 0, 5)
    for group in ("kept", "cleaned"):
        world.commit(group, "orders", 0, 5)
        world.broker.groups.delete(SELF, group, clean_offsets=group == "cleaned")
    world.restart()
    assert world.core.groups.get("kept") is None
    assert world.broker.cursors.query(SELF, "kept", "orders", 0) == 5
    assert world.core.offsets.get("cleaned", "orders", 0) is None


def test_deleting_a_group_that_is_gone_takes_its_positions(world: World) -> None:
    world.topic("orders", 1)
    world.fill("orders", 0, 1)
    world.commit("readers", "orders", 0, 1)
    world.broker.groups.delete(SELF, "readers", clean_offsets=False)
    assert world.broker.groups.topics_of(SELF, "readers") == ["orders"]
    world.broker.groups.delete(SELF, "readers", clean_offsets=True)
    assert world.broker.groups.topics_of(SELF, "readers") == []
    with pytest.raises(GroupNotFoundError):
        world.core.groups.delete("readers", [])


def test_a_retry_policy_of_any_length_is_refused(world: World) -> None:
    endless = {"type": "CUSTOMIZED", "comment": "x" * 5_000}
    with pytest.raises(InvalidGroupError, match=r"groupRetryPolicy of 50\d\d bytes"):
        world.core.groups.put(GroupConfig("readers", retry_policy=endless))
    assert world.core.groups.get("readers") is None

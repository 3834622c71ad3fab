from dataclasses import replace

import pytest

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.errors import GroupNotFoundError, InvalidGroupError
from onelog.rocketmq.names import SYSTEM_GROUPS
from tests.core.world import World


def test_a_group_is_created_by_its_first_use_and_stays(world: World) -> None:
    assert world.broker.groups.require("readers") == GroupConfig("readers")
    world.crash()
    assert world.broker.groups.get("readers") == GroupConfig("readers")


def test_with_auto_creation_off_unknown_groups_are_unknown(world: World) -> None:
    world.broker.reconfigure(replace(world.broker_config, auto_create_groups=False))
    with pytest.raises(GroupNotFoundError):
        world.broker.groups.require("readers")
    for name in (*SYSTEM_GROUPS, "CID_RMQ_SYS_other", "__MONITOR_CONSUMER"):
        assert world.broker.groups.require(name).name == name


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
    world.broker.admin.update_group(SELF, config)
    before = world.broker.groups.version
    world.broker.admin.update_group(SELF, config)
    assert world.broker.groups.version == before
    world.restart()
    assert world.broker.groups.get("readers") == config
    assert world.broker.groups.version == before


def test_changed_settings_of_a_system_group_are_kept(world: World) -> None:
    world.broker.admin.update_group(SELF, GroupConfig("TOOLS_CONSUMER", retry_queues=4))
    world.restart()
    assert world.broker.groups.require("TOOLS_CONSUMER").retry_queues == 4


def test_a_deleted_group_takes_its_positions_along_when_asked(world: World) -> None:
    world.topic("orders")
    world.fill("orders", 0, 5)
    for group in ("kept", "cleaned"):
        world.commit(group, "orders", 0, 5)
        world.broker.admin.delete_group(SELF, group, clean_offsets=group == "cleaned")
    world.restart()
    assert world.broker.groups.get("kept") is None
    assert world.broker.query_offset(SELF, "kept", "orders", 0) == 5
    assert world.broker.offsets.get("cleaned", "orders", 0) is None


def test_deleting_a_group_that_is_gone_takes_its_positions(world: World) -> None:
    world.topic("orders", 1)
    world.fill("orders", 0, 1)
    world.commit("readers", "orders", 0, 1)
    world.broker.admin.delete_group(SELF, "readers", clean_offsets=False)
    assert world.broker.admin.topics_of_group(SELF, "readers") == ["orders"]
    world.broker.admin.delete_group(SELF, "readers", clean_offsets=True)
    assert world.broker.admin.topics_of_group(SELF, "readers") == []
    with pytest.raises(GroupNotFoundError):
        world.broker.groups.delete("readers", [])


def test_a_retry_policy_of_any_length_is_refused(world: World) -> None:
    endless = {"type": "CUSTOMIZED", "comment": "x" * 5_000}
    with pytest.raises(InvalidGroupError, match=r"groupRetryPolicy of 50\d\d bytes"):
        world.broker.groups.put(GroupConfig("readers", retry_policy=endless))
    assert world.broker.groups.get("readers") is None

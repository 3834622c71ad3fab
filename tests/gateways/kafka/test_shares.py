"""What members of share groups hear, and what administrators ask, set and correct."""

from pathlib import Path
from typing import Any

import pytest

from onelog.gateways.kafka.groups.group_settings import (
    DELIVERIES,
    ISOLATION,
    LOCK_MS,
    RESET,
    WINDOW,
)
from onelog.gateways.kafka.groups.group_settings import GROUP as GROUP_RESOURCE
from onelog.gateways.kafka.names import topic_id
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import RawClient, batch_of, raw
from tests.gateways.kafka.test_share_fetch import GROUP, TOPIC, Member, acquired


@pytest.fixture
async def ann(tmp_path: Path) -> Any:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic(TOPIC, 2)
        yield Member(client, server)


async def beat(client: RawClient, epoch: int, member: str = "ann", **changed: Any) -> Fields:
    fields = {
        "group_id": GROUP,
        "member_id": member,
        "member_epoch": epoch,
        "subscribed_topic_names": [TOPIC] if epoch == 0 else None,
        **changed,
    }
    return await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, fields)


def partitions(answer: Fields) -> list[int]:
    return [
        number
        for topic in answer["assignment"]["topic_partitions"]
        for number in topic["partitions"]
    ]


async def describe(client: RawClient, group: str = GROUP) -> Fields:
    fields = {"group_ids": [group], "include_authorized_operations": True}
    answer = await client.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, fields)
    found: Fields = answer["groups"][0]
    return found


async def test_members_join_are_described_and_leave(ann: Member) -> None:
    client = ann.client
    assert (await describe(client))["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    first = await beat(client, 0)
    assert (first["error_code"], partitions(first)) == (0, [0, 1])
    second = await beat(client, 0, "bob")
    assert partitions(second) == [1]
    assert partitions(await beat(client, first["member_epoch"])) == [0]
    found = await describe(client)
    assert (found["group_state"], found["assignor_name"]) == ("Stable", "simple")
    assert found["authorized_operations"] > 0
    assert {each["member_id"]: partitions(each) for each in found["members"]} == {
        "ann": [0],
        "bob": [1],
    }
    assert found["members"][0]["subscribed_topic_names"] == [TOPIC]
    listed = await client.ask(ApiKey.LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
    assert [(each["group_id"], each["group_type"]) for each in listed["groups"]] == [
        (GROUP, "share")
    ]
    assert (await beat(client, 77))["error_code"] == ErrorCode.FENCED_MEMBER_EPOCH
    assert (await beat(client, 1, "eve"))["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    deleted = await client.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [GROUP]})
    assert deleted["results"][0]["error_code"] == ErrorCode.NON_EMPTY_GROUP
    for member in ("ann", "bob"):
        assert (await beat(client, -1, member))["member_epoch"] == -1
    assert (await describe(client))["group_state"] == "Empty"
    deleted = await client.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [GROUP]})
    assert deleted["results"][0]["error_code"] == 0
    assert (await describe(client))["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    "changed",
    [
        {"group_id": " "},
        {"member_id": ""},
        {"subscribed_topic_names": []},
        {"rack_id": ""},
        {"member_epoch": -2},
    ],
)
async def test_a_heartbeat_says_who_it_is_and_what_it_wants(
    ann: Member, changed: dict[str, Any]
) -> None:
    answer = await beat(ann.client, 0, **changed)
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST


async def describe_offsets(client: RawClient, topics: Any = None, group: str = GROUP) -> Fields:
    fields = {"groups": [{"group_id": group, "topics": topics}]}
    answer = await client.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, fields)
    found: Fields = answer["groups"][0]
    return found


def places(group: Fields) -> list[tuple[int, int, int, int]]:
    return [
        (each["partition_index"], each["start_offset"], each["lag"], each["error_code"])
        for topic in group["topics"]
        for each in topic["partitions"]
    ]


async def alter(client: RawClient, *positions: tuple[int, int], topic: str = TOPIC) -> Fields:
    told = [{"partition_index": each, "start_offset": offset} for each, offset in positions]
    fields = {"group_id": GROUP, "topics": [{"topic_name": topic, "partitions": told}]}
    return await client.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, fields)


async def test_positions_are_told_moved_and_forgotten(ann: Member) -> None:
    client = ann.client
    assert (await describe_offsets(client))["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    await beat(client, 0)
    assert acquired(await ann.fetch()) == [], "it begins at the end"
    await client.produce(TOPIC, batch_of(b"a", b"b", b"c", b"d"))
    assert acquired(await ann.fetch()) == [(0, 3, 1)]
    await ann.acknowledge((0, 0, [1]), (2, 2, [1]))
    found = await describe_offsets(client)
    assert (found["topics"][0]["topic_id"], places(found)) == (ann.topic, [(0, 1, 2, 0)])
    wanted = [{"topic_name": TOPIC, "partitions": [1, 9]}]
    assert places(await describe_offsets(client, wanted)) == [
        (1, -1, -1, 0),
        (9, -1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert (await alter(client, (0, 0)))["error_code"] == ErrorCode.NON_EMPTY_GROUP
    await beat(client, -1)
    answer = await alter(client, (0, 3), (9, 0))
    assert answer["responses"][0]["topic_id"] == ann.topic
    assert [each["error_code"] for each in answer["responses"][0]["partitions"]] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert acquired(await ann.fetch()) == [(3, 3, 1)]
    topics = [{"topic_name": TOPIC}, {"topic_name": "nothing"}]
    answer = await client.ask(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, {"group_id": GROUP, "topics": topics}
    )
    assert [each["error_code"] for each in answer["responses"]] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert places(await describe_offsets(client)) == []


async def test_a_share_group_is_no_classic_group(ann: Member) -> None:
    client = ann.client
    await beat(client, 0)
    await ann.fetch()
    answer = await client.ask(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [GROUP]})
    assert answer["groups"][0]["group_state"] == "Dead"
    joining = {
        "group_id": GROUP,
        "session_timeout_ms": 6_000,
        "rebalance_timeout_ms": 6_000,
        "member_id": "eve",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    answer = await client.ask(ApiKey.JOIN_GROUP, 5, joining)
    assert answer["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def configs(client: RawClient) -> dict[str, tuple[str, int]]:
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": GROUP, "configuration_keys": None}
    answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource]})
    return {
        each["name"]: (each["value"], each["config_source"])
        for each in answer["results"][0]["configs"]
    }


async def set_config(client: RawClient, name: str, value: str | None, operation: int = 0) -> int:
    change = {"name": name, "config_operation": operation, "value": value}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": GROUP, "configs": [change]}
    answer = await client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
    )
    code: int = answer["responses"][0]["error_code"]
    return code


async def test_settings_of_groups(ann: Member) -> None:
    client = ann.client
    assert await configs(client) == {
        RESET: ("latest", 5),
        ISOLATION: ("read_uncommitted", 5),
        LOCK_MS: ("30000", 5),
        DELIVERIES: ("5", 5),
        WINDOW: ("2000", 5),
    }
    assert await set_config(client, RESET, "earliest") == 0
    assert await set_config(client, LOCK_MS, "15000") == 0
    found = await configs(client)
    assert (found[RESET], found[LOCK_MS]) == (("earliest", 8), ("15000", 8))
    assert (await ann.fetch())["acquisition_lock_timeout_ms"] == 15_000
    assert await set_config(client, WINDOW, "100") == 0
    await client.produce(TOPIC, batch_of(*[b"x"] * 150))
    assert acquired(await ann.fetch(max_records=200)) == [(0, 99, 1)]
    assert acquired(await ann.fetch()) == []
    listed = await client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [GROUP_RESOURCE]})
    assert [each["resource_name"] for each in listed["config_resources"]] == [GROUP]
    for name, value in (
        (RESET, "sometimes"),
        (LOCK_MS, "0"),
        (LOCK_MS, "x"),
        (LOCK_MS, ""),
        (LOCK_MS, "9" * 5000),
        (DELIVERIES, "1"),
        (WINDOW, "10001"),
        ("what", "1"),
    ):
        assert await set_config(client, name, value) == ErrorCode.INVALID_CONFIG
    assert await set_config(client, RESET, None, 1) == 0
    assert (await configs(client))[RESET] == ("latest", 5)
    plain = {"name": RESET, "value": "earliest"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": GROUP, "configs": [plain]}
    answer = await client.ask(
        ApiKey.ALTER_CONFIGS, 2, {"resources": [resource], "validate_only": True}
    )
    assert answer["responses"][0]["error_code"] == 0
    assert (await configs(client))[LOCK_MS] == ("15000", 8), "it was a trial"


async def test_a_restart_leaves_groups_positions_and_counts(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic(TOPIC)
        member = Member(client, server)
        await beat(client, 0)
        assert await set_config(client, RESET, "earliest") == 0
        await client.produce(TOPIC, batch_of(b"a", b"b", b"c"))
        assert acquired(await member.fetch(max_records=2, share_acquire_mode=1)) == [(0, 1, 1)]
        assert await member.acknowledge((0, 0, [2]))
    async with kafka(tmp_path) as server, raw(server) as client:
        assert (await describe(client))["group_state"] == "Stable", "its member may be back"
        config = server.core.topics.get(TOPIC)
        assert config is not None
        assert topic_id(config) == member.topic
        member = Member(client, server)
        found: list[tuple[int, int, int]] = []
        while sum(last - first + 1 for first, last, _ in found) < 3:
            found += acquired(await member.fetch(max_wait_ms=1_000))
        assert sorted(found)[0] == (0, 0, 2)
        assert sorted(found)[-1][1:] == (2, 1)


async def test_a_group_that_is_not_there_yet_is_made_by_saying_where_it_begins(ann: Member) -> None:
    client = ann.client
    assert (await alter(client, (9, 0)))["responses"][0]["partitions"][0]["error_code"] == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert (await describe_offsets(client))["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    await client.produce(TOPIC, batch_of(b"a", b"b", b"c"))
    answer = await alter(client, (0, 1))
    assert answer["responses"][0]["partitions"][0]["error_code"] == 0
    assert (await describe(client))["group_state"] == "Empty"
    listed = await client.ask(ApiKey.LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
    assert [(each["group_id"], each["group_type"]) for each in listed["groups"]] == [
        (GROUP, "share")
    ]
    await beat(client, 0)
    assert acquired(await ann.fetch()) == [(1, 2, 1)]


async def commit(client: RawClient, group: str) -> int:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": TOPIC, "partitions": [partition]}],
    }
    told = await client.ask(ApiKey.OFFSET_COMMIT, 9, fields)
    code: int = told["topics"][0]["partitions"][0]["error_code"]
    return code


async def test_consumers_and_share_groups_do_not_move_each_other(ann: Member) -> None:
    client = ann.client
    assert await commit(client, GROUP) == 0
    assert (await alter(client, (0, 0)))["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    await client.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [GROUP]})
    assert (await alter(client, (0, 0)))["error_code"] == 0
    assert await commit(client, GROUP) == ErrorCode.GROUP_ID_NOT_FOUND

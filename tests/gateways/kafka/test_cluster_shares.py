"""Share groups over several brokers: each has the state of its own partitions."""

import asyncio
from pathlib import Path
from typing import Any

from confluent_kafka import ShareConsumer

from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import SECONDS, address
from tests.gateways.kafka.live_cluster import KafkaCluster, kafka_cluster
from tests.gateways.kafka.raw import RawClient, raw
from tests.gateways.kafka.test_cluster import leaders, make_topic, send_to
from tests.gateways.kafka.test_share_fetch import GROUP, TOPIC, Member, set_group, sharer
from tests.gateways.kafka.test_shares import beat
from tests.waiting import eventually

VALUES = {each: [b"%d-%d" % (each, at) for at in range(5)] for each in range(6)}


async def coordinator_of_group(cluster: KafkaCluster) -> int:
    async with raw(cluster[0]) as client:
        found = await client.ask(ApiKey.FIND_COORDINATOR, 3, {"key": GROUP, "key_type": 0})
        node: int = found["node_id"]
        return node


def read_shared(readers: list[ShareConsumer], count: int) -> list[bytes | str | None]:
    found: list[bytes | str | None] = []
    for _ in range(int(SECONDS * 10)):
        for reader in readers:
            found += [each.value() for each in reader.poll(0.05)]
        if len(found) >= count:
            break
    for reader in readers:
        reader.commit_sync(SECONDS)
        reader.close()
    return found


async def positions(client: RawClient) -> dict[int, tuple[int, int]]:
    """The start offset and lag of each partition that is told without an error."""
    wanted = [{"group_id": GROUP, "topics": None}]
    answer = await client.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, {"groups": wanted})
    assert answer["groups"][0]["error_code"] == 0
    return {
        each["partition_index"]: (each["start_offset"], each["lag"])
        for topic in answer["groups"][0]["topics"]
        for each in topic["partitions"]
        if each["error_code"] == 0
    }


async def change(client: RawClient, key: ApiKey, topic: Fields) -> list[int]:
    fields: dict[str, Any] = {"group_id": GROUP, "topics": [{"topic_name": TOPIC, **topic}]}
    answer = await client.ask(key, 0, fields)
    (told,) = answer["responses"]
    return [each["error_code"] for each in told.get("partitions", [told])]


async def test_members_share_what_was_sent_to_all_brokers_and_tools_see_and_move_them(
    tmp_path: Path,
) -> None:
    async with kafka_cluster(tmp_path, kafka__heartbeat_ms=100) as cluster:
        at = cluster.bootstrap
        await asyncio.to_thread(make_topic, at, TOPIC, 6)
        await asyncio.to_thread(set_group, address(cluster[1]), share_auto_offset_reset="earliest")
        await asyncio.to_thread(send_to, at, TOPIC, VALUES)

        def share(members: int, count: int) -> list[bytes | str | None]:
            some = list(cluster.servers.values())[:members]
            return read_shared([sharer(address(each)) for each in some], count)

        expected = sorted(str(each) for some in VALUES.values() for each in some)
        assert sorted(map(str, await asyncio.to_thread(share, 2, 30))) == expected
        node = await coordinator_of_group(cluster)
        async with raw(cluster[node]) as client:
            assert await positions(client) == dict.fromkeys(range(6), (5, 0))
            moved = [{"partition_index": each, "start_offset": 2} for each in range(6)]
            key = ApiKey.ALTER_SHARE_GROUP_OFFSETS
            assert await change(client, key, {"partitions": moved}) == [0] * 6
            assert await positions(client) == dict.fromkeys(range(6), (2, 3))
            assert len(await asyncio.to_thread(share, 1, 18)) == 18
            assert await change(client, ApiKey.DELETE_SHARE_GROUP_OFFSETS, {}) == [0]
            assert await positions(client) == {}
            await change(client, key, {"partitions": moved})
            gone = await client.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [GROUP]})
            assert gone["results"][0]["error_code"] == 0
        kept = [each.core.offsets for each in cluster.servers.values()]
        await eventually(lambda: not any(each.topics_of(GROUP) for each in kept))


async def test_who_asks_the_wrong_broker_for_messages_is_sent_on(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path) as cluster:
        await asyncio.to_thread(make_topic, cluster.bootstrap, TOPIC, 3)
        placed = await asyncio.to_thread(leaders, cluster.bootstrap, TOPIC)
        node = await coordinator_of_group(cluster)
        for number, server in cluster.servers.items():
            async with raw(server) as client:
                code = (await beat(client, 0))["error_code"]
                assert code == (0 if number == node else ErrorCode.NOT_COORDINATOR)
                answer = await Member(client, server).fetch()
                if number == placed[0]:
                    continue
                (partition,) = answer["responses"][0]["partitions"]
                assert partition["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert partition["current_leader"]["leader_id"] == placed[0]
                nodes = {each["node_id"]: each["port"] for each in answer["node_endpoints"]}
                assert nodes[placed[0]] == cluster[placed[0]].config.kafka.port


async def test_settings_of_a_group_are_those_of_all_brokers(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path, count=2) as cluster:
        at = address(cluster[0])
        await asyncio.to_thread(set_group, at, share_record_lock_duration_ms="7000")
        group = cluster[1].core.groups.get(GROUP)
        assert group is not None
        assert group.attributes == {"share.record.lock.duration.ms": "7000"}
        await cluster.start(2)
        late = cluster[2].core.groups
        await eventually(lambda: late.get(GROUP) is not None)
        assert late.require(GROUP).attributes == group.attributes

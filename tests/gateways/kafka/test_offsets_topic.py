"""`__consumer_offsets`: what Kafka's monitoring reads of groups, though nobody writes it."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import SystemTopicError
from onelog.gateways.kafka.groups.offsets_topic import _java_hash
from onelog.names import VIEW_TOPICS
from onelog.record.forms import kafka as batches
from onelog.server import BrokerServer
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import SECONDS, address, consumer, kafka, take
from tests.gateways.kafka.live_cluster import kafka_cluster
from tests.gateways.kafka.raw import RawClient, batch_of, raw

TOPIC = "__consumer_offsets"
READERS = 28
"""The partition of the group "readers": abs("readers".hashCode()) % 50 in Java."""
Position = tuple[str, str, int, int | None, int | None, str | None]


class Reader:
    """Reads a key or value of Kafka's."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, kind: str) -> int:
        (found,) = struct.unpack_from(">" + kind, self.data, self.at)
        self.at += struct.calcsize(kind)
        return int(found)

    def text(self) -> str | None:
        size = self.number("h")
        return None if size < 0 else self.some(size).decode()

    def some(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def is_over(self) -> bool:
        return self.at == len(self.data)


def position_in(key: bytes | None, value: bytes | None) -> Position:
    """Group, topic, partition; offset, leader epoch and text, None for what is forgotten."""
    assert key is not None
    told = Reader(key)
    assert told.number("h") == 1
    name, topic = told.text(), told.text()
    assert name is not None
    assert topic is not None
    found = name, topic, told.number("i")
    assert told.is_over()
    if value is None:
        return (*found, None, None, None)
    said = Reader(value)
    assert said.number("h") == 3
    offset, epoch, text = said.number("q"), said.number("i"), said.text()
    assert said.number("q") > 1_600_000_000_000, "the time of the commit"
    assert said.is_over()
    return (*found, offset, epoch, text)


def group_in(key: bytes, value: bytes) -> dict[str, Any]:
    told, said = Reader(key), Reader(value)
    assert (told.number("h"), said.number("h")) == (2, 3)
    found: dict[str, Any] = {"group": told.text(), "type": said.text()}
    found |= {"generation": said.number("i"), "protocol": said.text(), "leader": said.text()}
    said.number("q")
    found["members"] = [
        {
            "id": said.text(),
            "instance": said.text(),
            "client": said.text(),
            "host": said.text(),
            "times": (said.number("i"), said.number("i")),
            "said": said.some(said.number("i")),
            "part": said.some(said.number("i")),
        }
        for _ in range(said.number("i"))
    ]
    assert said.is_over()
    return found


async def commit(
    client: RawClient, offset: int, group: str = "readers", partition: int = 0, text: str = "x"
) -> None:
    position = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": 0,
        "committed_metadata": text,
    }
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "orders", "partitions": [position]}],
    }
    answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, fields)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0


def records_in(answer: Fields) -> list[tuple[int, bytes, bytes | None]]:
    """Offset, key and value of each record."""
    assert answer["error_code"] == 0, answer
    found, at, data = [], 0, bytes(answer["records"])
    while at < len(data):
        batch = batches.read_head(data, at)
        if batch.records:
            for delta, message in batches.records(data[at : at + batch.size]):
                assert message.key is not None
                found.append((batch.base_offset + delta, message.key, message.body))
        at += batch.size
    return found


async def place(client: RawClient, time_ms: int, partition: int = READERS) -> int:
    wanted = {"partition_index": partition, "timestamp": time_ms}
    fields = {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [wanted]}]}
    answer = await client.ask(ApiKey.LIST_OFFSETS, 7, fields)
    (told,) = answer["topics"][0]["partitions"]
    assert told["error_code"] == 0
    offset: int = told["offset"]
    return offset


async def test_positions_are_read_and_new_ones_appear(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client, raw(server) as other:
        await client.make_topic("orders", 2)
        await commit(client, 5)
        await commit(client, 7)
        begin, end = await place(client, -2), await place(client, -1)
        assert begin < end
        answer = await client.fetch(TOPIC, begin, READERS)
        assert answer["high_watermark"] == answer["last_stable_offset"] == end
        ((at, key, value),) = records_in(answer)
        assert (at, position_in(key, value)) == (begin, ("readers", "orders", 0, 7, 0, "x"))
        assert records_in(await client.fetch(TOPIC, 0, READERS))[0][0] == begin
        waiting = asyncio.create_task(client.fetch(TOPIC, end, READERS, max_wait_ms=20_000))
        await asyncio.sleep(0.05)
        await commit(other, 9, partition=1, text="more")
        ((at, key, value),) = records_in(await asyncio.wait_for(waiting, 5))
        assert at >= end
        assert position_in(key, value) == ("readers", "orders", 1, 9, 0, "more")
        assert await place(client, -1) == at + 1
        found = records_in(await client.fetch(TOPIC, begin, READERS))
        assert [position_in(key, value)[2:4] for _, key, value in found] == [(0, 7), (1, 9)]
        assert await place(client, 1_600_000_000_000) == begin
        assert await place(client, -3) == at
        assert await place(client, 1 << 61) == -1


async def test_offsets_go_on_growing_over_a_restart(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        for offset in range(20):
            await commit(client, offset)
            await place(client, -1)
        end = await place(client, -1)
        assert end <= server.broker.admin.log_end
    async with kafka(tmp_path) as server, raw(server) as client:
        assert await place(client, -1) >= end
        assert (await client.fetch(TOPIC, end, READERS))["error_code"] == 0
        await commit(client, 40)
        found = records_in(await client.fetch(TOPIC, end, READERS))
        assert position_in(*found[-1][1:])[3] == 40


async def test_what_is_forgotten_is_told_without_a_value(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 2)
        await commit(client, 5)
        await commit(client, 6, partition=1)
        end = await place(client, -1)
        await client.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": ["readers"]})
        found = records_in(await client.fetch(TOPIC, end, READERS))
        assert [position_in(key, value) for _, key, value in found] == [
            ("readers", "orders", each, None, None, None) for each in range(2)
        ]
        await commit(client, 8)
        found = records_in(await client.fetch(TOPIC, 0, READERS))
        assert [position_in(key, value)[2:4] for _, key, value in found] == [(1, None), (0, 8)]


async def test_a_group_and_its_members_are_told(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        begin = await place(client, -1)
        joining = {
            "group_id": "readers",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"wants"}],
        }
        joined = await client.ask(ApiKey.JOIN_GROUP, 3, joining)
        member = joined["member_id"]
        await client.ask(
            ApiKey.SYNC_GROUP,
            3,
            {
                "group_id": "readers",
                "generation_id": 1,
                "member_id": member,
                "assignments": [{"member_id": member, "assignment": b"gets"}],
            },
        )
        ((_, key, value),) = records_in(await client.fetch(TOPIC, begin, READERS))
        assert value is not None
        assert group_in(key, value) == {
            "group": "readers",
            "type": "consumer",
            "generation": 1,
            "protocol": "range",
            "leader": member,
            "members": [
                {
                    "id": member,
                    "instance": None,
                    "client": "raw",
                    "host": "/127.0.0.1",
                    "times": (20_000, 10_000),
                    "said": b"wants",
                    "part": b"gets",
                }
            ],
        }
        await client.ask(
            ApiKey.LEAVE_GROUP,
            3,
            {"group_id": "readers", "members": [{"member_id": member, "group_instance_id": None}]},
        )
        ((_, key, value),) = records_in(await client.fetch(TOPIC, begin, READERS))
        assert value is not None
        told = group_in(key, value)
        assert (told["generation"], told["members"], told["leader"]) == (2, [], None)


async def test_positions_of_rocketmqs_consumers_appear_when_they_are_recorded(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        begin = await place(client, -1)
        server.core.offsets.commit("readers", "orders", 0, 3)
        assert records_in(await client.fetch(TOPIC, begin, READERS)) == []
        server.core.offsets.flush()
        ((_, key, value),) = records_in(await client.fetch(TOPIC, begin, READERS))
        assert position_in(key, value) == ("readers", "orders", 0, 3, -1, "")


async def test_librdkafka_reads_all_of_it(tmp_path: Path) -> None:
    groups = [f"group-{number}" for number in range(300)]

    def run(at: str) -> set[str]:
        reader = consumer(at, "monitor")
        reader.assign([TopicPartition(TOPIC, each, 0) for each in range(50)])
        found = {position_in(each.key(), each.value())[0] for each in take(reader, len(groups))}
        metadata = reader.list_topics(timeout=SECONDS).topics
        assert len(metadata[TOPIC].partitions) == 50
        reader.close()
        return found

    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        for group in groups:
            await commit(client, 1, group)
        assert await asyncio.to_thread(run, address(server)) == set(groups)


async def metadata(client: RawClient, names: list[str] | None) -> list[Fields]:
    topics = None if names is None else [{"name": each} for each in names]
    told = await client.ask(
        ApiKey.METADATA, 9, {"topics": topics, "allow_auto_topic_creation": True}
    )
    found: list[Fields] = told["topics"]
    return found


async def test_it_is_listed_as_internal_once_there_is_a_group(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        assert [each["name"] for each in await metadata(client, None)] == ["orders"]
        await commit(client, 1)
        told = {each["name"]: each for each in await metadata(client, None)}
        assert {name: each["is_internal"] for name, each in told.items()} == {
            "orders": False,
            TOPIC: True,
        }
        for each in await metadata(client, sorted(VIEW_TOPICS)):
            assert (each["error_code"], each["is_internal"]) == (0, True)
            assert len(each["partitions"]) == 50
        described = await client.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            {"topics": [{"name": TOPIC}], "response_partition_limit": 100, "cursor": None},
        )
        assert described["topics"][0]["is_internal"]
        resource = {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}
        configs = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource]})
        assert {each["name"]: each["value"] for each in configs["results"][0]["configs"]}[
            "cleanup.policy"
        ] == "compact"
        assert not {each.name for each in server.core.topics.all()} & VIEW_TOPICS


async def test_nobody_makes_the_topic_of_kafkas_controllers(tmp_path: Path) -> None:
    name = "__cluster_metadata"
    async with kafka(tmp_path) as server, raw(server) as client:
        new = {"name": name, "num_partitions": 1, "replication_factor": 1}
        made = await client.ask(ApiKey.CREATE_TOPICS, 5, {"topics": [new]})
        assert made["topics"][0]["error_code"] == ErrorCode.INVALID_REQUEST
        asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
        (told,) = (await client.ask(ApiKey.METADATA, 8, asked))["topics"]
        assert told["error_code"] == ErrorCode.INVALID_REQUEST
        assert name not in {each.name for each in server.core.topics.all()}


@pytest.mark.parametrize("topic", sorted(VIEW_TOPICS))
async def test_nobody_makes_writes_changes_or_deletes_them(tmp_path: Path, topic: str) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        told = await client.produce(topic, batch_of(b"x"))
        assert told["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
        new = {"name": topic, "num_partitions": 1, "replication_factor": 1}
        more = {"name": topic, "count": 60, "assignments": None}
        resource = {"resource_type": 2, "resource_name": topic, "configs": []}
        first = {"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}
        asked: list[tuple[ApiKey, int, Fields, str, ErrorCode]] = [
            (ApiKey.CREATE_TOPICS, 5, {"topics": [new]}, "topics", ErrorCode.TOPIC_ALREADY_EXISTS),
            (
                ApiKey.CREATE_PARTITIONS,
                3,
                {"topics": [more]},
                "results",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            ),
            (
                ApiKey.DELETE_TOPICS,
                5,
                {"topic_names": [topic]},
                "responses",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            ),
            (
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                1,
                {"resources": [resource]},
                "responses",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            ),
        ]
        for key, version, fields, part, code in asked:
            answer = (await client.ask(key, version, fields))[part][0]
            assert answer["error_code"] == code, answer
        gone = await client.ask(ApiKey.DELETE_RECORDS, 2, {"topics": [first]})
        (partition,) = gone["topics"][0]["partitions"]
        assert partition["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
        with pytest.raises(SystemTopicError):
            server.broker.topics.create(SELF, TopicConfig(topic))
        assert server.core.topics.get(topic) is None


async def test_a_topic_of_that_name_from_before_is_hidden_and_can_be_deleted(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        put_as_it_was_once(server)
        await commit_to_new_topic(client)
        assert (await metadata(client, [TOPIC]))[0]["is_internal"]
        ((_, key, value),) = records_in(await client.fetch(TOPIC, 0, READERS))
        assert position_in(key, value)[0] == "readers"
        server.broker.topics.delete(SELF, TOPIC)
        assert server.core.topics.get(TOPIC) is None


def put_as_it_was_once(server: BrokerServer) -> None:
    """A topic that a client made before nobody could."""
    server.core.topics._record(TopicConfig(TOPIC, 1, 1, created_ms=1))


async def commit_to_new_topic(client: RawClient) -> None:
    await client.make_topic("orders")
    await commit(client, 5)


async def test_places_that_keys_have_left_are_forgotten(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        begin = await place(client, -1)
        for number in range(5_000):
            server.core.offsets.commit("readers", "orders", 0, number)
            server.core.offsets.flush()
        ((_, key, value),) = records_in(await client.fetch(TOPIC, begin, READERS))
        assert position_in(key, value)[3] == 4_999
        assert await place(client, -2) > begin


async def test_of_what_is_forgotten_the_last_are_remembered(tmp_path: Path) -> None:
    """Groups of a moment, such as those of consoles, do not pile up."""
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        begin = await place(client, -1)
        same = [name for name in map(str, range(130_000)) if abs(_java_hash(name)) % 50 == READERS]
        for name in same:
            server.core.offsets.reset(name, "orders", {0: 1})
            server.core.offsets.forget(name, "orders", 0)
        found = 0
        offset = begin
        while records := records_in(await client.fetch(TOPIC, offset, READERS)):
            found += len(records)
            assert all(value is None for _, _, value in records)
            offset = records[-1][0] + 1
        assert len(same) > 2_500
        assert 1_000 <= found <= 2_200


async def test_in_a_cluster_every_broker_has_a_part_with_its_own_groups(tmp_path: Path) -> None:
    groups = [f"group-{number}" for number in range(40)]

    def run(at: str) -> dict[str, int]:
        admin = AdminClient({"bootstrap.servers": at})
        admin.create_topics([NewTopic("orders", 4, 1)])["orders"].result(SECONDS)
        for group in groups:
            committer = consumer(at, group)
            committer.commit(offsets=[TopicPartition("orders", 1, 6)], asynchronous=False)
            committer.close()
        reader = consumer(at, "monitor")
        partitions = reader.list_topics(TOPIC, timeout=SECONDS).topics[TOPIC].partitions
        assert sorted({each.leader for each in partitions.values()}) == [0, 1, 2]
        reader.assign([TopicPartition(TOPIC, each, 0) for each in partitions])
        found = {}
        for each in take(reader, len(groups)):
            name, topic, partition, offset, *_ = position_in(each.key(), each.value())
            assert (topic, partition, offset) == ("orders", 1, 6)
            found[name] = partitions[each.partition()].leader
        reader.close()
        return found

    async with kafka_cluster(tmp_path) as cluster:
        found = await asyncio.to_thread(run, address(cluster[0]))
        assert sorted(found) == sorted(groups)
        for number in range(3):
            known = {group for group, _ in cluster[number].core.offsets.all()}
            assert {group for group, node in found.items() if node == number} == known & set(groups)

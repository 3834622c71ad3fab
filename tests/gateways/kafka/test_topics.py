"""Topics: asked for, made, grown and deleted, by hand and by other people's administrators."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaPythonTopic

from onelog.core.catalog.topics import TopicConfig
from onelog.gateways.kafka.names import is_legal_topic
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import SECONDS, address, kafka
from tests.gateways.kafka.raw import batch_of, batches_in, raw


@pytest.mark.parametrize(
    ("name", "is_legal"),
    [
        ("orders", True),
        ("a.b_c-D9", True),
        ("x" * 249, True),
        ("x" * 250, False),
        ("", False),
        (".", False),
        ("..", False),
        ("...", True),
        ("a/b", False),
        ("%RETRY%g", False),
        ("naïve", False),
        ("a b", False),
        ("a\n", False),
    ],
)
def test_kafkas_rules_for_names(name: str, is_legal: bool) -> None:
    assert is_legal_topic(name) is is_legal


@pytest.mark.parametrize("version", range(14))
async def test_every_version_is_told_of_the_broker_and_its_topics(
    tmp_path: Path, version: int
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 3)
        server.core.topics.ensure(TopicConfig("%RETRY%readers", 1, 1))
        told = await client.ask(ApiKey.METADATA, version, {"topics": [] if version < 1 else None})
        (broker,) = told["brokers"]
        assert (broker["host"], broker["port"]) == ("127.0.0.1", server.config.kafka.port)
        (topic,) = told["topics"]
        assert (topic["name"], len(topic["partitions"])) == ("orders", 3)
        assert {each["leader_id"] for each in topic["partitions"]} == {broker["node_id"]}
        if version > 0:
            assert told["controller_id"] == broker["node_id"]
            none = await client.ask(ApiKey.METADATA, version, {"topics": []})
            assert none["topics"] == []


async def test_clients_are_told_of_the_nodes_that_may_be_master_later(tmp_path: Path) -> None:
    """Who knows the master only has nowhere to go when it is gone."""
    async with kafka(tmp_path) as server, raw(server) as client:
        here = f"127.0.0.1:{server.config.kafka.port}"
        nodes = {2: "[::1]:9093", 0: here, 1: "192.0.2.7:9092"}
        server.context.replica_status.kafka_nodes = lambda: nodes
        await client.make_topic("orders", 1)
        told = await client.ask(ApiKey.METADATA, 9, {"topics": None})
        assert [(each["node_id"], each["host"], each["port"]) for each in told["brokers"]] == [
            (0, "127.0.0.1", server.config.kafka.port),
            (1, "192.0.2.7", 9092),
            (2, "::1", 9093),
        ]
        assert told["topics"][0]["partitions"][0]["leader_id"] == told["controller_id"] == 0


async def test_a_topic_that_is_asked_for_is_made_unless_somebody_minds(tmp_path: Path) -> None:
    async with kafka(tmp_path, kafka__topic_partitions=3) as server, raw(server) as client:
        ask = {"topics": [{"name": "orders"}], "allow_auto_topic_creation": False}
        told = await client.ask(ApiKey.METADATA, 9, ask)
        assert told["topics"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        told = await client.ask(ApiKey.METADATA, 9, {"topics": [{"name": "orders"}]})
        assert len(told["topics"][0]["partitions"]) == 3
        told = await client.ask(ApiKey.METADATA, 9, {"topics": [{"name": "a/b"}]})
        assert told["topics"][0]["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
        told = await client.ask(ApiKey.METADATA, 9, {"topics": [{"name": "onelog_sys_tables"}]})
        assert told["topics"][0]["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
    async with kafka(tmp_path, broker__auto_create_topics=False) as server, raw(server) as client:
        told = await client.ask(ApiKey.METADATA, 9, {"topics": [{"name": "others"}]})
        assert told["topics"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_that_is_made_again_has_another_id(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        ids = []
        for _ in range(2):
            await client.make_topic("orders")
            told = await client.ask(ApiKey.METADATA, 12, {"topics": None})
            ids.append(told["topics"][0]["topic_id"])
            wanted = {"topics": [{"name": None, "topic_id": ids[-1]}]}
            assert (await client.ask(ApiKey.METADATA, 12, wanted))["topics"][0]["name"] == "orders"
            gone = await client.ask(ApiKey.DELETE_TOPICS, 6, wanted)
            assert gone["responses"][0]["error_code"] == 0
            gone = await client.ask(ApiKey.DELETE_TOPICS, 6, wanted)
            assert gone["responses"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
            await asyncio.sleep(0.002)  # Ids tell times apart by the millisecond.
        assert ids[0] != ids[1]


async def test_what_cannot_be_made_is_refused_beside_what_can(tmp_path: Path) -> None:
    def topic(name: str, **changed: Any) -> dict[str, Any]:
        return {"name": name, "num_partitions": 1, "replication_factor": 1, **changed}

    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("taken")
        bad = [{"name": "no.such.setting", "value": "1"}]
        compact = [{"name": "max.message.bytes", "value": "many"}]
        assigned = [{"partition_index": 0, "broker_ids": [0]}]
        wanted = [
            topic("good"),
            topic("taken"),
            topic("a/b"),
            topic("none", num_partitions=0),
            topic("copies", replication_factor=3),
            topic("odd", configs=bad),
            topic("bad", configs=compact),
            topic("usual", num_partitions=-1),
            topic("placed", num_partitions=-1, replication_factor=-1, assignments=assigned),
            topic("both", assignments=assigned),
        ]
        told = await client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": wanted})
        codes = {each["name"]: each["error_code"] for each in told["topics"]}
        assert codes == {
            "good": 0,
            "taken": ErrorCode.TOPIC_ALREADY_EXISTS,
            "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "none": ErrorCode.INVALID_PARTITIONS,
            "copies": ErrorCode.INVALID_REPLICATION_FACTOR,
            "odd": ErrorCode.INVALID_CONFIG,
            "bad": ErrorCode.INVALID_CONFIG,
            "usual": 0,
            "placed": 0,
            "both": ErrorCode.INVALID_REQUEST,
        }
        trial = {"topics": [topic("trial")], "validate_only": True}
        assert (await client.ask(ApiKey.CREATE_TOPICS, 7, trial))["topics"][0]["error_code"] == 0
        assert server.core.topics.get("trial") is None


async def test_librdkafkas_administrator_makes_grows_and_deletes(tmp_path: Path) -> None:
    def run(at: str) -> None:
        admin = AdminClient({"bootstrap.servers": at})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(SECONDS)
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(SECONDS)
        admin.create_partitions([NewPartitions("orders", 5)])["orders"].result(SECONDS)
        with pytest.raises(KafkaException):
            admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(SECONDS)
        assert len(admin.list_topics(timeout=SECONDS).topics["orders"].partitions) == 5
        cluster = admin.describe_cluster().result(SECONDS)
        assert cluster.cluster_id == "DefaultCluster"
        admin.delete_topics(["orders"])["orders"].result(SECONDS)
        with pytest.raises(KafkaException):
            admin.delete_topics(["orders"])["orders"].result(SECONDS)

    async with kafka(tmp_path) as server:
        await asyncio.to_thread(run, address(server))
        assert server.core.topics.get("orders") is None


async def test_kafka_pythons_administrator_makes_and_describes(tmp_path: Path) -> None:
    def run(at: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=at)
        admin.create_topics([KafkaPythonTopic("orders", 2, 1)])
        assert admin.list_topics() == ["orders"]
        admin.delete_topics(["orders"])
        assert admin.list_topics() == []
        admin.close()

    async with kafka(tmp_path) as server:
        await asyncio.to_thread(run, address(server))


async def test_a_grown_topic_takes_batches_in_its_new_partitions(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        await client.produce("orders", batch_of(b"x"))
        grown = {"topics": [{"name": "orders", "count": 2, "assignments": None}]}
        told = await client.ask(ApiKey.CREATE_PARTITIONS, 3, grown)
        assert told["results"] == [{"name": "orders", "error_code": 0, "error_message": None}]
        assert (await client.produce("orders", batch_of(b"x"), 1))["error_code"] == 0


async def test_partitions_are_described_page_by_page(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        for name, partitions in (("a", 3), ("b", 2), ("c", 1)):
            await client.make_topic(name, partitions)
        for limit in range(1, 8):
            found: list[tuple[str, int]] = []
            cursor = None
            while True:
                wanted: Fields = {"topics": [], "response_partition_limit": limit, "cursor": cursor}
                told = await client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, wanted)
                page = [
                    (topic["name"], each["partition_index"])
                    for topic in told["topics"]
                    for each in topic["partitions"]
                ]
                assert len(page) <= limit
                for topic in told["topics"]:
                    for each in topic["partitions"]:
                        assert each["last_known_elr"] == [], "Kafka's Java client needs a list"
                found += page
                cursor = told["next_cursor"]
                if cursor is None:
                    break
            assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
        wanted = {"topics": [{"name": "nowhere"}], "cursor": None}
        told = await client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, wanted)
        assert told["topics"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        asked = {"topic_partitions": [{"topic": "a", "partitions": [0, 9]}]}
        told = await client.ask(ApiKey.ELECT_LEADERS, 2, asked)
        codes = [
            each["error_code"] for each in told["replica_election_results"][0]["partition_result"]
        ]
        assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_name_that_comes_twice_in_a_request_is_refused_once_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    def codes(answer: Fields, part: str) -> list[tuple[str, int]]:
        return [(each["name"], each["error_code"]) for each in answer[part]]

    twice = ("twice", ErrorCode.INVALID_REQUEST)
    async with kafka(tmp_path) as server, raw(server) as client:
        new = [
            {"name": name, "num_partitions": 1, "replication_factor": 1}
            for name in ("twice", "once", "twice")
        ]
        told = await client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": new})
        assert codes(told, "topics") == [twice, ("once", 0)]
        assert server.core.topics.get("twice") is None
        await client.make_topic("twice")
        more = [
            {"name": name, "count": 3, "assignments": None} for name in ("twice", "once", "twice")
        ]
        told = await client.ask(ApiKey.CREATE_PARTITIONS, 3, {"topics": more})
        assert codes(told, "results") == [twice, ("once", 0)]
        gone = [{"name": name} for name in ("twice", "once", "twice")]
        told = await client.ask(ApiKey.DELETE_TOPICS, 6, {"topics": gone})
        assert codes(told, "responses") == [twice, ("once", 0)]
        names = {"topic_names": ["twice", "twice"]}
        told = await client.ask(ApiKey.DELETE_TOPICS, 5, names)
        assert codes(told, "responses") == [twice]
        assert server.core.topics.get("twice") is not None


async def test_replicas_the_in_sync_set_and_epochs_of_a_set_are_told_as_they_are(
    tmp_path: Path,
) -> None:
    """The fourth master of three nodes, one of which is away and one behind."""
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        for value in (b"a", b"b", b"c"):
            await client.produce("orders", batch_of(value))
        second = server.core.store.entry_at("orders", 0, 1)
        assert second is not None
        replica_status, port = server.context.replica_status, server.config.kafka.port
        replica_status.epoch = 4
        replica_status.epochs = lambda: [(1, 0), (4, second[0])]
        replica_status.in_sync = lambda: (0, 2)
        replica_status.kafka_nodes = lambda: {0: f"127.0.0.1:{port}", 1: "192.0.2.7:9092"}
        told = await client.ask(ApiKey.METADATA, 9, {"topics": [{"name": "orders"}]})
        (partition,) = told["topics"][0]["partitions"]
        described = await client.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            {"topics": [{"name": "orders"}], "response_partition_limit": 9, "cursor": None},
        )
        for found in (partition, described["topics"][0]["partitions"][0]):
            assert (found["leader_id"], found["leader_epoch"]) == (0, 4)
            assert found["replica_nodes"] == [0, 1, 2]
            assert found["isr_nodes"] == [0, 2]
            assert found["offline_replicas"] == [2]

        async def ask(key: ApiKey, version: int, wanted: Fields) -> Fields:
            topic = {"name": "orders", "topic": "orders", "partitions": [wanted]}
            answer = await client.ask(key, version, {"topics": [topic], "replica_id": -1})
            result: Fields = answer["topics"][0]["partitions"][0]
            return result

        latest = {"partition_index": 0, "timestamp": -1}
        assert (await ask(ApiKey.LIST_OFFSETS, 7, latest))["leader_epoch"] == 4
        codes = {3: ErrorCode.FENCED_LEADER_EPOCH, 4: 0, 5: ErrorCode.UNKNOWN_LEADER_EPOCH}
        for epoch, code in codes.items():
            known = {**latest, "current_leader_epoch": epoch}
            assert (await ask(ApiKey.LIST_OFFSETS, 7, known))["error_code"] == code
        ends = {}
        for epoch in (0, 1, 2, 4, 5):
            wanted = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": 4}
            found = await ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, wanted)
            ends[epoch] = found.get("leader_epoch", -1), found.get("end_offset", -1)
        assert ends == {0: (0, 3), 1: (1, 1), 2: (1, 1), 4: (4, 3), 5: (-1, -1)}
        (batch, *_) = batches_in((await client.fetch("orders", 0))["records"])
        assert batch.leader_epoch == 4

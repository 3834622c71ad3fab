"""Several brokers as one Kafka cluster: every client finds every partition, group and topic."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from onelog.client import AsyncProducer, Message
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.passwords import prove
from onelog.errors import ConfigError, KeyNotFoundError, PeerClosedError
from onelog.gateways.kafka.gateway import KafkaGateway
from onelog.gateways.kafka.session import Gateway
from onelog.server import BrokerServer
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import SECONDS, Sent, address, consumer, kafka, take
from tests.gateways.kafka.live_cluster import KafkaCluster, kafka_cluster
from tests.gateways.kafka.raw import batch_of, fetch_fields, raw
from tests.waiting import eventually


def make_topic(at: str, name: str, partitions: int, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": at})
    wanted = NewTopic(name, partitions, 1, config=dict(configs))
    for future in admin.create_topics([wanted]).values():
        future.result(SECONDS)


def leaders(at: str, topic: str) -> dict[int, int]:
    found = AdminClient({"bootstrap.servers": at}).list_topics(topic, timeout=SECONDS)
    return {number: each.leader for number, each in found.topics[topic].partitions.items()}


def send_to(at: str, topic: str, values: dict[int, list[bytes]]) -> Sent:
    """Send values to partitions."""
    producer = Producer({"bootstrap.servers": at, "linger.ms": 5})
    sent = Sent()
    for partition, some in values.items():
        for value in some:
            producer.produce(topic, value, partition=partition, on_delivery=sent)
    assert producer.flush(SECONDS) == 0
    return sent


def read_all(
    at: str, group: str, topic: str, count: int, **settings: Any
) -> dict[int, list[bytes]]:
    """What a member of a group gets, by partition; it commits."""
    reader = consumer(at, group, **settings)
    reader.subscribe([topic])
    found: dict[int, list[bytes]] = {}
    for each in take(reader, count):
        partition, value = each.partition(), each.value()
        assert partition is not None
        assert isinstance(value, bytes)
        found.setdefault(partition, []).append(value)
    reader.commit(asynchronous=False)
    reader.close()
    return found


async def topic_on(server: BrokerServer, topic: str) -> Fields:
    """What a broker tells of a topic."""
    async with raw(server) as client:
        wanted = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        answer = await client.ask(ApiKey.METADATA, 12, wanted)
        found: Fields = answer["topics"][0]
        return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_reads_what_was_sent_to_all_partitions(tmp_path: Path, protocol: str) -> None:
    values = {each: [b"%d-%d" % (each, at) for at in range(5)] for each in range(6)}
    async with kafka_cluster(tmp_path) as cluster:
        for number in range(3):
            at, topic = address(cluster[number]), f"orders{number}"
            await asyncio.to_thread(make_topic, at, topic, 6)
            placed = await asyncio.to_thread(leaders, address(cluster[2 - number]), topic)
            assert sorted(placed) == list(range(6))
            assert sorted(placed.values()) == [0, 0, 1, 1, 2, 2]
            sent = await asyncio.to_thread(send_to, at, topic, values)
            assert len(sent.places) == 30
            assert not sent.errors
            settings = {"group_protocol": protocol}
            read = await asyncio.to_thread(read_all, at, "readers", topic, 30, **settings)
            assert read == values
        assert [
            each.broker.topics.require(SELF, "orders0").queues for each in cluster.servers.values()
        ] == [
            2,
            2,
            2,
        ]


async def test_a_topic_is_the_same_on_all_brokers(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path) as cluster:
        await asyncio.to_thread(make_topic, address(cluster[1]), "orders", 4)
        told = [await topic_on(each, "orders") for each in cluster.servers.values()]
        assert told[0] == told[1] == told[2]
        assert told[0]["error_code"] == 0


async def test_a_topic_that_is_used_first_is_made_on_one_broker_or_several(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path, kafka__topic_partitions=3) as cluster:
        sent = await asyncio.to_thread(
            send_to, address(cluster[2]), "new", {0: [b"a"], 1: [b"b"], 2: [b"c"]}
        )
        assert sorted(sent.places) == [(0, 0), (1, 0), (2, 0)]
        placed = await asyncio.to_thread(leaders, address(cluster[0]), "new")
        assert sorted(placed.values()) == [0, 1, 2]


async def test_who_asks_the_wrong_broker_is_sent_on(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path) as cluster:
        await asyncio.to_thread(make_topic, cluster.bootstrap, "orders", 3)
        placed = await asyncio.to_thread(leaders, cluster.bootstrap, "orders")
        wrong = cluster[(placed[0] + 1) % 3]
        async with raw(wrong) as client:
            produced = await client.produce("orders", batch_of(b"x"))
            assert produced["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
            fetched = await client.fetch("orders", 0)
            assert fetched["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert fetched["current_leader"]["leader_id"] == placed[0]
            produced = await client.produce("orders", batch_of(b"x"), version=10)
            assert produced["current_leader"] == {"leader_id": placed[0], "leader_epoch": 0}
            by_id = fetch_fields("orders", [(0, 0)])
            by_id["topics"][0]["topic_id"] = (await topic_on(wrong, "orders"))["topic_id"]
            answer = await client.ask(ApiKey.FETCH, 16, by_id)
            nodes = {each["node_id"]: each["port"] for each in answer["node_endpoints"]}
            assert nodes[placed[0]] == cluster[placed[0]].config.kafka.port
            wanted = {"partition_index": 0, "timestamp": -1}
            listed = await client.ask(
                ApiKey.LIST_OFFSETS, 5, {"topics": [{"name": "orders", "partitions": [wanted]}]}
            )
            partition = listed["topics"][0]["partitions"][0]
            assert partition["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
            found = await client.ask(ApiKey.FIND_COORDINATOR, 3, {"key": "readers", "key_type": 0})
            assert found["node_id"] in (0, 1, 2)
        for number, server in cluster.servers.items():
            async with raw(server) as client:
                beat = {"group_id": "readers", "generation_id": 1, "member_id": "x"}
                answer = await client.ask(ApiKey.HEARTBEAT, 3, beat)
                is_there = number == found["node_id"]
                expected = "UNKNOWN_MEMBER_ID" if is_there else "NOT_COORDINATOR"
                assert answer["error_code"] == ErrorCode[expected]
                told = await client.ask(
                    ApiKey.FIND_COORDINATOR, 3, {"key": "readers", "key_type": 0}
                )
                assert told["node_id"] == found["node_id"]


async def test_partitions_keep_their_numbers_while_a_broker_is_away(tmp_path: Path) -> None:
    values = {each: [b"%d" % each] for each in range(6)}
    async with kafka_cluster(tmp_path) as cluster:
        at = address(cluster[0])
        await asyncio.to_thread(make_topic, at, "orders", 6)
        placed = await asyncio.to_thread(leaders, at, "orders")
        await asyncio.to_thread(send_to, at, "orders", values)
        await cluster.stop(1)
        told = await topic_on(cluster[2], "orders")
        for each in told["partitions"]:
            node = placed[each["partition_index"]]
            assert each["replica_nodes"] == [node]
            assert each["leader_id"] == (-1 if node == 1 else node)
            code = ErrorCode.LEADER_NOT_AVAILABLE if node == 1 else ErrorCode.NONE
            assert each["error_code"] == code
            assert each["offline_replicas"] == ([1] if node == 1 else [])
        there = {each: [b"more"] for each, node in placed.items() if node != 1}
        sent = await asyncio.to_thread(send_to, cluster.bootstrap, "orders", there)
        assert sorted(sent.places) == [(each, 1) for each in sorted(there)]
        # What is made meanwhile goes to those that are there; the other learns of it later.
        await asyncio.to_thread(make_topic, at, "new", 4)
        assert set((await asyncio.to_thread(leaders, at, "new")).values()) == {0, 2}
        await cluster.start(1)
        assert await asyncio.to_thread(leaders, at, "orders") == placed
        assert await topic_on(cluster[1], "new") == await topic_on(cluster[0], "new")
        read = await asyncio.to_thread(read_all, cluster.bootstrap, "readers", "orders", 10)
        assert read == {
            each: values[each] + ([b"more"] if each in there else []) for each in range(6)
        }


async def test_a_cluster_is_the_same_after_all_of_it_was_stopped(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path) as cluster:
        await asyncio.to_thread(make_topic, cluster.bootstrap, "orders", 5)
        await asyncio.to_thread(make_topic, cluster.bootstrap, "gone", 5)
        values = {each: [b"%d" % each] for each in range(5)}
        await asyncio.to_thread(send_to, cluster.bootstrap, "orders", values)
        before = await topic_on(cluster[0], "orders")
        read = await asyncio.to_thread(read_all, cluster.bootstrap, "readers", "orders", 5)
        assert read == values
        await cluster.stop(2)
        await asyncio.to_thread(delete_topic, cluster.bootstrap, "gone")
    async with kafka_cluster(tmp_path) as cluster:
        for server in cluster.servers.values():
            assert await topic_on(server, "orders") == before
            gone = await topic_on(server, "gone")
            assert gone["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert server.broker.topics.find(SELF, "gone") is None
        more = {each: [b"more"] for each in range(5)}
        await asyncio.to_thread(send_to, cluster.bootstrap, "orders", more)
        read = await asyncio.to_thread(read_all, cluster.bootstrap, "readers", "orders", 5)
        assert read == more, "positions of all partitions were kept"


def delete_topic(at: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": at})
    for future in admin.delete_topics([name]).values():
        future.result(SECONDS)


async def test_a_name_server_that_lost_its_file_gets_it_back(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path) as cluster:
        await asyncio.to_thread(make_topic, cluster.bootstrap, "orders", 5)
        before = await topic_on(cluster[0], "orders")
        await cluster.stop_nameserver()
        values = {each: [b"%d" % each] for each in range(5)}
        sent = await asyncio.to_thread(send_to, cluster.bootstrap, "orders", values)
        assert len(sent.places) == 5, "nobody needs it for what is known"
        (tmp_path / "kv.json").unlink()
        await cluster.start_nameserver()
        await eventually(lambda: "topic/orders" in kv(cluster), "the brokers put it back")
        await eventually(lambda: len(gateway_of(cluster[1]).cluster.live) == 3, "registered")
        assert await topic_on(cluster[1], "orders") == before
        await asyncio.to_thread(make_topic, cluster.bootstrap, "new", 5)


def kv(cluster: KafkaCluster) -> dict[str, str]:
    """What the name server keeps for the cluster."""
    with contextlib.suppress(KeyNotFoundError):
        return dict(cluster.nameserver.registry.kv.namespace("KAFKA_DefaultCluster").table)
    return {}


async def test_administrators_may_ask_any_broker(tmp_path: Path) -> None:
    def run(cluster: KafkaCluster) -> None:
        some = [
            AdminClient({"bootstrap.servers": address(each)}) for each in cluster.servers.values()
        ]
        make_topic(address(cluster[0]), "orders", 2, **{"max.message.bytes": "5000"})
        with pytest.raises(KafkaException, match="exists"):
            make_topic(address(cluster[1]), "orders", 2)
        before = leaders(address(cluster[0]), "orders")
        for future in some[2].create_partitions([NewPartitions("orders", 7)]).values():
            future.result(SECONDS)
        after = leaders(address(cluster[1]), "orders")
        assert {each: after[each] for each in before} == before
        assert sorted(after) == list(range(7))
        assert sorted(Counter(after.values()).values()) == [2, 2, 3]
        for admin in some:
            found = admin.describe_cluster(request_timeout=SECONDS).result()
            assert [each.id for each in found.nodes] == [0, 1, 2]
            resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
            for future in admin.describe_configs([resource]).values():
                assert future.result(SECONDS)["max.message.bytes"].value == "5000"
        entry = ConfigEntry(
            "max.message.bytes", "6000", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
        for future in some[1].incremental_alter_configs([resource]).values():
            future.result(SECONDS)
        for server in cluster.servers.values():
            assert (
                server.broker.topics.require(SELF, "orders").attributes["max.message.bytes"]
                == "6000"
            )
        send_to(cluster.bootstrap, "orders", {each: [b"x"] for each in range(7)})
        read_all(cluster.bootstrap, "readers", "orders", 7)
        for admin in some:
            groups = admin.list_consumer_groups(request_timeout=SECONDS).result().valid
            assert [each.group_id for each in groups] == ["readers"]
        for future in some[0].delete_consumer_groups(["readers"]).values():
            future.result(SECONDS)
        delete_topic(address(cluster[2]), "orders")
        for server in cluster.servers.values():
            assert server.broker.topics.find(SELF, "orders") is None
        make_topic(address(cluster[1]), "orders", 3)
        assert len(leaders(address(cluster[0]), "orders")) == 3

    async with kafka_cluster(tmp_path) as cluster:
        await asyncio.to_thread(run, cluster)


async def test_topics_of_others_get_a_placement_when_they_are_seen(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path) as cluster:
        for number, queues in ((1, 2), (0, 3)):
            config = TopicConfig("theirs", queues, queues)
            cluster[number].broker.topics.create(SELF, config)
            await eventually(lambda: "topic/theirs" in kv(cluster), "recorded")
        await eventually(lambda: partitions_on(cluster[2], "theirs") == 5, "grown")
        told = await topic_on(cluster[2], "theirs")
        assert [each["leader_id"] for each in told["partitions"]] == [1, 1, 0, 0, 0]
        grown = TopicConfig("theirs", 4, 4)
        cluster[1].broker.topics.create(SELF, grown)
        await eventually(lambda: partitions_on(cluster[2], "theirs") == 7, "grown")
        told = await topic_on(cluster[0], "theirs")
        assert [each["leader_id"] for each in told["partitions"]] == [1, 1, 0, 0, 0, 1, 1]
        values = {each: [b"%d" % each] for each in range(7)}
        await asyncio.to_thread(send_to, cluster.bootstrap, "theirs", values)
        read = await asyncio.to_thread(read_all, cluster.bootstrap, "readers", "theirs", 7)
        assert read == values
        cluster[0].broker.topics.delete(SELF, "theirs")
        await eventually(
            lambda: cluster[1].broker.topics.find(SELF, "theirs") is None, "deleted on all"
        )


def partitions_on(server: BrokerServer, topic: str) -> int:
    """How many partitions of a topic a broker knows of."""
    placed = gateway_of(server).cluster.placed.get(topic)
    return 0 if placed is None else len(placed.nodes)


def gateway_of(server: BrokerServer) -> Gateway:
    """What Kafka's sessions of a broker share."""
    gateway = server.gateways["kafka"]
    assert isinstance(gateway, KafkaGateway)
    return gateway.shared()


async def test_rocketmq_members_and_kafka_members_read_the_same_topic(tmp_path: Path) -> None:
    """Its partitions are on one broker: the others have the topic, and no queue of it."""

    async with kafka_cluster(tmp_path) as cluster:
        await asyncio.to_thread(make_topic, cluster.bootstrap, "orders", 1)
        async with AsyncProducer("senders", nameserver=cluster.nameservers) as producer:
            for number in range(4):
                await producer.send(Message("orders", b"%d" % number))
        read = await asyncio.to_thread(read_all, cluster.bootstrap, "readers", "orders", 4)
        assert read == {0: [b"0", b"1", b"2", b"3"]}


async def test_another_client_finds_everything(tmp_path: Path) -> None:
    def run(at: str) -> list[tuple[int, bytes]]:
        make_topic(at, "orders", 4)
        producer = KafkaProducer(bootstrap_servers=at)
        for partition in range(4):
            producer.send("orders", b"%d" % partition, partition=partition)
        producer.flush(SECONDS)
        producer.close()
        reader = KafkaConsumer(
            "orders",
            bootstrap_servers=at,
            group_id="readers",
            auto_offset_reset="earliest",
            consumer_timeout_ms=SECONDS * 1000,
        )
        found = [(each.partition, each.value) for each, _ in zip(reader, range(4), strict=False)]
        reader.close()
        return found

    async with kafka_cluster(tmp_path) as cluster:
        found = await asyncio.to_thread(run, address(cluster[1]))
        assert sorted(found) == [(each, b"%d" % each) for each in range(4)]


async def test_a_number_is_that_of_one_broker(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path, count=2) as cluster:
        with pytest.raises(ConfigError, match=r"kafka.node_id 1 is that of broker broker-b"):
            await cluster.start(2, kafka__node_id=1)
    with pytest.raises(ConfigError, match=r"set broker.nameservers"):
        async with kafka(tmp_path / "alone", kafka__node_id=0):
            pass


async def test_brokers_log_in_to_each_other_once_there_are_users(tmp_path: Path) -> None:
    proofs = prove("broker secret", signing=True)
    async with kafka_cluster(tmp_path, security__broker_user="bro=ker,s") as cluster:
        agreement = gateway_of(cluster[0]).agreement
        assert agreement is not None
        peers = agreement.peers
        wanted = {"topics": None, "allow_auto_topic_creation": False}
        await eventually(lambda: len(agreement.cluster.nodes) == 3, "all know each other")
        assert (await peers.ask(1, ApiKey.METADATA, 12, wanted))["brokers"]
        for server in cluster.servers.values():
            server.broker.users.create_user(SELF, "ann", prove("x"), ("admin",))
        with pytest.raises(PeerClosedError):
            await peers.ask(1, ApiKey.METADATA, 12, wanted)
        for server in cluster.servers.values():
            known = {"name": "bro=ker,s", "proofs": msgspec.to_builtins(proofs), "roles": ["admin"]}
            server.broker.users.users.apply("bro=ker,s", known)
        for node in (1, 2):
            assert (await peers.ask(node, ApiKey.METADATA, 12, wanted))["brokers"]

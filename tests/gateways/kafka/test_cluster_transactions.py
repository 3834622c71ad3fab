"""Transactions over partitions and groups of several brokers: all of them end in the same way."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from onelog.core.access import SELF
from onelog.core.transactions.transactional_ids import TransactionState
from onelog.gateways.kafka.cluster.view import slot_of
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import SECONDS, consumer, take
from tests.gateways.kafka.live_cluster import KafkaCluster, kafka_cluster
from tests.gateways.kafka.raw import RawClient, batch_of, raw, values_in
from tests.gateways.kafka.test_cluster import gateway_of, leaders, make_topic, read_all, send_to
from tests.waiting import eventually


def transactional(at: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": at, "transactional.id": name, "linger.ms": 5})
    producer.init_transactions(SECONDS)
    return producer


def committed(at: str, topic: str, count: int) -> dict[int, list[bytes]]:
    return read_all(at, f"all of {topic}", topic, count, isolation_level="read_committed")


@pytest.mark.parametrize("name", ["one", "two", "three", "four"])
async def test_a_transaction_over_all_brokers_is_seen_as_a_whole_or_not(
    tmp_path: Path, name: str
) -> None:
    def run(at: str) -> dict[int, list[bytes]]:
        make_topic(at, "orders", 6)
        producer = transactional(at, name)
        for value, keep in ((b"a", True), (b"no", False), (b"b", True)):
            producer.begin_transaction()
            for partition in range(6):
                producer.produce("orders", value, partition=partition)
            assert producer.flush(SECONDS) == 0
            if keep:
                producer.commit_transaction(SECONDS)
            else:
                producer.abort_transaction(SECONDS)
        return committed(at, "orders", 12)

    async with kafka_cluster(tmp_path) as cluster:
        read = await asyncio.to_thread(run, cluster.bootstrap)
        assert read == {each: [b"a", b"b"] for each in range(6)}


@pytest.mark.parametrize("group", ["one", "two", "three", "four", "five", "six"])
async def test_positions_of_a_group_elsewhere_belong_to_the_transaction(
    tmp_path: Path, group: str
) -> None:
    def run(at: str) -> list[int]:
        make_topic(at, "orders", 3)
        make_topic(at, "copies", 3)
        send_to(at, "orders", {each: [b"x", b"y"] for each in range(3)})
        producer = transactional(at, "copier")
        found: list[int] = []
        for keep in (False, True):
            reader = consumer(at, group, isolation_level="read_committed")
            reader.subscribe(["orders"])
            producer.begin_transaction()
            for each in take(reader, 6):
                producer.produce("copies", each.value(), partition=each.partition() or 0)
            positions = reader.position(reader.assignment())
            producer.send_offsets_to_transaction(
                positions, reader.consumer_group_metadata(), SECONDS
            )
            if keep:
                producer.commit_transaction(SECONDS)
            else:
                producer.abort_transaction(SECONDS)
            places = [TopicPartition("orders", each) for each in range(3)]
            found += [each.offset for each in reader.committed(places, SECONDS)]
            reader.close()
        assert committed(at, "copies", 6) == {each: [b"x", b"y"] for each in range(3)}
        return found

    async with kafka_cluster(tmp_path) as cluster:
        found = await asyncio.to_thread(run, cluster.bootstrap)
        assert found == [-1001, -1001, -1001, 2, 2, 2]


async def coordinator_of(cluster: KafkaCluster, name: str) -> int:
    async with raw(cluster[0]) as client:
        found = await client.ask(ApiKey.FIND_COORDINATOR, 3, {"key": name, "key_type": 1})
        assert found["error_code"] == 0
        node: int = found["node_id"]
        return node


async def begun(client: RawClient, name: str, partitions: list[int]) -> dict[str, Any]:
    """Begin a transaction by hand: who the producer is."""
    made = await client.ask(
        ApiKey.INIT_PRODUCER_ID, 1, {"transactional_id": name, "transaction_timeout_ms": 60_000}
    )
    assert made["error_code"] == 0
    producer = {"producer_id": made["producer_id"], "producer_epoch": made["producer_epoch"]}
    added = await client.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        1,
        {
            "v3_and_below_transactional_id": name,
            **{f"v3_and_below_{key}": value for key, value in producer.items()},
            "v3_and_below_topics": [{"name": "orders", "partitions": partitions}],
        },
    )
    for each in added["results_by_topic_v3_and_below"][0]["results_by_partition"]:
        assert each["partition_error_code"] == 0
    return {"transactional_id": name, **producer}


async def stable(cluster: KafkaCluster, placed: dict[int, int]) -> dict[int, list[bytes | None]]:
    """What readers of committed messages see of each partition."""
    found: dict[int, list[bytes | None]] = {}
    for partition, node in placed.items():
        async with raw(cluster[node]) as client:
            read = await client.fetch("orders", 0, partition, isolation_level=1)
            aborted = {each["producer_id"] for each in read["aborted_transactions"] or ()}
            values = values_in(read["records"])
            found[partition] = [] if aborted else [value for _, value in values if value != b""]
    return found


def is_ended(cluster: KafkaCluster, node: int, name: str, state: TransactionState) -> bool:
    broker = cluster[node].broker
    return any(
        each.name == name and each.state is state
        for each in broker.transactions.in_place.transactions(SELF)
    )


@pytest.mark.parametrize("away", ["a participant", "the coordinator"])
async def test_an_end_that_was_decided_reaches_all_whoever_is_away_meanwhile(
    tmp_path: Path, away: str
) -> None:
    async with kafka_cluster(tmp_path) as cluster:
        await asyncio.to_thread(make_topic, cluster.bootstrap, "orders", 3)
        placed = await asyncio.to_thread(leaders, cluster.bootstrap, "orders")
        node = await coordinator_of(cluster, "mine")
        async with raw(cluster[node]) as client:
            producer = await begun(client, "mine", [0, 1, 2])
            for partition, leader in placed.items():
                async with raw(cluster[leader]) as other:
                    stamp = (producer["producer_id"], producer["producer_epoch"], 0)
                    batch = batch_of(b"%d" % partition, producer=stamp, attributes=0x10)
                    assert (await other.produce("orders", batch, partition))["error_code"] == 0
            assert await stable(cluster, placed) == {0: [], 1: [], 2: []}
            stopped = (node + 1) % 3
            await cluster.stop(stopped)
            client.tell(ApiKey.END_TXN, 1, {**producer, "committed": True})
            await eventually(
                lambda: is_ended(cluster, node, "mine", TransactionState.COMMITTING), "decided"
            )
        if away == "the coordinator":
            await cluster.stop(node)
            await cluster.start(stopped)
            await cluster.start(node)
        else:
            await cluster.start(stopped)
        await eventually(
            lambda: is_ended(cluster, node, "mine", TransactionState.COMMITTED), "ended"
        )
        seen = await stable(cluster, placed)
        assert {each: values[:1] for each, values in seen.items()} == {
            0: [b"0"],
            1: [b"1"],
            2: [b"2"],
        }
        assert not any(
            len(server.broker.transactions.branches) for server in cluster.servers.values()
        )


async def test_producers_have_ids_of_their_own_whatever_broker_gives_them(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path) as cluster:
        found: list[Fields] = []
        for server in cluster.servers.values():
            async with raw(server) as client:
                wanted = {"transactional_id": None, "transaction_timeout_ms": 60_000}
                found += [await client.ask(ApiKey.INIT_PRODUCER_ID, 1, wanted) for _ in range(3)]
        assert len({each["producer_id"] for each in found}) == 9


async def test_slots_of_groups_and_transactions_go_to_all_brokers(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path) as cluster:
        nodes = {await coordinator_of(cluster, f"id-{each}") for each in range(20)}
        assert nodes == {0, 1, 2}
        known = gateway_of(cluster[1]).cluster
        assert known.coordinator("id-3") == known.coordinator_of_slot(slot_of("id-3"))

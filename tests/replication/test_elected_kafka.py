"""Kafka's clients of a real set with a real etcd: any node tells them where the master is."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onelog.config import Value
from onelog.config_sources import load
from onelog.server import running_nameserver
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.gateways.kafka.live import SECONDS, consumer, produce, take
from tests.gateways.kafka.raw import raw
from tests.ports import free_port
from tests.replication.live import NAME, SMALL, LiveSet, RealEtcd


class KafkaSet(LiveSet):
    """The same, with Kafka's port on every node."""

    def start(self, number: int) -> None:
        port = self.ports.setdefault(number, free_port())
        kafka = self.ports.setdefault(number + 100, free_port())
        others = [each for each in SMALL if each != "kafka.port=0"]
        others.insert(SMALL.index("kafka.port=0"), f"kafka.port={kafka}")
        with (self.folder / f"{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "onelog", "broker", "--name", NAME),
                    *("--id", str(number), "--etcd", self.etcd.address, "--replicas", "3"),
                    *("--ack", self.ack, "--port", str(port), "-n", self.nameservers),
                    *("--data", str(self.folder / f"store-{number}"), "-v", *others),
                    *("--set", "kafka.initial_rebalance_delay_ms=0"),
                ],
                stdout=log,
                stderr=log,
            )

    def at(self, number: int) -> str:
        return f"127.0.0.1:{self.ports[number + 100]}"


@pytest.fixture
async def live(tmp_path: Path, real_etcd: RealEtcd) -> AsyncIterator[KafkaSet]:
    settings: dict[str, Value] = {
        "nameserver.port": 0,
        "nameserver.kv_path": str(tmp_path / "kv.json"),
    }
    async with running_nameserver(load(overrides=settings)) as nameserver:
        live = KafkaSet(tmp_path, real_etcd, nameserver)
        try:
            for number in range(3):
                live.start(number)
            await live.in_sync(0, 1, 2)
            yield live
        finally:
            for process in live.processes.values():
                process.kill()
                process.wait()
            await live.replicas.close()


async def test_clients_that_know_a_follower_only_find_the_master_and_the_next_one(
    live: KafkaSet,
) -> None:
    def make(at: str) -> None:
        admin = AdminClient({"bootstrap.servers": at})
        admin.create_topics([NewTopic("orders", 1, 3)])["orders"].result(SECONDS)
        assert admin.list_consumer_groups().result(SECONDS).errors == []

    def read(at: str, count: int) -> list[bytes | None]:
        reader = consumer(at, "readers")
        reader.assign([TopicPartition("orders", 0, 0)])
        found = [each.value() for each in take(reader, count)]
        reader.commit(offsets=[TopicPartition("orders", 0, count)], asynchronous=False)
        reader.close()
        return found

    master = await live.master()
    follower, other = [each for each in range(3) if each != master]
    await asyncio.to_thread(make, live.at(follower))
    sent = await asyncio.to_thread(produce, live.at(follower), "orders", [b"1", b"2"], acks="all")
    assert (sent.errors, len(sent.places)) == ([], 2)
    assert await asyncio.to_thread(read, live.at(other), 2) == [b"1", b"2"]
    epochs = []
    for number in (master, follower):
        async with raw(live.at(number)) as client:
            told = await client.ask(ApiKey.METADATA, 9, {"topics": [{"name": "orders"}]})
            assert told["controller_id"] == master
            assert sorted(each["node_id"] for each in told["brokers"]) == [0, 1, 2]
            (partition,) = told["topics"][0]["partitions"]
            assert partition["leader_id"] == master
            assert sorted(partition["replica_nodes"]) == [0, 1, 2]
            assert sorted(partition["isr_nodes"]) == [0, 1, 2]
            epochs.append(partition["leader_epoch"])
    assert epochs[0] == epochs[1] > 0
    async with raw(live.at(follower)) as client:
        client.tell(ApiKey.LIST_OFFSETS, 7, {"topics": []})
        assert await client.is_closed(), "only the master has partitions"
    live.signal(master, signal.SIGKILL)
    await live.another_master_than(master)
    new = await live.master()
    values: list[bytes | None] = [b"3"]
    sent = await asyncio.to_thread(produce, live.at(other), "orders", values, acks="all")
    assert sent.errors == []
    assert await asyncio.to_thread(read, live.at(follower), 3) == [b"1", b"2", b"3"]
    async with raw(live.at(new)) as client:
        told = await client.ask(ApiKey.METADATA, 9, {"topics": [{"name": "orders"}]})
        (partition,) = told["topics"][0]["partitions"]
        assert partition["leader_epoch"] > epochs[0]
        wanted = {"partition": 0, "leader_epoch": epochs[0]}
        wanted["current_leader_epoch"] = partition["leader_epoch"]
        asked = {"topics": [{"topic": "orders", "partitions": [wanted]}], "replica_id": -1}
        answer = await client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, asked)
        (found,) = answer["topics"][0]["partitions"]
        assert (found["leader_epoch"], found["end_offset"]) == (epochs[0], 2)
        wanted["current_leader_epoch"] = epochs[0]
        answer = await client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, asked)
        (found,) = answer["topics"][0]["partitions"]
        assert found["error_code"] == ErrorCode.FENCED_LEADER_EPOCH


async def test_a_master_that_wakes_tells_no_old_offset(live: KafkaSet) -> None:
    """What was asked while it was stopped is read when it wakes, by which time it is none."""

    def make(at: str) -> None:
        admin = AdminClient({"bootstrap.servers": at})
        admin.create_topics([NewTopic("orders", 1, 3)])["orders"].result(SECONDS)

    place = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    asked = {"replica_id": -1, "topics": [{"name": "orders", "partitions": [place]}]}
    committed = {"group_id": "readers", "topics": [{"name": "orders", "partition_indexes": [0]}]}

    def commit(at: str, offset: int) -> None:
        reader = consumer(at, "readers")
        reader.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
        reader.close()

    master = await live.master()
    at = live.at(master)
    await asyncio.to_thread(make, at)
    sent = await asyncio.to_thread(produce, at, "orders", [b"1", b"2"], acks="all")
    assert sent.errors == []
    await asyncio.to_thread(commit, at, 1)
    async with raw(at) as ends, raw(at) as positions:
        told = await ends.ask(ApiKey.LIST_OFFSETS, 5, asked)
        assert told["topics"][0]["partitions"][0]["offset"] == 2
        told = await positions.ask(ApiKey.OFFSET_FETCH, 5, committed)
        assert told["topics"][0]["partitions"][0]["committed_offset"] == 1
        live.signal(master, signal.SIGSTOP)
        try:
            ends.tell(ApiKey.LIST_OFFSETS, 5, asked)
            positions.tell(ApiKey.OFFSET_FETCH, 5, committed)
            await live.another_master_than(master)
            new = live.at(await live.master())
            sent = await asyncio.to_thread(produce, new, "orders", [b"3"], acks="all")
            assert sent.errors == []
            await asyncio.to_thread(commit, new, 3)
        finally:
            live.signal(master, signal.SIGCONT)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            told = await ends.hear(ApiKey.LIST_OFFSETS, 5)
            (partition,) = told["topics"][0]["partitions"]
            assert partition["error_code"] or partition["offset"] == 3, "it told an old end"
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            told = await positions.hear(ApiKey.OFFSET_FETCH, 5)
            if not told["error_code"]:
                (partition,) = told["topics"][0]["partitions"]
                is_new = partition["error_code"] or partition["committed_offset"] == 3
                assert is_new, "it told an old position"

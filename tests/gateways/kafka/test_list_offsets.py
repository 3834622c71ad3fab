"""Where partitions begin, end, and were at a time."""

from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.errors import NotMasterError
from onelog.gateways.kafka.list_offsets import EARLIEST, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.core.replicas import give_replicas
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import RawClient, batch_of, raw
from tests.gateways.remoting.live import client as remoting_client


async def place(client: RawClient, time_ms: int, partition: int = 0) -> tuple[int, int, int]:
    wanted = {"partition_index": partition, "timestamp": time_ms}
    answer = await client.ask(
        ApiKey.LIST_OFFSETS, 7, {"topics": [{"name": "orders", "partitions": [wanted]}]}
    )
    (found,) = answer["topics"][0]["partitions"]
    return found["error_code"], found["offset"], found["timestamp"]


async def test_begin_end_and_times_of_a_partition(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        assert await place(client, LATEST) == (0, 0, -1)
        assert await place(client, MAX_TIMESTAMP) == (0, -1, -1)
        for begin in (1_000, 3_000, 2_000):
            await client.produce("orders", batch_of(b"x", b"y", b"z", time_ms=begin))
        assert await place(client, EARLIEST) == (0, 0, -1)
        assert await place(client, LATEST) == (0, 9, -1)
        assert await place(client, 0) == (0, 0, 1_000)
        assert await place(client, 1_002) == (0, 2, 1_002)
        assert await place(client, 1_003) == (0, 3, 3_000)
        assert await place(client, 3_003) == (0, -1, -1)
        assert await place(client, MAX_TIMESTAMP) == (0, 5, 3_002)
        assert await place(client, LATEST_TIERED) == (0, -1, -1)
        assert (await place(client, LATEST, 7))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_messages_of_rocketmqs_producers_have_their_times(tmp_path: Path) -> None:
    async with (
        kafka(tmp_path) as server,
        raw(server) as client,
        remoting_client(server) as rocketmq,
    ):
        await client.make_topic("orders")
        await client.produce("orders", batch_of(b"x"))
        await rocketmq.send("orders", b"y", g=5_000)
        assert await place(client, 2_000) == (0, 1, 5_000)


async def test_the_only_epoch_ends_where_the_partition_ends(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        await client.produce("orders", batch_of(b"x", b"y"))
        partitions = [{"partition": 0, "leader_epoch": epoch} for epoch in (0, 3)]
        partitions += [{"partition": 9, "leader_epoch": 0}]
        answer = await client.ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            {"topics": [{"topic": "orders", "partitions": partitions}]},
        )
        found = [
            (each["error_code"], each["leader_epoch"], each["end_offset"])
            for each in answer["topics"][0]["partitions"]
        ]
        assert found == [(0, 0, 2), (0, -1, -1), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)]


async def test_this_broker_coordinates_everything(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        old = await client.ask(ApiKey.FIND_COORDINATOR, 1, {"key": "g", "key_type": 1})
        assert (old["error_code"], old["port"]) == (0, server.config.kafka.port)
        new = await client.ask(ApiKey.FIND_COORDINATOR, 4, {"coordinator_keys": ["a", "b"]})
        assert [each["key"] for each in new["coordinators"]] == ["a", "b"]
        odd = await client.ask(ApiKey.FIND_COORDINATOR, 1, {"key": "g", "key_type": 9})
        assert odd["error_code"] == ErrorCode.INVALID_REQUEST


async def test_who_may_be_master_no_more_tells_no_positions_and_moves_nobody(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        await client.produce("orders", batch_of(b"1", b"2"))
        server.core.groups.require("readers")
        server.broker.cursors.commit(SELF, "readers", "orders", 0, 1)
        replicas = give_replicas(server.core.durability)
        replicas.is_master = False  # It was stopped for a while, say.
        for time_ms in (-1, -2, -3, 0):
            wanted = {"partition_index": 0, "timestamp": time_ms, "current_leader_epoch": -1}
            for isolation in (0, 1):
                fields = {
                    "replica_id": -1,
                    "isolation_level": isolation,
                    "topics": [{"name": "orders", "partitions": [wanted]}],
                }
                told = await client.ask(ApiKey.LIST_OFFSETS, 7, fields)
                (partition,) = told["topics"][0]["partitions"]
                assert partition["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        group = {"group_id": "readers", "topics": None}
        told = await client.ask(ApiKey.OFFSET_FETCH, 8, {"groups": [group]})
        assert told["groups"][0]["error_code"] == ErrorCode.NOT_COORDINATOR
        broker = server.broker
        with pytest.raises(NotMasterError):
            broker.topics.max_offset(SELF, "orders", 0)
        with pytest.raises(NotMasterError):
            broker.cursors.query(SELF, "readers", "orders", 0)
        with pytest.raises(NotMasterError):
            broker.topics.offset_by_time(SELF, "orders", 0, 0)
        # What is there is there for ever; who is further than it knows waits.
        assert (await client.fetch("orders", 0))["error_code"] == 0
        ahead = await client.fetch("orders", 7)
        assert (ahead["error_code"], ahead["records"]) == (0, b"")
        replicas.is_master = True
        assert (await client.fetch("orders", 7))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE

"""Deleting the first messages of partitions, and what is told of their space."""

from pathlib import Path

from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.core.world import entries_of
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import RawClient, batch_of, raw


async def delete(client: RawClient, offset: int, partition: int = 0) -> tuple[int, int]:
    wanted = {"partition_index": partition, "offset": offset}
    told = await client.ask(
        ApiKey.DELETE_RECORDS, 2, {"topics": [{"name": "orders", "partitions": [wanted]}]}
    )
    (found,) = told["topics"][0]["partitions"]
    return found["error_code"], found["low_watermark"]


async def test_a_partition_begins_where_somebody_said_also_after_a_restart(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        for _ in range(3):
            await client.produce("orders", batch_of(b"x", b"y"))
        assert await delete(client, 3) == (0, 3)
        assert (await client.fetch("orders", 2))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await delete(client, 7) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert (await delete(client, 0, 4))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with kafka(tmp_path) as server, raw(server) as client:
        found = await client.fetch("orders", 3)
        assert (found["error_code"], found["log_start_offset"]) == (0, 3)
        assert await delete(client, -1) == (0, 6)
        assert (await client.fetch("orders", 6))["error_code"] == 0
        await client.produce("orders", batch_of(b"z"))
        assert (await client.fetch("orders", 6))["high_watermark"] == 7


async def test_a_topic_that_is_made_again_begins_at_its_beginning(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        await client.produce("orders", batch_of(b"x", b"y"))
        assert await delete(client, 2) == (0, 2)
        await client.ask(ApiKey.DELETE_TOPICS, 5, {"topic_names": ["orders"]})
        await client.make_topic("orders")
        await client.produce("orders", batch_of(b"z"))
    async with kafka(tmp_path) as server, raw(server) as client:
        assert (await client.fetch("orders", 0))["error_code"] == 0
        assert entries_of(server.core.starts) == {}


async def test_the_folder_of_everything_is_told(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 2)
        await client.produce("orders", batch_of(b"x"))
        told = await client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
        (folder,) = told["results"]
        assert folder["log_dir"] == str(server.core.store.folder)
        (topic,) = folder["topics"]
        assert [each["partition_size"] for each in topic["partitions"]] == [20, 0]

"""Partitions stay where they are, and whoever asks about that is told so."""

from pathlib import Path

from onelog.gateways.kafka.placement import METADATA_TOPIC
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import raw


async def test_a_partition_is_reassigned_only_to_where_it_is(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 4)
        wanted: list[Fields] = [
            {"partition_index": 0, "replicas": [0]},
            {"partition_index": 1, "replicas": [0, 1]},
            {"partition_index": 2, "replicas": None},
            {"partition_index": 9, "replicas": [0]},
        ]
        answer = await client.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            1,
            {"topics": [{"name": "orders", "partitions": wanted}]},
        )
        assert [each["error_code"] for each in answer["responses"][0]["partitions"]] == [
            0,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


async def test_a_partition_is_moved_only_to_the_folder_that_it_is_in(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        found = await client.ask(ApiKey.DESCRIBE_LOG_DIRS, 5, {"topics": None})
        codes = []
        for path in (found["results"][0]["log_dir"], "/elsewhere"):
            moves = {"path": path, "topics": [{"name": "orders", "partitions": [0, 1]}]}
            answer = await client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": [moves]})
            codes += [each["error_code"] for each in answer["results"][0]["partitions"]]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [0, unknown, ErrorCode.LOG_DIR_NOT_FOUND, unknown]


async def test_the_broker_is_the_only_voter(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        answer = await client.ask(
            ApiKey.DESCRIBE_QUORUM,
            2,
            {
                "topics": [
                    {"topic_name": name, "partitions": [{"partition_index": 0}]}
                    for name in (METADATA_TOPIC, "orders")
                ]
            },
        )
        told, unknown = (each["partitions"][0] for each in answer["topics"])
        assert (told["error_code"], told["leader_id"]) == (0, 0)
        assert [each["replica_id"] for each in told["current_voters"]] == [0]
        assert unknown["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer["nodes"][0]["listeners"][0]["port"] == server.config.kafka.port

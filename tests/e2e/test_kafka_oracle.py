"""The same requests to OneLog and to a real Kafka: what one answers, the other does."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.kafka_peer import KafkaPeer
from onelog.gateways.kafka.configs import TOPIC_CONFIGS
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka import commit_walk
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import RawClient, raw

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a real Kafka listens."""
    settings = {"group.min.session.timeout.ms": "1000", "offsets.topic.num.partitions": "50"}
    with KafkaPeer(tmp_path_factory.mktemp("kafka"), "512m", settings) as running:
        yield running.bootstrap


async def test_positions_are_taken_from_the_same(peer: str) -> None:
    assert await commit_walk.walk(peer, "walkers") == commit_walk.EXPECTED


VALUES = (
    "-131073",
    "-131072",
    "-2",
    "-1",
    "0",
    "1",
    "4",
    "9",
    "10",
    "17",
    "18",
    "22",
    "23",
    "1048575",
    "1048576",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "0.5",
    "1.1",
    "true",
    "TRUE",
    "false",
    "x",
    "",
    " 5 ",
    "+5",
    "1_000",
    "compact",
    "delete",
    " compact , delete ",
    "delete,delete",
    "compact,,delete",
    "none",
    "gzip",
    "GZIP",
    "zstd",
    "producer",
    "uncompressed",
    "CreateTime",
    "LogAppendTime",
    "*",
    "0:1,1:2",
)
"""What somebody may set a topic's setting to."""


async def settings_of(client: RawClient) -> dict[str, tuple[str, int]]:
    """The settings of a topic, their defaults and types."""
    wanted = {"resource_type": 2, "resource_name": "defaults", "configuration_keys": None}
    told = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [wanted]})
    configs = told["results"][0]["configs"]
    found = {each["name"]: (each["value"], each["config_type"]) for each in configs}
    del found["retention.ms"]  # The broker's own setting says that.
    return found


async def accepted(client: RawClient) -> list[tuple[str, str, int]]:
    """Which code each value of each setting gets."""
    found = []
    for name in (*TOPIC_CONFIGS, "no.such.setting"):
        for value in VALUES:
            topic: Fields = {
                "name": "trial",
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [{"name": name, "value": value}],
            }
            asked = {"topics": [topic], "validate_only": True}
            told = await client.ask(ApiKey.CREATE_TOPICS, 7, asked)
            found.append((name, value, told["topics"][0]["error_code"]))
    return found


async def test_topics_have_the_same_settings_with_the_same_defaults_and_values(
    tmp_path: Path, peer: str
) -> None:
    async with kafka(tmp_path) as server, raw(server) as ours, raw(peer) as theirs:
        for client in (ours, theirs):
            await client.make_topic("defaults")
        assert await settings_of(ours) == await settings_of(theirs)
        assert await accepted(ours) == await accepted(theirs)


async def test_what_comes_twice_in_a_request_is_refused_in_the_same_way(
    tmp_path: Path, peer: str
) -> None:
    async def codes(client: RawClient) -> list[list[tuple[str, int]]]:
        await client.make_topic("twice")
        names = ("twice", "once", "twice")
        new = [{"name": each, "num_partitions": 1, "replication_factor": 1} for each in names]
        more = [{"name": each, "count": 3, "assignments": None} for each in names]
        asked: list[tuple[ApiKey, int, Fields, str]] = [
            (ApiKey.CREATE_TOPICS, 7, {"topics": new}, "topics"),
            (ApiKey.CREATE_PARTITIONS, 3, {"topics": more}, "results"),
            (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": each} for each in names]}, "responses"),
            (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["twice", "twice"]}, "responses"),
        ]
        found = []
        for key, version, fields, part in asked:
            told = (await client.ask(key, version, {**fields, "timeout_ms": 10_000}))[part]
            found.append(sorted((each["name"], each["error_code"]) for each in told))
            await asyncio.sleep(0.5)  # Kafka's broker hears of it from its controller.
        return found

    async with kafka(tmp_path) as server, raw(server) as ours, raw(peer) as theirs:
        assert await codes(ours) == await codes(theirs)

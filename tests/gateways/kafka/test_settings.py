"""Settings of topics under Kafka's names."""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from onelog.core.access import SELF
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.gateways.kafka.live import SECONDS, address, kafka
from tests.gateways.kafka.live_cluster import kafka_cluster
from tests.gateways.kafka.raw import RawClient, batch_of, raw


async def test_settings_are_told_with_where_they_come_from(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", retention_ms="60000")
        resources = [
            {"resource_type": 2, "resource_name": "orders", "configuration_keys": None},
            {"resource_type": 4, "resource_name": "0", "configuration_keys": ["num.partitions"]},
            {"resource_type": 4, "resource_name": "7", "configuration_keys": None},
            {"resource_type": 2, "resource_name": "nowhere", "configuration_keys": None},
        ]
        told = await client.ask(
            ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources, "include_synonyms": True}
        )
        topic, broker, *wrong = told["results"]
        found = {each["name"]: each for each in topic["configs"]}
        assert (found["retention.ms"]["value"], found["retention.ms"]["config_source"]) == (
            "60000",
            1,
        )
        assert found["max.message.bytes"]["value"] == "1048588"
        assert found["max.message.bytes"]["config_source"] == 5
        assert [each["value"] for each in broker["configs"]] == ["1"]
        assert [each["error_code"] for each in wrong] == [
            ErrorCode.INVALID_REQUEST,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert server.core.topics.retention_ms() == {"orders": 60_000}


async def test_librdkafkas_administrator_changes_settings(tmp_path: Path) -> None:
    def run(at: str) -> None:
        admin = AdminClient({"bootstrap.servers": at})

        def change(name: str, value: str | None, operation: AlterConfigOpType) -> None:
            entry = ConfigEntry(name, value or "", incremental_operation=operation)
            resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(SECONDS)

        def value(name: str) -> str | None:
            resource = ConfigResource(ResourceType.TOPIC, "orders")
            found = admin.describe_configs([resource])[resource].result(SECONDS)
            told: str | None = found[name].value
            return told

        change("max.message.bytes", "500", AlterConfigOpType.SET)
        assert value("max.message.bytes") == "500"
        change("max.message.bytes", None, AlterConfigOpType.DELETE)
        assert value("max.message.bytes") == "1048588"
        change("cleanup.policy", "delete", AlterConfigOpType.APPEND)
        assert value("cleanup.policy") == "delete"
        change("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
        assert value("cleanup.policy") == ""
        for name, bad in (("cleanup.policy", "nothing"), ("no.such", "1"), ("segment.ms", "x")):
            with pytest.raises(KafkaException):
                change(name, bad, AlterConfigOpType.SET)

    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        await asyncio.to_thread(run, address(server))
        for_ever = {"orders": 36_500 * 86_400_000}
        assert server.core.topics.retention_ms() == for_ever, "nothing deletes its messages"


async def test_settings_that_are_not_named_go_back_in_the_old_way(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", retention_ms="60000", max_message_bytes="100")
        large = batch_of(bytes(4_000))
        assert (await client.produce("orders", large))["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
        named = [{"name": "max.message.bytes", "value": "5000"}]
        wanted = {"resource_type": 2, "resource_name": "orders", "configs": named}
        told = await client.ask(ApiKey.ALTER_CONFIGS, 1, {"resources": [wanted]})
        assert told["responses"][0]["error_code"] == 0
        assert server.core.topics.require("orders").attributes == {"max.message.bytes": "5000"}
        assert (await client.produce("orders", large))["error_code"] == 0
        odd = {"resource_type": 4, "resource_name": "0", "configs": named}
        told = await client.ask(ApiKey.ALTER_CONFIGS, 1, {"resources": [odd]})
        assert told["responses"][0]["error_code"] == ErrorCode.INVALID_REQUEST


async def test_a_partition_with_a_size_begins_later(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", retention_bytes="3000")
        for _ in range(10):
            await client.produce("orders", batch_of(b"x" * 800, b"y" * 200))
        await server.retain()
        first = server.core.store.min_offset("orders", 0)
        assert first in range(12, 18, 2), "two or three batches are left, and whole ones"
        found = await client.fetch("orders", 0)
        assert found["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await client.fetch("orders", int(first)))["error_code"] == 0


async def test_nobody_has_quotas_or_passwords(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        everybody = [{"entity_type": "client-id", "match_type": 2, "match": None}]
        told = await client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": everybody})
        assert (told["error_code"], told["entries"]) == (0, [])
        entity = [{"entity_type": "client-id", "entity_name": "c"}]
        rate = {"key": "producer_byte_rate", "value": 10.0, "remove": False}
        for changed, code in (({}, ErrorCode.INVALID_REQUEST), ({"remove": True}, 0)):
            wanted = {"entries": [{"entity": entity, "ops": [{**rate, **changed}]}]}
            told = await client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, wanted)
            (found,) = told["entries"]
            assert (found["error_code"], found["entity"]) == (code, entity)
        told = await client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
        assert (told["error_code"], told["results"]) == (0, [])
        named = {"users": [{"name": "ann"}]}
        told = await client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, named)
        assert told["results"][0]["error_code"] == ErrorCode.RESOURCE_NOT_FOUND


MIRRORED = {
    "compression.gzip.level": "1",
    "compression.lz4.level": "17",
    "compression.zstd.level": "-7",
    "remote.log.copy.disable": "true",
    "remote.log.delete.on.disable": "false",
}
"""What MirrorMaker 2 sends besides what older versions of Kafka know."""


async def test_settings_that_mirrormaker_sends_are_taken_kept_and_told(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic(
            "orders", 1, **{name.replace(".", "_"): value for name, value in MIRRORED.items()}
        )
        told = await client.ask(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            {
                "resources": [
                    {
                        "resource_type": 2,
                        "resource_name": "orders",
                        "configuration_keys": list(MIRRORED),
                    }
                ]
            },
        )
        assert {each["name"]: each["value"] for each in told["results"][0]["configs"]} == MIRRORED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("remote.log.copy.disable", "yes"),
        ("segment.bytes", "1000"),
        ("retention.ms", "1_000"),
        ("max.message.bytes", "2147483648"),
        ("retention.ms", ""),
        ("cleanup.policy", "compact,,"),
        ("leader.replication.throttled.replicas", "x"),
    ],
)
async def test_values_that_kafka_refuses_are_refused(tmp_path: Path, name: str, value: str) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        topic = {
            "name": "orders",
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": name, "value": value}],
        }
        told = await client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [topic]})
        assert told["topics"][0]["error_code"] == ErrorCode.INVALID_CONFIG
        assert name in told["topics"][0]["error_message"]


async def test_blanks_signs_and_capitals_are_taken_as_kafka_takes_them(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic(
            "orders",
            retention_bytes=" +5 ",
            preallocate="TRUE",
            cleanup_policy=" compact , delete ",
        )
        kept = server.broker.topics.require(SELF, "orders")
        assert kept.attributes["retention.bytes"] == "5"
        assert kept.attributes["preallocate"] == "true"
        assert kept.cleanup == ("compact", "delete")


async def test_a_resource_or_a_setting_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        topic = {"resource_type": 2, "resource_name": "orders"}
        change = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
        for resources in (
            [{**topic, "configs": [change]}, {**topic, "configs": []}],
            [{**topic, "configs": [change, change]}],
            [{**topic, "configs": [{**change, "value": None}]}],
        ):
            for key in (ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS):
                told = await client.ask(key, 1, {"resources": resources})
                codes = {each["error_code"] for each in told["responses"]}
                assert codes == {ErrorCode.INVALID_REQUEST}
        assert server.core.topics.retention_ms() == {}


BROKER, CLIENT_METRICS = 4, 16


async def change(
    client: RawClient, kind: int, name: str, *settings: tuple[str, str | None], trial: bool = False
) -> int:
    """INCREMENTAL_ALTER_CONFIGS: set these, or reset those with None; its code."""
    configs = [
        {"name": each, "config_operation": 1 if value is None else 0, "value": value}
        for each, value in settings
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    fields = {"resources": [resource], "validate_only": trial}
    told = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
    code: int = told["responses"][0]["error_code"]
    return code


async def told_of(client: RawClient, kind: int, name: str) -> dict[str, tuple[str, int]]:
    """Values and sources."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    told = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource]})
    assert told["results"][0]["error_code"] == 0, told
    return {
        each["name"]: (each["value"], each["config_source"])
        for each in told["results"][0]["configs"]
    }


async def test_settings_of_the_broker_change_what_it_does_and_stay(tmp_path: Path) -> None:
    large = batch_of(bytes(1_500_000))
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        assert (await client.produce("orders", large))["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
        assert (
            await change(
                client, BROKER, "0", ("message.max.bytes", "2000000"), ("num.partitions", "3")
            )
            == 0
        )
        assert (await client.produce("orders", large))["error_code"] == 0
        assert await change(client, BROKER, "", ("log.retention.ms", "-1")) == 0
        assert server.config.store.retention_ms == 36_500 * 86_400_000
        assert await change(client, BROKER, "", ("num.partitions", "5")) == 0
        assert server.config.kafka.topic_partitions == 3, "one's own goes before that of all"
        found = await told_of(client, BROKER, "0")
        assert found["message.max.bytes"] == ("2000000", 2)
        assert found["num.partitions"] == ("3", 2)
        assert found["group.min.session.timeout.ms"] == ("6000", 4)
        assert await told_of(client, BROKER, "") == {
            "log.retention.ms": ("-1", 3),
            "num.partitions": ("5", 3),
        }
        assert (await told_of(client, 2, "orders"))["max.message.bytes"] == ("2000000", 5)
    async with kafka(tmp_path) as server, raw(server) as client:
        assert server.config.kafka.topic_partitions == 3
        assert (await client.produce("orders", large))["error_code"] == 0
        assert await change(client, BROKER, "0", ("num.partitions", None)) == 0
        assert server.config.kafka.topic_partitions == 5
        assert await change(client, BROKER, "", ("num.partitions", None)) == 0
        assert server.config.kafka.topic_partitions == 1, "as it is configured"


async def test_a_change_of_a_broker_is_taken_or_refused_as_kafka_does(tmp_path: Path) -> None:
    taken = [
        ("log.cleaner.threads", "2"),
        ("log.cleanup.policy", "compact"),
        ("num.io.threads", "16"),
        ("leader.replication.throttled.rate", "100"),
        ("compression.type", "zstd"),
        ("unclean.leader.election.enable", "true"),
        ("log.segment.bytes", "1048576"),
    ]
    refused = [
        ("broker.id", "3"),
        ("no.such.setting", "1"),
        ("log.retention.ms", "x"),
        ("num.io.threads", "many"),
        ("num.io.threads", "0"),
        ("log.cleanup.policy", "burn"),
        ("ssl.keystore.location", "/k"),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("num.partitions", "0"),
        ("log.dirs", "/tmp"),
        ("max.connections.per.ip", "1"),
    ]
    async with kafka(tmp_path) as server, raw(server) as client:
        for name, value in taken:
            assert await change(client, BROKER, "0", (name, value), trial=True) == 0
            assert (await told_of(client, BROKER, "0"))[name][1] == 5
            assert await change(client, BROKER, "0", (name, value)) == 0
            assert (await told_of(client, BROKER, "0"))[name] == (value, 2)
        for name, value in refused:
            assert await change(client, BROKER, "0", (name, value)) == ErrorCode.INVALID_REQUEST
        assert await change(client, BROKER, "7", taken[0]) == ErrorCode.INVALID_REQUEST
        resource = {
            "resource_type": BROKER,
            "resource_name": "0",
            "configs": [{"name": "num.io.threads", "value": "9"}],
        }
        await client.ask(ApiKey.ALTER_CONFIGS, 1, {"resources": [resource]})
        found = await told_of(client, BROKER, "0")
        assert {name: value for name, (value, source) in found.items() if source == 2} == {
            "num.io.threads": "9"
        }


async def test_subscriptions_of_clients_metrics_are_set_told_listed_and_gone(
    tmp_path: Path,
) -> None:
    wanted = (
        ("interval.ms", "1000"),
        ("metrics", "org.apache.kafka.producer."),
        ("match", "client_id=a.*,client_software_name=x"),
    )
    bad = {
        ("interval.ms", "99"): ErrorCode.INVALID_REQUEST,
        ("interval.ms", "3600001"): ErrorCode.INVALID_REQUEST,
        ("interval.ms", "x"): ErrorCode.INVALID_CONFIG,
        ("nope", "x"): ErrorCode.INVALID_REQUEST,
        ("match", "foo=bar"): ErrorCode.INVALID_CONFIG,
        ("match", "client_id"): ErrorCode.INVALID_CONFIG,
        ("match", "client_id=("): ErrorCode.INVALID_CONFIG,
    }

    async def names(client: RawClient) -> list[str]:
        told = await client.ask(ApiKey.LIST_CONFIG_RESOURCES, 0, {})
        return [each["resource_name"] for each in told["config_resources"]]

    async with kafka(tmp_path) as server, raw(server) as client:
        assert await names(client) == []
        assert await change(client, CLIENT_METRICS, "sub", *wanted) == 0
        for each, code in bad.items():
            assert await change(client, CLIENT_METRICS, "sub", each) == code
        assert await change(client, CLIENT_METRICS, "", wanted[0]) == ErrorCode.INVALID_REQUEST
        assert await names(client) == ["sub"]
    async with kafka(tmp_path) as server, raw(server) as client:
        found = await told_of(client, CLIENT_METRICS, "sub")
        assert found == {name: (value, 7) for name, value in wanted}
        assert (await told_of(client, CLIENT_METRICS, "other"))["interval.ms"] == ("300000", 5)
        resets = [(name, None) for name, _ in wanted]
        assert await change(client, CLIENT_METRICS, "sub", *resets) == 0
        assert await names(client) == []


async def test_settings_of_all_brokers_are_those_of_each_in_a_cluster(tmp_path: Path) -> None:
    async with kafka_cluster(tmp_path) as cluster, raw(cluster[0]) as client:
        assert await change(client, BROKER, "", ("num.partitions", "7")) == 0
        assert await change(client, BROKER, "0", ("num.partitions", "9")) == 0
        assert await change(client, CLIENT_METRICS, "sub", ("metrics", "a.")) == 0
        found = [cluster[number].config.kafka.topic_partitions for number in range(3)]
        assert found == [9, 7, 7]
        async with raw(cluster[2]) as other:
            assert (await told_of(other, CLIENT_METRICS, "sub"))["metrics"] == ("a.", 7)
            assert (await told_of(other, BROKER, ""))["num.partitions"] == ("7", 3)
        assert await change(client, BROKER, "", ("num.partitions", None)) == 0
        found = [cluster[number].config.kafka.topic_partitions for number in range(3)]
        assert found == [9, 1, 1]

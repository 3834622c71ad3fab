"""Kafka's own command-line tools, from its release, against OneLog."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from onelog.core.access import SELF
from onelog.server import BrokerServer
from tests.e2e.java_toolchain import build
from tests.gateways.kafka.live import address, consumer, kafka, produce, take
from tests.gateways.kafka.test_kill import Killable

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(400)]

TOOLS = "org.apache.kafka.tools"


class Tools:
    """Runs a tool, as people do on the shell."""

    def __init__(self, server: BrokerServer, home: Path) -> None:
        self.at = address(server)
        self.home = home

    async def __call__(self, tool: str, *arguments: str, typed: str = "") -> str:
        """What the tool prints; it must end well."""
        where = [] if tool.endswith("ProducerPerformance") else ["--bootstrap-server", self.at]
        program = await asyncio.to_thread(build, "kafka", "broker", tool, self.home)
        command = program.command(*where, *arguments, heap_mib=256)
        ended = await asyncio.to_thread(
            subprocess.run,
            command,
            input=typed,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.home,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
        found: str = ended.stdout
        return found

    async def produce(self, topic: str, lines: str) -> None:
        await self(f"{TOOLS}.ConsoleProducer", "--topic", topic, typed=lines)

    async def consume(self, topic: str, group: str, count: int, *more: str) -> list[str]:
        found = await self(
            f"{TOOLS}.consumer.ConsoleConsumer",
            "--topic",
            topic,
            "--group",
            group,
            "--from-beginning",
            "--max-messages",
            str(count),
            "--timeout-ms",
            "60000",
            *more,
        )
        return [line for line in found.splitlines() if line]


async def test_topics_settings_and_records(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        topics, settings = f"{TOOLS}.TopicCommand", "kafka.admin.ConfigCommand"
        await tools(topics, "--create", "--topic", "orders", "--partitions", "2")
        await tools(topics, "--alter", "--topic", "orders", "--partitions", "3")
        found = await tools(topics, "--describe", "--topic", "orders")
        assert "PartitionCount: 3" in found
        entity = ["--entity-type", "topics", "--entity-name", "orders"]
        await tools(settings, "--alter", *entity, "--add-config", "retention.ms=60000")
        assert "retention.ms=60000" in await tools(settings, "--describe", *entity)
        await tools.produce("orders", "one\ntwo\nthree\n")
        found = await tools(f"{TOOLS}.GetOffsetShell", "--topic", "orders")
        assert sum(int(line.split(":")[2]) for line in found.split()) == 3
        (place,) = [line.split(":") for line in found.split() if line.endswith(":3")]
        record = {"topic": "orders", "partition": int(place[1]), "offset": 1}
        (tmp_path / "delete.json").write_text(json.dumps({"partitions": [record], "version": 1}))
        found = await tools(
            f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(tmp_path / "delete.json")
        )
        assert "low_watermark: 1" in found
        assert '"partition":"orders-0"' in await tools(
            f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", "orders"
        )
        await tools(topics, "--delete", "--topic", "orders")
        assert "orders" not in await tools(topics, "--list")


async def test_quotas_are_described_and_refused(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        settings = "kafka.admin.ConfigCommand"
        for kind in ("clients", "users"):
            await tools(settings, "--describe", "--entity-type", kind)
        quota = ["--entity-type", "clients", "--entity-name", "c", "--add-config"]
        with pytest.raises(AssertionError, match="clients have no quotas here"):
            await tools(settings, "--alter", *quota, "producer_byte_rate=10")
        features = await tools(f"{TOOLS}.FeatureCommand", "describe")
        assert "transaction.version" in features


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_groups_consume_are_described_and_moved(tmp_path: Path, protocol: str) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        await tools.produce("orders", "one\ntwo\nthree\n")
        by = ["--command-property", f"group.protocol={protocol}"]
        assert await tools.consume("orders", "readers", 3, *by) == ["one", "two", "three"]
        groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
        assert "readers" in await tools(groups, "--list")
        found = await tools(groups, "--describe", "--group", "readers")
        (line,) = [each.split() for each in found.splitlines() if " orders " in each]
        assert line[:6] == ["readers", "orders", "0", "3", "3", "0"]
        await tools(
            groups,
            "--group",
            "readers",
            "--topic",
            "orders",
            "--reset-offsets",
            "--to-offset",
            "1",
            "--execute",
        )
        assert await tools.consume("orders", "readers", 2, *by) == ["two", "three"]
        await tools(groups, "--delete", "--group", "readers")
        assert "readers" not in await tools(groups, "--list")


async def test_transactions_are_copied_exactly_once_and_listed(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        numbers = [str(each) for each in range(200)]
        await tools.produce("orders", "\n".join(numbers) + "\n")
        copier = await asyncio.to_thread(
            build, "kafka", "broker", f"{TOOLS}.TransactionalMessageCopier", tmp_path
        )
        command = copier.command(
            "--broker-list",
            tools.at,
            "--input-topic",
            "orders",
            "--output-topic",
            "copies",
            "--input-partition",
            "0",
            "--transactional-id",
            "copier",
            "--consumer-group",
            "copiers",
            "--max-messages",
            "200",
            "--transaction-size",
            "20",
            "--enable-random-aborts",
        )
        ended = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=120
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
        committed = ["--isolation-level", "read_committed"]
        assert await tools.consume("copies", "readers", 200, *committed) == numbers
        listed = await tools(f"{TOOLS}.TransactionsCommand", "list")
        assert "CompleteCommit" in listed
        (transaction,) = server.broker.transactions.in_place.transactions(SELF)
        assert transaction.epoch >= 10, "version 2: each transaction had an epoch of its own"


async def test_a_copy_is_exact_though_the_broker_is_killed_in_the_middle(tmp_path: Path) -> None:
    broker = await asyncio.to_thread(Killable, tmp_path)
    try:
        values: list[bytes | None] = [b"%d" % each for each in range(2_000)]
        await asyncio.to_thread(produce, broker.at, "orders", values, enable_idempotence=True)
        copier = await asyncio.to_thread(
            build, "kafka", "broker", f"{TOOLS}.TransactionalMessageCopier", tmp_path
        )
        command = copier.command(
            "--broker-list",
            broker.at,
            "--input-topic",
            "orders",
            "--output-topic",
            "copies",
            "--input-partition",
            "0",
            "--transactional-id",
            "copier",
            "--consumer-group",
            "copiers",
            "--max-messages",
            "2000",
            "--transaction-size",
            "20",
            "--enable-random-aborts",
        )
        child = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stderr is not None
        errors = asyncio.create_task(child.stderr.read())
        kills = [100, 500, 900, 1_300, 1_700]
        async with asyncio.timeout(300):
            async for line in child.stdout:
                told = json.loads(line)
                if kills and told.get("consumed", 0) >= kills[0]:
                    kills.pop(0)
                    await asyncio.to_thread(broker.kill)
        assert await child.wait() == 0, (await errors)[-4000:].decode()
        assert kills == []
        reader = consumer(broker.at, "checkers", isolation_level="read_committed")
        reader.assign([TopicPartition("copies", 0, 0)])
        found = await asyncio.to_thread(take, reader, len(values))
        assert [each.value() for each in found] == values
        assert await asyncio.to_thread(reader.consume, 1, 1.0) == []
        reader.close()
    finally:
        await asyncio.to_thread(broker.close)


async def test_the_performance_tool_sends_what_it_says(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        found = await tools(
            f"{TOOLS}.ProducerPerformance",
            "--topic",
            "orders",
            "--num-records",
            "20000",
            "--record-size",
            "100",
            "--throughput",
            "-1",
            "--producer-props",
            f"bootstrap.servers={tools.at}",
            "acks=all",
        )
        assert "20000 records sent" in found
        assert server.core.store.max_offset("orders", 0) == 20_000


async def test_verifiable_clients_and_the_performance_of_consumers(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        sent = await tools(
            f"{TOOLS}.VerifiableProducer", "--topic", "orders", "--max-messages", "100"
        )
        assert sent.count("producer_send_success") == 100
        read = await tools(
            f"{TOOLS}.VerifiableConsumer",
            "--topic",
            "orders",
            "--group-id",
            "readers",
            "--max-messages",
            "100",
        )
        assert (
            sum(
                each["count"]
                for each in map(json.loads, read.splitlines())
                if each["name"] == "records_consumed"
            )
            == 100
        )
        found = await tools(
            f"{TOOLS}.ConsumerPerformance", "--topic", "orders", "--num-records", "100"
        )
        assert found.splitlines()[-1].split(", ")[4] == "100"


async def test_a_partition_is_reassigned_to_where_it_is_and_the_quorum_is_one(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        await tools.produce("orders", "one\n")
        place = {"topic": "orders", "partition": 0, "replicas": [0]}
        wanted = tmp_path / "reassign.json"
        wanted.write_text(json.dumps({"version": 1, "partitions": [place]}))
        reassign = f"{TOOLS}.reassign.ReassignPartitionsCommand"
        await tools(reassign, "--reassignment-json-file", str(wanted), "--execute")
        found = await tools(reassign, "--reassignment-json-file", str(wanted), "--verify")
        assert "orders-0 is completed" in found
        found = await tools(f"{TOOLS}.MetadataQuorumCommand", "describe", "--status")
        assert "LeaderId:               0" in found


async def test_share_groups_consume_are_described_moved_and_deleted(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        settings, groups = "kafka.admin.ConfigCommand", f"{TOOLS}.consumer.group.ShareGroupCommand"
        entity = ["--entity-type", "groups", "--entity-name", "sharers"]
        earliest = "share.auto.offset.reset=earliest"
        await tools(settings, "--alter", *entity, "--add-config", earliest)
        assert earliest in await tools(settings, "--describe", *entity)
        await tools.produce("orders", "one\ntwo\nthree\n")

        async def share(count: int) -> list[str]:
            found = await tools(
                f"{TOOLS}.consumer.ConsoleShareConsumer",
                "--topic",
                "orders",
                "--group",
                "sharers",
                "--max-messages",
                str(count),
                "--timeout-ms",
                "60000",
            )
            return [line for line in found.splitlines() if line]

        assert await share(3) == ["one", "two", "three"]
        assert "sharers" in await tools(groups, "--list")
        found = await tools(groups, "--describe", "--group", "sharers")
        (line,) = [each.split() for each in found.splitlines() if " orders " in each]
        assert line[:5] == ["sharers", "orders", "0", "3", "0"]
        assert "Empty" in await tools(groups, "--describe", "--state", "--group", "sharers")
        to_start = ["--reset-offsets", "--to-earliest", "--execute"]
        await tools(groups, *to_start, "--group", "sharers", "--topic", "orders")
        assert await share(3) == ["one", "two", "three"]
        await tools(groups, "--delete-offsets", "--group", "sharers", "--topic", "orders")
        found = await tools(groups, "--describe", "--group", "sharers")
        assert " orders " not in found
        await tools(groups, "--delete", "--group", "sharers")
        assert "sharers" not in await tools(groups, "--list")


def all_json(text: str) -> list[dict[str, Any]]:
    """Objects, one behind the other."""
    found, at = [], text.find("{")
    while at >= 0:
        each, end = json.JSONDecoder().raw_decode(text, at)
        found.append(each)
        at = text.find("{", end)
    return found


async def test_positions_and_groups_are_read_by_kafkas_own_formatters(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        await tools.produce("orders", "one\ntwo\nthree\n")
        assert await tools.consume("orders", "readers", 3) == ["one", "two", "three"]

        async def internal(formatter: str) -> list[dict[str, Any]]:
            found = await tools(
                f"{TOOLS}.consumer.ConsoleConsumer",
                "--topic",
                "__consumer_offsets",
                "--from-beginning",
                "--timeout-ms",
                "5000",
                "--formatter",
                f"{TOOLS}.consumer.{formatter}",
            )
            return all_json(found)

        told = [
            each
            for each in await internal("OffsetsMessageFormatter")
            if each["key"]["data"]["group"] == "readers"
        ]
        (position,) = told
        assert position["key"] == {
            "type": 1,
            "data": {"group": "readers", "topic": "orders", "partition": 0},
        }
        assert position["value"]["data"]["offset"] == 3
        groups = [
            each
            for each in await internal("GroupMetadataMessageFormatter")
            if each["key"]["data"]["group"] == "readers"
        ]
        (group,) = groups
        assert group["value"]["data"]["protocolType"] == "consumer"
        assert group["value"]["data"]["members"] == []
        topics = f"{TOOLS}.TopicCommand"
        assert "__consumer_offsets" in await tools(topics, "--list")
        assert "__consumer_offsets" not in await tools(topics, "--list", "--exclude-internal")


async def test_users_are_made_by_kafka_configs_the_first_one_too(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        settings, users = "kafka.admin.ConfigCommand", ["--entity-type", "users"]
        given = ["--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=secret]"]
        await tools(settings, *given, *users, "--entity-name", "ann")
        assert server.broker.users.user(SELF, "ann").roles == ("admin",)
        with pytest.raises(AssertionError):
            await tools(f"{TOOLS}.TopicCommand", "--list")
        login = tmp_path / "ann.properties"
        login.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config="
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="ann" password="secret";\n'
        )
        by_ann = ["--command-config", str(login)]
        given = ["--alter", "--add-config", "SCRAM-SHA-512=[password=other]"]
        await tools(settings, *by_ann, *given, *users, "--entity-name", "bob")
        told = await tools(settings, *by_ann, "--describe", *users)
        assert "user-principal 'ann' are SCRAM-SHA-256=iterations=8192" in told
        assert "user-principal 'bob' are SCRAM-SHA-512=iterations=4096" in told
        gone = ["--alter", "--delete-config", "SCRAM-SHA-512"]
        await tools(settings, *by_ann, *gone, *users, "--entity-name", "bob")
        assert "bob" not in await tools(settings, *by_ann, "--describe", *users)


async def test_settings_of_brokers_and_of_clients_metrics_are_changed(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        tools = Tools(server, tmp_path)
        settings, metrics = "kafka.admin.ConfigCommand", f"{TOOLS}.ClientMetricsCommand"
        broker = ["--entity-type", "brokers", "--entity-name", "0"]
        given = "num.partitions=6,log.cleaner.threads=2"
        await tools(settings, "--alter", *broker, "--add-config", given)
        assert server.config.kafka.topic_partitions == 6
        told = await tools(settings, "--describe", *broker)
        assert "log.cleaner.threads=2 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG" in told
        every = ["--entity-type", "brokers", "--entity-default"]
        await tools(settings, "--alter", *every, "--add-config", "log.retention.ms=1000000")
        assert "log.retention.ms=1000000" in await tools(settings, "--describe", *every)
        await tools(settings, "--alter", *broker, "--delete-config", "num.partitions")
        assert server.config.kafka.topic_partitions == 1
        await tools(
            metrics,
            "--alter",
            "--name",
            "sub",
            "--metrics",
            "org.apache.kafka.producer.",
            "--interval",
            "30000",
            "--match",
            "client_id=a.*",
        )
        assert "sub" in await tools(metrics, "--list")
        told = await tools(metrics, "--describe", "--name", "sub")
        assert "interval.ms=30000" in told
        assert "client_id=a.*" in told
        await tools(metrics, "--delete", "--name", "sub")
        assert "sub" not in await tools(metrics, "--list")

"""MirrorMaker 2, from Kafka's release, between two brokers: topics, records, positions."""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onelog.core.access import SELF
from tests.e2e.java_toolchain import build
from tests.e2e.processes import log_tail, spawn, stop
from tests.gateways.kafka.live import SECONDS, address, consumer, kafka, produce, take

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(400)]

MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
SETTINGS = """\
clusters = A, B
A.bootstrap.servers = {source}
B.bootstrap.servers = {target}
A->B.enabled = true
B->A.enabled = false
topics = orders
groups = readers
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
refresh.topics.interval.seconds = 2
refresh.groups.interval.seconds = 2
sync.topic.configs.interval.seconds = 2
offset.lag.max = 0
dedicated.mode.enable.internal.rest = false
"""
KEPT = {"retention.ms": "7200000", "compression.zstd.level": "7", "max.message.bytes": "5000000"}


async def test_topics_records_settings_and_positions_are_mirrored(tmp_path: Path) -> None:
    values: list[bytes | None] = [b"%d" % each for each in range(200)]

    def fill(at: str) -> None:
        admin = AdminClient({"bootstrap.servers": at})
        topic = NewTopic("orders", 1, 1, config=KEPT)
        admin.create_topics([topic])["orders"].result(SECONDS)
        assert produce(at, "orders", values).errors == []
        reader = consumer(at, "readers")
        reader.commit(offsets=[TopicPartition("orders", 0, 150)], asynchronous=False)
        reader.close()

    def read(at: str) -> list[bytes | None]:
        reader = consumer(at, "checkers")
        reader.assign([TopicPartition("A.orders", 0, 0)])
        found = [each.value() for each in take(reader, len(values))]
        reader.close()
        return found

    async with (
        kafka(tmp_path / "a") as source,
        kafka(tmp_path / "b", kafka__session_min_ms=1_000) as target,
    ):
        await asyncio.to_thread(fill, address(source))
        mirror = tmp_path / "mm2.properties"
        mirror.write_text(SETTINGS.format(source=address(source), target=address(target)))
        program = await asyncio.to_thread(build, "kafka", "mirror", MAIN, tmp_path)
        log = tmp_path / "mirror.log"
        child = spawn(["env", "-C", str(tmp_path), *program.command(mirror)], log)
        try:
            async with asyncio.timeout(240):
                while (place := target.core.offsets.get("readers", "A.orders", 0)) is None:
                    assert child.poll() is None, log_tail(log)
                    await asyncio.sleep(0.5)
        except TimeoutError:
            raise AssertionError(log_tail(log)) from None
        finally:
            await asyncio.to_thread(stop, child)
        assert await asyncio.to_thread(read, address(target)) == values
        attributes = target.broker.topics.require(SELF, "A.orders").attributes
        assert {name: attributes.get(name) for name in KEPT} == KEPT
        assert 0 < place <= 150
        assert "__consumer_offsets" not in {each.name for each in target.core.topics.all()}

"""RocketMQ's Java client reads many messages in one record, in RocketMQ's form and in Kafka's."""

import asyncio
import base64
from pathlib import Path

import pytest

from onelog.message import NewMessage, SysFlag
from onelog.record.inner_batch import encode_batch
from tests.client.live_cluster import live_cluster
from tests.e2e.java_clients import Facts, run_scenario
from tests.record.forms.samples import kafka_batch, neutrals

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(400)]

COUNT = 1_000


async def read_by_java(folder: Path, client: str, batch: NewMessage) -> list[Facts]:
    """What the Java client finds in a topic that has just this record."""
    async with live_cluster(folder) as cluster:
        await cluster.create_topic("orders", queues=1)
        cluster.brokers[0].core.marked.mark("orders")
        cluster.brokers[0].core.store.append([batch])
        facts = await asyncio.to_thread(
            run_scenario,
            folder,
            client,
            "interop-read",
            cluster.addresses,
            topic="orders",
            messages=COUNT,
        )
    assert facts[-1]["in_time"]
    return sorted(
        (each for each in facts if each["event"] == "read"), key=lambda each: each["offset"]
    )


async def test_a_kafka_batch_of_a_thousand_messages(tmp_path: Path, client: str) -> None:
    sent = neutrals(COUNT)
    if client.startswith("4."):  # These stop at a message without a body, RocketMQ's own too.
        sent = [each._replace(body=each.body or b"none") for each in sent]
    read = await read_by_java(tmp_path, client, kafka_batch(sent))
    assert [each["offset"] for each in read] == list(range(COUNT))
    bodies = [each.get("body") and base64.b64decode(each["body"]) for each in read]
    assert bodies == [each.body for each in sent]
    assert [each.get("keys") for each in read] == [each.key and each.key.decode() for each in sent]
    assert [each["tags"] for each in read] == ["even", "odd"] * (COUNT // 2)
    assert [each["born_ms"] for each in read] == [each.time_ms for each in sent]
    assert len({each["id"] for each in read}) == COUNT
    assert read[0]["properties"]["__header.1.raw"] == "=AP8="


async def test_an_inner_batch_of_a_thousand_messages(tmp_path: Path) -> None:
    parts = [(0, b"body-%d" % number, b"TAGS\x01a\x02") for number in range(COUNT)]
    both = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
    batch = NewMessage("orders", 0, encode_batch(parts), sys_flag=both, inner_count=COUNT)
    read = await read_by_java(tmp_path, "5.5.0", batch)
    assert [base64.b64decode(each["body"]) for each in read] == [body for _, body, _ in parts]

"""Producers of other people, and what becomes of their batches."""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.gateways.kafka.live import address, consumer, kafka, produce, take


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_librdkafka_produces_it_consumes(tmp_path: Path, codec: str) -> None:
    async with kafka(tmp_path) as server:
        at = address(server)
        values: list[bytes | None] = [b"%d" % each * 20 for each in range(500)]
        sent = await asyncio.to_thread(produce, at, "orders", values, compression_codec=codec)
        assert sent.places == [(0, each) for each in range(500)]
        reader = consumer(at, "readers")
        reader.assign([TopicPartition("orders", 0, 0)])
        found = await asyncio.to_thread(take, reader, 500)
        assert [each.value() for each in found] == values
        assert [each.offset() for each in found] == list(range(500))
        assert found[7].key() == b"k7"
        await asyncio.to_thread(reader.close)

"""Bodies are compressed on their way out where that is asked for and worth it."""

import random

import pytest

from onelog.client.message import Message, ReceivedMessage
from onelog.client.options import FORMS, Compression
from onelog.client.producer.outgoing import packed
from onelog.client.producer.producer import AsyncProducer
from onelog.record.compression import decompress
from tests.client.live_cluster import LiveCluster
from tests.client.watching import stored

TEXT = b"the same words again and again, " * 1000
NOISE = random.Random(1).randbytes(10_000)


@pytest.mark.parametrize("name", FORMS)
def test_a_body_is_compressed_only_if_it_gets_smaller(name: Compression) -> None:
    form = FORMS[name]
    smaller, flags = packed(TEXT, form)
    assert (flags, len(smaller) < len(TEXT) / 10) == (form.sys_flag, True)
    assert decompress(smaller, form) == TEXT
    assert packed(NOISE, form) == (NOISE, 0)


@pytest.mark.parametrize("name", FORMS)
async def test_what_a_producer_compressed_a_consumer_reads(
    cluster: LiveCluster, name: Compression
) -> None:
    await cluster.create_topic("orders", 1)
    async with AsyncProducer("shop", nameserver=cluster.addresses, compression=name) as producer:
        for body in (TEXT, NOISE, b"small " * 600, TEXT * 10):
            await producer.send(Message("orders", body))
    found = [ReceivedMessage(raw, "broker-a") for raw in await stored(cluster, "orders", 1)]
    assert [message.body for message in found] == [TEXT, NOISE, b"small " * 600, TEXT * 10]
    flags = FORMS[name].sys_flag
    assert [message.raw.sys_flag for message in found] == [flags, 0, 0, flags]


async def test_the_size_from_which_bodies_are_compressed_can_be_set(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    async with AsyncProducer(
        "shop", nameserver=cluster.addresses, compress_over_bytes=100
    ) as producer:
        await producer.send(Message("orders", b"a" * 100))
        await producer.send(Message("orders", b"a" * 101))
    first, second = await stored(cluster, "orders", 1)
    assert (first.sys_flag & 1, second.sys_flag & 1) == (0, 1)

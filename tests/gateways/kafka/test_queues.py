"""Queues that AMQP's clients use, seen by Kafka's: topics with one partition."""

import asyncio
from pathlib import Path

from onelog.core.access import SELF
from onelog.record.forms import amqp
from onelog.record.forms.amqp_fields import encode_properties
from tests.gateways.kafka.live import address, consumer, kafka, produce, take
from tests.waiting import eventually


async def test_a_queue_is_read_and_written_by_kafkas_clients(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        broker = server.broker
        queue = broker.queues.declared.declare(SELF, "/", "orders", durable=True)
        broker.publish.routing.bind(SELF, "/", "amq.topic", "queue", "orders", "#")
        raw = encode_properties({"message_id": "4711", "headers": {"count": 3, "shop": "north"}})
        for body in (b"one", b"two"):
            broker.publish.routing.publish(
                SELF, "/", "amq.topic", "a.b", raw, body, lambda token, where, error: None
            )
        reader = consumer(address(server), "readers")
        reader.subscribe(["orders"])
        found = await asyncio.to_thread(take, reader, 2)
        assert [each.value() for each in found] == [b"one", b"two"]
        assert [each.key() for each in found] == [b"4711"] * 2
        headers = dict(found[0].headers() or [])
        assert headers["count"] == b"3"
        assert headers["amqp.routing-key"] == b"a.b"
        sent = await asyncio.to_thread(produce, address(server), "orders", [b"three"])
        assert sent.places == [(0, 2)]
        await eventually(lambda: queue.ready == 3, "the message in the queue")
        got: list[bytes] = []
        for _ in range(3):
            broker.queues.declared.get(
                SELF,
                "/",
                "orders",
                lambda token, delivery, queue, left, error: got.append(
                    bytes(amqp.read(delivery[2]).body) if delivery else b""
                ),
                no_ack=True,
            )
        await eventually(lambda: len(got) == 3, "all messages")
        assert got == [b"one", b"two", b"three"]
        # Who reads by offset does not care what is acknowledged.
        (last,) = await asyncio.to_thread(take, reader, 1)
        assert last.value() == b"three"
        await asyncio.to_thread(reader.close)

"""RocketMQ's own Python client: producers and consumers of every kind."""

from pathlib import Path

from tests.gateways.grpc.live import (
    address,
    grpc_broker,
    in_thread,
    make_topic,
    message,
    producer,
    receive,
    simple_consumer,
)


async def test_messages_come_with_all_that_they_were_sent_with(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        at, topic = address(server), make_topic(server, "plain")

        def work() -> None:
            with producer(at, topic) as sending, simple_consumer(at, "readers", topic) as reading:
                receipt = sending.send(message(topic, b"hello", tag="a", key="k1", colour="red"))
                assert receipt.message_id
                (got,) = receive(reading, 1)
                assert (got.body, got.tag, list(got.keys)) == (b"hello", "a", ["k1"])
                assert dict(got.properties) == {"colour": "red"}
                assert got.message_id == receipt.message_id
                assert got.delivery_attempt == 1
                reading.ack(got)
                assert receive(reading, 1, seconds=1.5) == []

        await in_thread(work)

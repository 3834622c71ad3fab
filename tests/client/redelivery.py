"""Messages that are delivered again and again, to a listener that should see each once."""

import onelog
from onelog.client.consumer.listening import RetryLater
from onelog.client.extras.idempotent import HandledKeys, idempotent
from onelog.client.message import Message, ReceivedMessage
from tests.waiting import eventually

COUNT = 20


async def handled_once(store: HandledKeys) -> None:
    """One message is retried; then the group is sent back to the beginning, twice."""
    deliveries: list[str] = []
    handled: list[bytes] = []
    async with onelog.embedded() as mq, mq.admin() as admin:
        await mq.create_topic("orders", 2)
        async with mq.push_consumer("billing", start="first") as consumer:

            @idempotent(store)
            async def bill(message: ReceivedMessage) -> None:
                if message.body == b"7" and message.delivery_attempt == 1:
                    raise RetryLater(delay_level=1)
                handled.append(message.body)

            @consumer.subscribe("orders")
            async def count(message: ReceivedMessage) -> None:
                deliveries.append(message.message_id)
                await bill(message)

            await consumer.start()
            async with mq.producer("shop") as producer:
                for number in range(COUNT):
                    await producer.send(Message("orders", b"%d" % number))
            await eventually(lambda: len(handled) == COUNT)
            assert len(deliveries) == COUNT + 1
            for _ in range(2):
                deliveries.clear()
                await admin.positions.reset("billing", "orders", 0)
                await eventually(lambda: len(deliveries) >= COUNT)
    assert sorted(handled, key=int) == [b"%d" % number for number in range(COUNT)]

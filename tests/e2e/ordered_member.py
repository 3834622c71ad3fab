"""A member of a group that consumes in order: a process of its own, so that it can be killed.

    python ordered_member.py NAMESERVER TOPIC MEMBER LOG

It appends a line to the log, which all members share, when it is done with a message: MEMBER QUEUE
OFFSET BODY. Some messages take longer than others, so that one which did not wait for its turn
would overtake those before it.
"""

import asyncio
import os
import sys

from onelog.client import AsyncPushConsumer, ReceivedMessage

WORK_SECONDS = (0.004, 0.002, 0.0)


async def consume(nameserver: str, topic: str, member: str, log: str) -> None:
    """Consume until somebody ends this process."""
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def listener(message: ReceivedMessage) -> None:
        await asyncio.sleep(WORK_SECONDS[message.offset % 3])
        place = f"{message.queue.queue_id} {message.offset}"
        os.write(lines, f"{member} {place} {message.body.decode()}\n".encode())

    consumer = AsyncPushConsumer(
        f"{topic}-group", nameserver=nameserver, start="first", orderly=True
    )
    async with consumer:
        consumer.subscribe(topic, listener=listener)
        await consumer.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))

"""The load of the Python SDK: a producer and a group that consumes in order, with their histories.

    python -m tests.e2e.faults.sdk_client NAMESERVERS TOPIC KEYS FOLDER [--pop]

For each key a message is sent again until it is acknowledged, and only then the next one. When
there is a file `enough` the producer ends and makes a file `sdk.sent`; the consumer ends with the
process.
"""

import asyncio
import sys
from pathlib import Path

from onelog.client import (
    AsyncProducer,
    AsyncPushConsumer,
    Message,
    Receipt,
    ReceivedMessage,
    SendStatus,
)
from onelog.errors import OnelogError
from tests.e2e.faults.history import History, message_id, now_ns

PAUSE_S = 0.02
TIMEOUT_S = 3.0


class Sender:
    """Sends the messages of some keys and writes what came of it."""

    def __init__(
        self, producer: AsyncProducer, topic: str, name: str, history: History, enough: Path
    ) -> None:
        self._producer = producer
        self._enough = enough
        self._topic = topic
        self._name = name
        self._history = history

    async def run(self, key: str) -> None:
        """Messages of a key until it is enough, each when the one before it is acknowledged."""
        number = 0
        while not self._is_enough():
            number += await self.send(key, number)
            await asyncio.sleep(PAUSE_S)

    def _is_enough(self) -> bool:
        return self._enough.exists()

    async def send(self, key: str, number: int) -> bool:
        """One attempt."""
        name = message_id(self._name, key, number)
        about = {"id": name, "key": key, "number": number, "begin": now_ns()}
        try:
            receipt = await self._producer.send(
                Message(self._topic, name.encode(), keys=[name]), order_key=key
            )
        except OnelogError as error:
            self._history.add("send", **about, end=now_ns(), result="failed", error=str(error))
            return False
        return self._note(about, receipt)

    def _note(self, about: dict[str, object], receipt: Receipt) -> bool:
        is_safe = receipt.status is SendStatus.OK
        self._history.add(
            "send",
            **about,
            end=now_ns(),
            result="ok" if is_safe else "failed",
            error="" if is_safe else receipt.status.name,
            queue=receipt.queue.queue_id,
            offset=receipt.offset,
        )
        return is_safe


def parsed(body: bytes) -> dict[str, object]:
    """What a message says of itself."""
    name = body.decode()
    _, key, number = name.rsplit("/", 2)
    return {"id": name, "key": key, "number": int(number)}


async def run(nameservers: str, topic: str, keys: int, folder: Path, pop: bool) -> None:
    """Send until it is enough, consume until this process ends."""
    kind = "sdk-pop" if pop else "sdk"
    own = {"kind": kind, "topic": topic}
    group = f"{topic}-group"
    sent = History(folder / f"{kind}-producer.jsonl", name=kind, role="producer", **own)
    seen = History(
        folder / f"{kind}-consumer.jsonl",
        name=kind,
        role="consumer",
        group=group,
        ordered=not pop,
        **own,
    )

    async def listener(message: ReceivedMessage) -> None:
        at = now_ns()
        # What comes again by way of the retry topic has its place there, though POP names its own.
        offset = -1 if message.raw.reconsume_times else message.offset
        seen.add(
            "receive",
            **parsed(message.body),
            begin=at,
            end=at,
            queue=message.queue.queue_id,
            offset=offset,
        )

    async with (
        AsyncProducer("senders", nameserver=nameservers, retries=0, timeout=TIMEOUT_S) as producer,
        AsyncPushConsumer(
            group,
            nameserver=nameservers,
            start="first",
            orderly=not pop,
            pop=pop,
            timeout=TIMEOUT_S,
        ) as consumer,
    ):
        consumer.subscribe(topic, listener=listener)
        await consumer.start()
        sender = Sender(producer, topic, kind, sent, folder / "enough")
        await asyncio.gather(*(sender.run(f"k{number}") for number in range(keys)))
        sent.close()
        (folder / f"{kind}.sent").touch()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(
        run(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), "--pop" in sys.argv)
    )

"""A client that pops, and makes its receipts as RocketMQ's Java client does."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from onelog.config import Value
from onelog.core.access import SELF
from onelog.core.catalog.topics import TopicConfig
from onelog.message import Message
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.gateways.remoting.live import Client, broker, client, messages

GROUP = "readers"
TOPIC = "orders"
BROKER = "broker-a"


@dataclass(frozen=True)
class Popped:
    """A message, and the receipt for it."""

    message: Message
    receipt: str
    real_topic: str

    @property
    def body(self) -> bytes:
        return bytes(self.message.body)


def _table(info: str) -> dict[str, str]:
    """`0 3 17;1 0 5` by its first two parts, as the Java client keeps it."""
    entries = (entry.split(" ") for entry in info.split(";"))
    return {f"{mark}@{queue}": value for mark, queue, value in entries}


def receipts(answer: Command) -> list[Popped]:
    """What the Java client makes of an answer (MQClientAPIImpl.processPopResponse)."""
    if answer.code != ResponseCode.SUCCESS:
        return []
    ext = answer.ext
    starts, offsets = _table(ext["startOffsetInfo"]), _table(ext["msgOffsetInfo"])
    seen: dict[str, int] = {}
    found = []
    for message in messages(answer):
        mark = "1" if message.topic.startswith("%RETRY%") else "0"
        key = f"{mark}@{message.queue_id}"
        number = seen[key] = seen.get(key, -1) + 1
        offset = offsets[key].split(",")[number]
        assert int(offset) == message.queue_offset
        receipt = (
            f"{starts[key]} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} {mark} "
            f"{BROKER} {message.queue_id} {offset}"
        )
        found.append(Popped(message, receipt, message.topic))
    return found


class Popper:
    """A member of a group."""

    def __init__(self, words: Client) -> None:
        self.words = words

    async def ask_pop(self, **changed: object) -> Command:
        """POP_MESSAGE."""
        ext: dict[str, object] = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": 0,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        return await self.words.ask(RequestCode.POP_MESSAGE, **{**ext, **changed})

    async def pop(self, **changed: object) -> list[Popped]:
        return receipts(await self.ask_pop(**changed))

    def _about(self, popped: Popped, changed: dict[str, object]) -> dict[str, object]:
        parts = popped.receipt.split(" ")
        ext: dict[str, object] = {
            "consumerGroup": GROUP,
            "topic": popped.real_topic,
            "queueId": parts[6],
            "extraInfo": popped.receipt,
            "offset": parts[7],
        }
        return {**ext, **changed}

    async def ack(self, popped: Popped, **changed: object) -> Command:
        """ACK_MESSAGE."""
        return await self.words.ask(RequestCode.ACK_MESSAGE, **self._about(popped, changed))

    async def change(self, popped: Popped, invisible_ms: int, **changed: object) -> Command:
        """CHANGE_MESSAGE_INVISIBLETIME."""
        ext = self._about(popped, {"invisibleTime": invisible_ms, **changed})
        return await self.words.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **ext)

    async def send(self, body: bytes, queue_id: int = 0, **properties: str) -> None:
        answer = await self.words.send(TOPIC, body, properties, e=queue_id)
        assert answer.code == ResponseCode.SUCCESS


@contextlib.asynccontextmanager
async def popping(
    folder: Path, queues: int = 1, **settings: Value
) -> AsyncIterator[tuple[BrokerServer, Popper]]:
    """A broker with a topic, and a member of a group."""
    async with broker(folder, broker__name=BROKER, **settings) as server, client(server) as words:
        if server.core.topics.get(TOPIC) is None:
            server.broker.topics.create(SELF, TopicConfig(TOPIC, queues, queues))
            server.core.groups.require(GROUP)
        yield server, Popper(words)

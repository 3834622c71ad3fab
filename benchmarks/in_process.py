"""What sends, batches, pulls and POPs cost a broker, in one process, slice by slice.

For each line of standard input that names one of them, a slice of it is done and its cost printed
as a line of JSON. Two such processes that are asked in turns meet the same moments of a machine.

The broker and its only client share one loop, so the CPU time of the process is nearly all the
broker's. The client sends requests that were made before the clock starts, many at a time over one
connection as Java's threads do, and looks at answers no more than it must.

Invariant: of OneLog it uses only what every version has: settings, a running broker, and the bytes
of the protocol. So `compare` can run this file against the sources of another commit.
"""

import asyncio
import itertools
import json
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from onelog.config_sources import SETTINGS as KNOWN
from onelog.config_sources import load
from onelog.server import running_broker

SETTINGS: dict[str, str | int] = {
    "broker.port": 0,
    "broker.vip_port": 0,
    "broker.nameservers": "",
    "store.segment_bytes": 256 << 20,
    "store.disk_clean_percent": 97,
    "store.disk_force_percent": 98,
    "store.disk_refuse_percent": 99,
}
BODY = bytes(128)
QUEUES = 8
ON_THE_WAY = 64
BATCH = 16
PULLED = 32
GROUP = "readers"
CREATE_TOPIC, CREATE_GROUP = 17, 200
SEND, SEND_BATCH, PULL, POP, ACK = 310, 320, 11, 200_050, 200_051
# A tenth of a second or two for each, on one core; the sends of a slice are enough for its POPs.
SLICE = {"send": 9_600, "batch": 38_400, "pull": 153_600, "pop": 4_800}

Cost = dict[str, float]
"""CPU time of one message, and messages per second."""


def frame(code: int, fields: dict[str, object], body: bytes = b"") -> bytes:
    """A request with a JSON header, as the Java client writes it."""
    texts = {name: str(value) for name, value in fields.items()}
    header = json.dumps(
        {
            "code": code,
            "extFields": texts,
            "flag": 0,
            "language": "JAVA",
            "opaque": 1,
            "serializeTypeCurrentRPC": "JSON",
            "version": 513,
        },
        separators=(",", ":"),
    ).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def send_fields(topic: str, queue_id: int, number: int, batch: bool) -> dict[str, object]:
    """The fields of a producer's request."""
    properties = f"UNIQ_KEY\x017F0000010A2B18B4AAC2{number:012X}\x02WAIT\x01true\x02"
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": properties,
        "j": 0,
        "k": "false",
        "m": "true" if batch else "false",
        "n": "broker-a",
    }


def packed(number: int) -> bytes:
    """A message inside a batch."""
    properties = f"UNIQ_KEY\x017F0000010A2B18B4AAC3{number:012X}\x02WAIT\x01true\x02".encode()
    rest = struct.pack(">iiii", 0, 0, 0, len(BODY)) + BODY
    rest += struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", 4 + len(rest)) + rest


class Client(asyncio.Protocol):
    """Writes many requests at once, and waits for as many answers."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answers: list[bytes] = []
        self._wanted = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        # uvloop's own kind is none of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Cut answers out of the bytes."""
        received, at = self._received, 0
        received += data
        while len(received) - at >= 4:
            end = at + 4 + int.from_bytes(received[at : at + 4], "big")
            if end > len(received):
                break
            self._answers.append(bytes(received[at:end]))
            at = end
        del received[:at]
        if len(self._answers) >= self._wanted > 0:
            self._wanted = 0
            self._done.set_result(None)

    async def ask(self, requests: bytes, count: int) -> list[bytes]:
        """The answers, all of them good ones."""
        self._done = asyncio.get_running_loop().create_future()
        self._answers, self._wanted = [], count
        self._transport.write(requests)
        await self._done
        for answer in self._answers:
            if b'"code":0' not in answer[8:300]:
                raise RuntimeError(f"the broker refused: {answer[8:300]!r}")
        return self._answers


def sends() -> Iterator[bytes]:
    """Requests with one message each."""
    return itertools.cycle(
        b"".join(
            frame(SEND, send_fields("sends", number % QUEUES, number, False), BODY)
            for number in range(first, first + ON_THE_WAY)
        )
        for first in range(0, 32 * ON_THE_WAY, ON_THE_WAY)
    )


def batches() -> Iterator[bytes]:
    """Sixteen requests with sixteen messages each."""
    windows = []
    for first in range(0, 32 * BATCH, BATCH):
        numbers = range(first * BATCH, first * BATCH + BATCH * BATCH)
        requests = [
            frame(SEND_BATCH, send_fields("batches", at % QUEUES, at, True), b"".join(each))
            for at, each in enumerate(zip(*[map(packed, numbers)] * BATCH, strict=True))
        ]
        windows.append(b"".join(requests))
    return itertools.cycle(windows)


def pulls() -> Iterator[bytes]:
    """A pull of each queue, again and again over what the first slice of batches left."""
    windows = []
    for offset in range(0, SLICE["batch"] // QUEUES - PULLED, PULLED):
        fields: dict[str, object] = {
            "consumerGroup": GROUP,
            "topic": "batches",
            "queueOffset": offset,
            "maxMsgNums": PULLED,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        windows.append(b"".join(frame(PULL, {**fields, "queueId": q}) for q in range(QUEUES)))
    return itertools.cycle(windows)


async def pop(client: Client, request: bytes) -> None:
    """POP, then one acknowledgement for each message."""
    (answer,) = await client.ask(request, 1)
    acks = [frame(ACK, each) for each in receipts(answer)]
    if len(acks) != PULLED:
        raise RuntimeError(f"a POP gave {len(acks)} messages instead of {PULLED}")
    await client.ask(b"".join(acks), len(acks))


POP_FIELDS: dict[str, object] = {
    "consumerGroup": GROUP,
    "topic": "sends",
    "queueId": -1,
    "maxMsgNums": PULLED,
    "invisibleTime": 600_000,
    "pollTime": 0,
    "bornTime": 0,
    "initMode": 0,
    "expType": "TAG",
    "exp": "*",
    "order": "false",
}


def receipts(answer: bytes) -> Iterable[dict[str, object]]:
    """The fields of the acknowledgements for what a POP gave."""
    header = json.loads(answer[8 : 8 + (int.from_bytes(answer[4:8], "big") & 0xFFFFFF)])
    ext = header["extFields"]
    starts = {
        part.rpartition(" ")[0]: part.rpartition(" ")[2]
        for part in ext["startOffsetInfo"].split(";")
    }
    for part in ext["msgOffsetInfo"].split(";"):
        place, _, offsets = part.rpartition(" ")
        mark, queue_id = place.split(" ")
        start = f"{starts[place]} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']}"
        for offset in offsets.split(","):
            yield {
                "consumerGroup": GROUP,
                "topic": "sends",
                "queueId": queue_id,
                "offset": offset,
                "extraInfo": f"{start} {mark} broker-a {queue_id} {offset}",
            }


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of work: its requests, how many messages are in each step, and the step itself."""

    requests: Iterator[bytes]
    messages: int
    step: Callable[[bytes], Awaitable[object]]

    async def slice(self, count: int) -> Cost:
        """The cost of so many messages."""
        requests = list(itertools.islice(self.requests, count // self.messages))
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        for request in requests:
            await self.step(request)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        done = len(requests) * self.messages
        return {"cpu_us": cpu_s / done * 1e6, "rate": done / wall_s}


async def main(folder: Path) -> None:
    """Measure what is asked for, against a broker with a new store in the folder."""
    settings = {**SETTINGS, "broker.store_path": str(folder), "broker.name": "broker-a"}
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    if "kafka.port" in KNOWN:
        settings["kafka.port"] = 0
    async with running_broker(load(overrides=settings)) as server:
        _, client = await loop.create_connection(Client, "127.0.0.1", server.config.broker.port)
        for topic in ("sends", "batches"):
            fields: dict[str, object] = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": QUEUES,
                "writeQueueNums": QUEUES,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": "false",
            }
            await client.ask(frame(CREATE_TOPIC, fields), 1)
        await client.ask(frame(CREATE_GROUP, {}, json.dumps({"groupName": GROUP}).encode()), 1)
        kinds = {
            "send": Kind(sends(), ON_THE_WAY, lambda window: client.ask(window, ON_THE_WAY)),
            "batch": Kind(batches(), BATCH * BATCH, lambda window: client.ask(window, BATCH)),
            "pull": Kind(pulls(), QUEUES * PULLED, lambda window: client.ask(window, QUEUES)),
            "pop": Kind(
                itertools.repeat(frame(POP, POP_FIELDS)), PULLED, lambda ask: pop(client, ask)
            ),
        }
        async for line in orders:
            name = line.decode().strip()
            print(json.dumps(await kinds[name].slice(SLICE[name])), flush=True)


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))

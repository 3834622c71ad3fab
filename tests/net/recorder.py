"""A protocol that keeps what it is told, and pairs of them."""

import asyncio
from typing import cast

from onelog.net.memory import MemoryTransport
from tests.waiting import eventually


class Recorder(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self, keep_open: bool = False) -> None:
        self.keep_open = keep_open
        self._received = bytearray()
        self.events: list[str] = []
        self.error: Exception | None = None
        self.fail: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        if self.fail is not None:
            raise self.fail
        self._received += data

    @property
    def size(self) -> int:
        return len(self._received)

    @property
    def received(self) -> bytes:
        return bytes(self._received)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append("lost")
        self.error = error


class Pair:
    """Two ends and what they saw."""

    def __init__(self, ours: Recorder, theirs: Recorder) -> None:
        self.ours, self.theirs = ours, theirs

    async def both_lost(self) -> None:
        await eventually(lambda: "lost" in self.ours.events and "lost" in self.theirs.events)


def in_memory(theirs: Recorder | None = None, ours: Recorder | None = None) -> Pair:
    loop = asyncio.get_running_loop()
    pair = Pair(ours or Recorder(), theirs or Recorder())
    ends = [MemoryTransport(loop, ("a", 1), ("b", 2)), MemoryTransport(loop, ("b", 2), ("a", 1))]
    MemoryTransport.join(*ends)
    ends[0].start(pair.ours)
    ends[1].start(pair.theirs)
    return pair

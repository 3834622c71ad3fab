"""RocketMQ's default replication: bytes of the log one way, how far they came the other way.

    slave  -> master    8 bytes   where its log ends: at first, after appends, now and then
    master -> slave    12 bytes   place in the log, size; then so many bytes of it (0: a heart-beat)

There is no greeting and no checksum. A slave's first report says where to begin; 0 says "I have
nothing". Invariant: any split of the bytes gives the same reports and the same bytes of the log.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from onelog.errors import WireError

Buffer = bytes | bytearray | memoryview

TRANSFER_BYTES_MAX = 4 << 20
"""RocketMQ's slave has a buffer of this size, header included; its master sends 32 KiB a time."""
_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")
HEADER_BYTES = _HEADER.size


class LogChunk(NamedTuple):
    """Bytes of the log, as many as have arrived; none is a heart-beat."""

    offset: int
    data: memoryview


def encode_report(offset: int) -> bytes:
    return _REPORT.pack(offset)


def encode_header(offset: int, size: int) -> bytes:
    """What goes before `size` bytes of the log."""
    return _HEADER.pack(offset, size)


class ReportReader:
    """The master's side: what a slave says."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: Buffer) -> int | None:
        """The last report that is whole now; None if there is none."""
        joined = self._rest + data
        whole = len(joined) - len(joined) % _REPORT.size
        self._rest = joined[whole:]
        if not whole:
            return None
        (offset,) = _REPORT.unpack_from(joined, whole - _REPORT.size)
        if offset < 0:
            raise WireError(f"a report of {offset}: no log ends there")
        return int(offset)


class TransferReader:
    """The slave's side: what a master sends. Bytes of the log are not gathered, but passed on."""

    def __init__(self) -> None:
        self._header = b""
        self._offset = 0
        self._missing = 0

    def feed(self, data: Buffer) -> Iterator[LogChunk]:
        """The bytes of the log in `data`, which is to stay as it is until all have been taken."""
        view = memoryview(data)
        at, end = 0, len(view)
        while at < end:
            if not self._missing:
                part = view[at : at + HEADER_BYTES - len(self._header)]
                self._header += part
                at += len(part)
                if len(self._header) < HEADER_BYTES:
                    return
                self._begin()
                if not self._missing:
                    yield LogChunk(self._offset, view[:0])
                continue
            piece = view[at : at + self._missing]
            offset = self._offset
            self._offset += len(piece)
            self._missing -= len(piece)
            at += len(piece)
            yield LogChunk(offset, piece)

    def _begin(self) -> None:
        offset, size = _HEADER.unpack(self._header)
        self._header = b""
        if offset < 0 or not 0 <= size <= TRANSFER_BYTES_MAX:
            raise WireError(f"{size} bytes at {offset} of the log: no master sends that")
        self._offset, self._missing = offset, size

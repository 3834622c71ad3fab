"""RocketMQ's replication with epochs: both sides compare their histories before bytes are sent.

    follower -> master
        16 bytes   state 1, int16 from the last file only, int16 not to be waited for, int64 its id
        12 bytes   state 2, int64 where its log ends
    master -> follower
        20 bytes   state 1, int32 size, int64 end of its log, int32 its epoch;
                   then 12 bytes for each epoch: int32 epoch, int64 where in the log it began
        36 bytes   state 2, int32 size, int64 place in the log, int32 epoch of these bytes,
                   int64 where that began, int64 confirmed up to; then the bytes

Invariant: any split of the bytes gives the same messages; what no peer sends is a `WireError`.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from onelog.errors import WireError

Buffer = bytes | bytearray | memoryview

EPOCHS_MAX = 1_000
TRANSFER_BYTES_MAX = 4 << 20
HANDSHAKE, TRANSFER = 1, 2
_STATE = struct.Struct(">i")
_GREETING = struct.Struct(">ihhq")
_REPORT = struct.Struct(">iq")
_HISTORY = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_HEADER = struct.Struct(">iiqiqq")


class Greeting(NamedTuple):
    """A follower's first word."""

    node_id: int
    from_last_file: bool = False
    is_learner: bool = False
    """It is never to be waited for."""


class Report(NamedTuple):
    """How far a follower is."""

    offset: int


class History(NamedTuple):
    """A master's answer to a greeting: its epochs, oldest first, and where its log ends."""

    end: int
    epoch: int
    epochs: tuple[tuple[int, int], ...]


class LogChunk(NamedTuple):
    """Bytes of the log, as many as have arrived; none is a heart-beat."""

    offset: int
    data: memoryview
    epoch: int
    epoch_start: int
    confirmed: int


def encode_greeting(greeting: Greeting) -> bytes:
    """A follower's first word."""
    return _GREETING.pack(HANDSHAKE, greeting.from_last_file, greeting.is_learner, greeting.node_id)


def encode_report(offset: int) -> bytes:
    return _REPORT.pack(TRANSFER, offset)


def encode_history(end: int, epoch: int, epochs: Sequence[tuple[int, int]]) -> bytes:
    """A master's answer to a greeting."""
    entries = b"".join(_EPOCH.pack(*entry) for entry in epochs)
    return _HISTORY.pack(HANDSHAKE, len(entries), end, epoch) + entries


def encode_header(offset: int, size: int, epoch: int, epoch_start: int, confirmed: int) -> bytes:
    """What goes before `size` bytes of the log."""
    return _HEADER.pack(TRANSFER, size, offset, epoch, epoch_start, confirmed)


def _state(data: Buffer) -> int:
    (state,) = _STATE.unpack_from(data)
    if state not in (HANDSHAKE, TRANSFER):
        raise WireError(f"state {state}: neither a greeting nor bytes of the log")
    return int(state)


class FollowerReader:
    """The master's side: what a follower says."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: Buffer) -> list[Greeting | Report]:
        rest = self._rest + data
        found: list[Greeting | Report] = []
        at = 0
        while len(rest) - at >= _REPORT.size:
            if _state(rest[at : at + 4]) == HANDSHAKE:
                if len(rest) - at < _GREETING.size:
                    break
                found.append(self._greeting(rest, at))
                at += _GREETING.size
                continue
            _, offset = _REPORT.unpack_from(rest, at)
            if offset < 0:
                raise WireError(f"a report of {offset}: no log ends there")
            found.append(Report(offset))
            at += _REPORT.size
        self._rest = rest[at:]
        return found

    def _greeting(self, rest: bytes, at: int) -> Greeting:
        _, last_file, learner, node_id = _GREETING.unpack_from(rest, at)
        if last_file not in (0, 1) or learner not in (0, 1) or node_id < 0:
            raise WireError(f"a greeting with flags {last_file}, {learner} and id {node_id}")
        return Greeting(node_id, bool(last_file), bool(learner))


class MasterReader:
    """The follower's side: what a master sends. Bytes of the log are passed on as they come."""

    def __init__(self) -> None:
        self._head = b""
        self._piece = LogChunk(0, memoryview(b""), 0, 0, 0)
        self._missing = 0

    def feed(self, data: Buffer) -> Iterator[History | LogChunk]:
        """What is in `data`, which is to stay as it is until all has been taken."""
        view = memoryview(data)
        at, end = 0, len(view)
        while at < end:
            if self._missing:
                part = view[at : at + self._missing]
                at += len(part)
                yield self._next(part)
                continue
            part = view[at : at + self._head_bytes() - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) < self._head_bytes():
                continue
            head, self._head = self._head, b""
            if _state(head) == HANDSHAKE:
                yield _history(head)
                continue
            self._begin(head)
            if not self._missing:
                yield self._piece

    def _head_bytes(self) -> int:
        """How long what is before the bytes of the log is, as far as can be told."""
        have = len(self._head)
        if have < 8:
            return 8
        if _state(self._head) == TRANSFER:
            return _HEADER.size
        size = int.from_bytes(self._head[4:8], "big", signed=True)
        if size % _EPOCH.size or not 0 <= size <= EPOCHS_MAX * _EPOCH.size:
            raise WireError(f"a history of {size} bytes: no master has that")
        return _HISTORY.size + size

    def _begin(self, head: bytes) -> None:
        _, size, offset, epoch, epoch_start, confirmed = _HEADER.unpack(head)
        if (
            not 0 <= size <= TRANSFER_BYTES_MAX
            or min(offset, epoch, epoch_start, confirmed) < 0
            or (size and epoch_start > offset)
        ):
            raise WireError(
                f"{size} bytes at {offset} of the log, of epoch {epoch} from {epoch_start} on, "
                f"confirmed up to {confirmed}: no master sends that"
            )
        self._piece = LogChunk(offset, memoryview(b""), epoch, epoch_start, confirmed)
        self._missing = size

    def _next(self, part: memoryview) -> LogChunk:
        before = self._piece
        self._missing -= len(part)
        self._piece = before._replace(offset=before.offset + len(part))
        return before._replace(data=part)


def _history(head: bytes) -> History:
    _, _, end, epoch = _HISTORY.unpack_from(head)
    entries = tuple(_EPOCH.iter_unpack(head[_HISTORY.size :]))
    ordered = all(one[0] < two[0] and one[1] <= two[1] for one, two in pairwise(entries))
    if end < 0 or not ordered or any(min(entry) < 0 for entry in entries):
        raise WireError(
            f"epochs {entries[:10]} of a log that ends at {end}: no history is like that"
        )
    if entries and entries[-1][1] > end:
        raise WireError(f"epoch {entries[-1][0]} begins behind the log's end {end}")
    return History(end, epoch, entries)

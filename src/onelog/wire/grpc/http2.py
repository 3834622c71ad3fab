"""gRPC's part of HTTP/2, the server's side: frames in, calls and their messages out, and back.

    frame    int24 length | int8 kind | int8 flags | int32 stream | length bytes
    message  int8 compressed | int32 length | length bytes         (in DATA frames, cut anywhere)

A client opens a stream per call: HEADERS, the messages in DATA, the last with END_STREAM. It is
answered by HEADERS, DATA, and HEADERS again, the trailers, with `grpc-status`. A call that fails
before anything was sent is answered by trailers only. Both sides send DATA only as far as the other
has opened its windows, of the stream and of the connection.

Nothing of a call is decided here: `Calls` hears what arrives. Between frames, and between messages
of a frame, it is asked whether others are to have their turn; then the rest stays unread until
`feed` is called again. Invariants: a stream is in `streams`
until both sides have ended it, or one has reset it; `ended` is told once for each stream, also
for one that was refused before `opened` could be told; a peer that breaks the rules gets a GOAWAY,
and `WireError` is raised.
"""

import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from onelog.errors import WireError
from onelog.wire.grpc.header_blocks import LIST_BYTES_MAX, HeaderDecoder, literal

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAMS_MAX = 1_000
"""Calls of one connection at a time."""
MESSAGE_BYTES_MAX = 16 << 20
UNREAD_BYTES_MAX = 64 << 20
"""Of all messages of a connection that have not come to their end."""
BLOCK_BYTES_MAX = 64 << 10
RESETS_MAX = 1_000
"""Calls that a peer may take back beyond those it lets come to their end."""
_FRAME_BYTES = 16_384
_STREAM_WINDOW = 1 << 20
_CONNECTION_WINDOW = 8 << 20
_WINDOW_MAX = (1 << 31) - 1
_WINDOW_START = 65_535

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_NO_ERROR, _PROTOCOL, _FLOW, _SIZE, _REFUSED, _CANCEL = 0, 1, 3, 6, 7, 8
_COMPRESSION, _CALM = 9, 11

_HEAD = struct.Struct(">HBBBI")
_LENGTH = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_PREFIX = struct.Struct(">BI")

Payload = bytes | memoryview

_STARTED = b"\x88\x0f\x10\x10application/grpc"
_FINE = literal(b"grpc-status", b"0")
_WHOLE = struct.Struct(f">HBBBI{len(_STARTED)}sHBBBI")
"""Of an answer that needs one frame, what comes before it; and after it:"""
_FINISH = struct.Struct(f">HBBBI{len(_FINE)}s")


def _frame(kind: int, flags: int, stream_id: int, payload: Payload = b"") -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


_GREETING = _frame(
    SETTINGS,
    0,
    0,
    _SETTING.pack(3, STREAMS_MAX)
    + _SETTING.pack(4, _STREAM_WINDOW)
    + _SETTING.pack(6, LIST_BYTES_MAX),
) + _frame(WINDOW, 0, 0, _LENGTH.pack(_CONNECTION_WINDOW - _WINDOW_START))


class Status:
    """gRPC's own statuses, of calls that did not get as far as an answer."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Stream:
    """One call."""

    __slots__ = (
        "_sent blocked connection headers is_done is_open number received token trailers unread "
        "window"
    ).split()

    def __init__(
        self, connection: "ServerConnection", number: int, headers: dict[bytes, bytes]
    ) -> None:
        self.connection = connection
        self.number = number
        self.headers = headers
        self.token: Any = None
        """For whoever hears of it."""
        self.unread: bytearray | None = None
        self.received = 0
        self.window = connection.window_start
        self.is_open = True
        """Whether the client may still send."""
        self.is_done = False
        """Whether everything was said that is to be said."""
        self.trailers: bytes | None = None
        self._sent = False
        self.blocked: deque[bytes | memoryview] | None = None
        """What waits for the peer to open its windows."""

    def send(self, message: bytes) -> None:
        if not self.is_done and self.trailers is None:
            start = b"" if self._sent else self._start()
            self.connection.write_data(self, start, _PREFIX.pack(0, len(message)) + message)

    def _start(self) -> bytes:
        self._sent = True
        return _frame(HEADERS, _END_HEADERS, self.number, _STARTED)

    def finish(self, status: int = 0, text: str = "") -> None:
        """End the call; nothing more is sent."""
        if self.is_done or self.trailers is not None:
            return
        block = _FINE
        if status:
            block = literal(b"grpc-status", b"%d" % status)
            if text:
                block += literal(b"grpc-message", _percent(text))
        if not self._sent:
            self._sent, block = True, _STARTED + block
        self.trailers = _frame(HEADERS, _END_HEADERS | _END_STREAM, self.number, block)
        if not self.blocked:
            self.connection.write_end(self)

    def answer(self, message: bytes) -> None:
        """Send the only message, and end the call."""
        self._say(_PREFIX.pack(0, len(message)) + message)

    def answer_all(self, answers: Sequence[bytes]) -> None:
        """Send messages, and end the call."""
        self._say(b"".join(_PREFIX.pack(0, len(each)) + each for each in answers))

    def _say(self, data: bytes) -> None:
        connection = self.connection
        size = len(data)
        if (
            self._sent
            or self.is_done
            or size > self.window
            or size > connection.window
            or size > connection.frame_bytes
        ):
            if not self.is_done and self.trailers is None:
                connection.write_data(self, b"" if self._sent else self._start(), data)
                self.finish()
            return
        connection.window -= size
        self._sent, number = True, self.number
        connection.write(
            _WHOLE.pack(
                0,
                len(_STARTED),
                HEADERS,
                _END_HEADERS,
                number,
                _STARTED,
                size >> 8,
                size & 0xFF,
                DATA,
                0,
                number,
            )
            + data
            + _FINISH.pack(0, len(_FINE), HEADERS, _END_HEADERS | _END_STREAM, number, _FINE)
        )
        connection.said(self)


class Calls(Protocol):
    """Who hears of calls."""

    def opened(self, stream: Stream) -> None:
        """A call begins; its headers are there."""

    def received(self, stream: Stream, message: bytes) -> None:
        """A message of it."""

    def half_closed(self, stream: Stream) -> None:
        """The client sends no more."""

    def ended(self, stream: Stream) -> None:
        """It is over: answered, taken back, or the connection is gone."""


class ServerConnection:
    """One connection."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        calls: Calls,
        turn_is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.write = write
        self._calls = calls
        self._turn_is_over = turn_is_over
        self._cutting: Stream | None = None
        """Whose last frame has more messages."""
        self._decoder = HeaderDecoder()
        self._unread = b""
        self._greeted = False
        self._block: tuple[int, int, bytearray] | None = None
        """Headers that go on in the next frame: stream, flags, and what came."""
        self._last = 0
        self._credit = 0
        """Bytes received that the peer was not given back yet."""
        self._held = 0
        """Bytes of messages whose end has not come."""
        self._resets = 0
        self.streams: dict[int, Stream] = {}
        self.window = _WINDOW_START
        self.window_start = _WINDOW_START
        self.frame_bytes = _FRAME_BYTES
        self._waiting: dict[int, Stream] = {}
        """Streams with something to send that the windows do not let through."""
        self._is_leaving = False

    @property
    def unread_bytes(self) -> int:
        """What waits for its end."""
        return len(self._unread) + self._held

    # -- reading -------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Bytes arrived, or others had their turn."""
        if self._unread:
            data, self._unread = self._unread + data, b""
        at, end = 0, len(data)
        if not self._greeted:
            if not data.startswith(PREFACE[:end]):
                raise WireError("it does not speak HTTP/2 (or not without asking HTTP/1 first)")
            if end < len(PREFACE):
                self._unread = data
                return
            self._greeted, at = True, len(PREFACE)
            self.write(_GREETING)
        if self._cutting is not None:
            stream, self._cutting = self._cutting, None
            self._cut(stream)
        while end - at >= 9 and self._cutting is None:
            high, low, kind, flags, number = _HEAD.unpack_from(data, at)
            size = high << 8 | low
            if size > _FRAME_BYTES:
                self._fail(_SIZE, f"a frame of {size} bytes")
            begin, at = at + 9, at + 9 + size
            if at > end:
                at = begin - 9
                break
            number &= _WINDOW_MAX
            if self._block is not None and kind != CONTINUATION:
                self._fail(_PROTOCOL, "headers that do not go on")
            if kind == DATA:
                self._data(number, flags, data[begin:at])
            elif kind == HEADERS:
                self._headers(number, flags, data[begin:at])
            else:
                self._other(kind, flags, number, data[begin:at])
            if self._turn_is_over():
                break
        if at < end:
            self._unread = data[at:]

    def _fail(self, code: int, why: str) -> None:
        self.write(_frame(GOAWAY, 0, 0, _LENGTH.pack(self._last) + _LENGTH.pack(code)))
        raise WireError(why)

    def _other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == WINDOW:
            self._window_update(number, payload)
        elif kind == PING:
            if len(payload) != 8:
                self._fail(_SIZE, "a ping of another size")
            if not flags & _ACK:
                self.write(_frame(PING, _ACK, 0, payload))
        elif kind == SETTINGS:
            self._settings(flags, payload)
        elif kind == RST_STREAM:
            self._reset_by_peer(number)
        elif kind == CONTINUATION:
            self._continuation(number, flags, payload)
        elif kind == PUSH:
            self._fail(_PROTOCOL, "a client that pushes")

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        if len(payload) % 6:
            self._fail(_SIZE, "settings of another size")
        before = self.window_start
        for name, value in _SETTING.iter_unpack(payload):
            if name == 4:
                if value > _WINDOW_MAX:
                    self._fail(_FLOW, "a window that is too large")
                self.window_start = value
            elif name == 5:
                if not _FRAME_BYTES <= value < 1 << 24:
                    self._fail(_PROTOCOL, f"frames of {value} bytes")
                self.frame_bytes = min(value, 1 << 20)
        self.write(_frame(SETTINGS, _ACK, 0))
        # Of a window that is told many times, the last one counts: there may be many streams.
        if change := self.window_start - before:
            for stream in self.streams.values():
                stream.window += change
            self._send_blocked()

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            self._fail(_SIZE, "a window update of another size")
        more = _LENGTH.unpack(payload)[0] & _WINDOW_MAX
        if not number:
            self.window += more
            if self.window > _WINDOW_MAX or not more:
                self._fail(_FLOW, "a window that is too large, or no larger")
            self._send_blocked()
        else:
            stream = self.streams.get(number)
            if stream is None:
                return
            stream.window += more
            if stream.window > _WINDOW_MAX or not more:
                self.reset(stream, _FLOW)
            elif stream.blocked:
                self._send_blocked_of(stream)

    def _headers(self, number: int, flags: int, payload: bytes) -> None:
        padding = 0
        begin = 0
        if flags & _PADDED:
            padding, begin = payload[0] if payload else 0, 1
        if flags & _PRIORITY:
            begin += 5
        if begin + padding > len(payload):
            self._fail(_PROTOCOL, "headers with more padding than there is")
        block = payload[begin : len(payload) - padding] if flags & _PADDED else payload[begin:]
        if flags & _END_HEADERS:
            self._open(number, flags, block)
        else:
            self._block = (number, flags, bytearray(block))

    def _continuation(self, number: int, flags: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != number:
            self._fail(_PROTOCOL, "headers that go on where none began")
            return
        _, first_flags, block = self._block
        block += payload
        if len(block) > BLOCK_BYTES_MAX:
            self._fail(_CALM, f"headers of more than {BLOCK_BYTES_MAX} bytes")
        if not payload and not flags & _END_HEADERS:
            self._fail(_CALM, "headers that go on with nothing")
        if flags & _END_HEADERS:
            self._block = None
            self._open(number, first_flags, bytes(block))

    def _open(self, number: int, flags: int, block: bytes) -> None:
        try:
            headers = self._decoder.decode(block)
        except WireError:
            self.write(_frame(GOAWAY, 0, 0, _LENGTH.pack(self._last) + _LENGTH.pack(_COMPRESSION)))
            raise
        stream = self.streams.get(number)
        if stream is not None:  # Trailers of the client, which say nothing.
            if not flags & _END_STREAM:
                self._fail(_PROTOCOL, "headers in the middle of a call")
            self._close_half(stream)
            return
        if number <= self._last:
            # Of a call that was answered before the client had ended it.
            if number % 2 and flags & _END_STREAM:
                return
            self._fail(_PROTOCOL, f"a call with the number {number} after {self._last}")
        if not number % 2:
            self._fail(_PROTOCOL, f"a call with the number {number}")
        self._last = number
        if len(self.streams) >= STREAMS_MAX or self._is_leaving:
            self.write(_frame(RST_STREAM, 0, number, _LENGTH.pack(_REFUSED)))
            return
        stream = self.streams[number] = Stream(self, number, headers or {})
        if headers is None:
            stream.finish(Status.RESOURCE_EXHAUSTED, f"metadata over {LIST_BYTES_MAX} bytes")
        else:
            self._calls.opened(stream)
        if flags & _END_STREAM:
            self._close_half(stream)

    def _data(self, number: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._credit += size
        if self._credit >= _CONNECTION_WINDOW >> 1:
            self.write(_frame(WINDOW, 0, 0, _LENGTH.pack(self._credit)))
            self._credit = 0
        stream = self.streams.get(number)
        if stream is None:
            if number > self._last or not number % 2:
                self._fail(_PROTOCOL, "data of a call that was not opened")
            return
        if not stream.is_open:
            self.reset(stream, _PROTOCOL)
            return
        if flags & _PADDED:
            if not payload or payload[0] >= size:
                self._fail(_PROTOCOL, "data with more padding than there is")
            payload = payload[1 : size - payload[0]]
        stream.received += size
        size = len(payload)
        if stream.received >= _STREAM_WINDOW >> 1 and not flags & _END_STREAM:
            self.write(_frame(WINDOW, 0, number, _LENGTH.pack(stream.received)))
            stream.received = 0
        is_last = flags & _END_STREAM
        if is_last:
            stream.is_open = False
        if stream.is_done or stream.trailers is not None:
            pass  # It was answered: what else it says is not listened to.
        elif not stream.unread and size >= 5 and _PREFIX.unpack_from(payload) == (0, size - 5):
            self._calls.received(stream, payload[5:])
            if is_last and not stream.is_done:
                self._calls.half_closed(stream)
                return
        else:
            # It is not just one message.
            if stream.unread is None:
                stream.unread = bytearray()
            stream.unread += payload
            self._held += size
            self._cut(stream)
            return
        if is_last:
            self._close_half(stream)

    def _cut(self, stream: Stream) -> None:
        """Hand out the messages that are whole."""
        unread = stream.unread
        while unread and len(unread) >= 5 and not stream.is_done and stream.trailers is None:
            compressed, size = _PREFIX.unpack_from(unread)
            if size > MESSAGE_BYTES_MAX:
                stream.finish(
                    Status.RESOURCE_EXHAUSTED, f"a message of {size} bytes; {MESSAGE_BYTES_MAX} fit"
                )
                break
            if len(unread) < size + 5:
                break
            message = bytes(unread[5 : size + 5])
            del unread[: size + 5]
            self._held -= size + 5
            if compressed:
                self._compressed(stream, message)
            else:
                self._calls.received(stream, message)
            if len(unread) >= 5 and self._turn_is_over():
                self._cutting = stream
                return
        if stream.is_done or stream.trailers is not None:
            self._let_go(stream)
        if self._held > UNREAD_BYTES_MAX:
            self._fail(_CALM, f"{self._held} bytes of messages that do not end")
        if not stream.is_open and stream.number in self.streams:
            self._close_half(stream)

    def _let_go(self, stream: Stream) -> None:
        if stream.unread:
            self._held -= len(stream.unread)
            stream.unread = None

    def _compressed(self, stream: Stream, message: bytes) -> None:
        kind = stream.headers.get(b"grpc-encoding", b"")
        if kind not in (b"gzip", b"deflate"):
            stream.finish(Status.UNIMPLEMENTED, "only gzip and deflate are known here")
            return
        unpacker = zlib.decompressobj(31 if kind == b"gzip" else 15)
        try:
            plain = unpacker.decompress(message, MESSAGE_BYTES_MAX)
        except zlib.error as error:
            stream.finish(Status.INTERNAL, f"a compressed message that is none: {error}")
            return
        if not unpacker.eof:
            stream.finish(Status.RESOURCE_EXHAUSTED, "a compressed message that is too large")
        else:
            self._calls.received(stream, plain)

    def _close_half(self, stream: Stream) -> None:
        stream.is_open = False
        if stream.is_done:
            self._forget(stream)
        elif stream.unread:
            stream.finish(Status.INTERNAL, "the call ends in the middle of a message")
        else:
            self._calls.half_closed(stream)

    def _reset_by_peer(self, number: int) -> None:
        if not number or number > self._last:
            self._fail(_PROTOCOL, "a reset of a call that was not opened")
        stream = self.streams.get(number)
        if stream is not None:
            self._forget(stream)
            self._resets += 1
            if self._resets > RESETS_MAX:
                self._fail(_CALM, f"more than {RESETS_MAX} calls taken back")

    # -- writing -------------------------------------------------------------------------------

    def write_data(self, stream: Stream, start: bytes, data: bytes) -> None:
        """Send data, or as much of it as the windows let through."""
        if start:
            self.write(start)
        if stream.blocked:
            stream.blocked.append(data)
        else:
            self._write_some(stream, data)

    def _write_some(self, stream: Stream, data: bytes | memoryview) -> bool:
        """True if all of it was sent; the rest waits at the head of what is blocked."""
        at, end = 0, len(data)
        while at < end:
            size = min(end - at, self.window, stream.window, self.frame_bytes)
            if size <= 0:
                if stream.blocked is None:
                    stream.blocked = deque()
                # A view: the window may be opened by a byte at a time.
                stream.blocked.appendleft(memoryview(data)[at:])
                self._waiting[stream.number] = stream
                return False
            self.window -= size
            stream.window -= size
            self.write(_frame(DATA, 0, stream.number, data[at : at + size]))
            at += size
        return True

    def _send_blocked(self) -> None:
        for stream in list(self._waiting.values()):
            if self.window <= 0:
                break
            self._send_blocked_of(stream)

    def _send_blocked_of(self, stream: Stream) -> None:
        while stream.blocked:
            if not self._write_some(stream, stream.blocked.popleft()):
                return
        del self._waiting[stream.number]
        if stream.trailers is not None:
            self.write_end(stream)

    def write_end(self, stream: Stream) -> None:
        """Everything else was sent: send the trailers."""
        assert stream.trailers is not None
        self.write(stream.trailers)
        self.said(stream)

    def said(self, stream: Stream) -> None:
        """The answer is complete."""
        stream.is_done = True
        if self._resets:
            self._resets -= 1
        if stream.unread:
            self._let_go(stream)
        if stream.is_open:
            # What the client would still send nobody needs; it may end the call in peace.
            self._calls.ended(stream)
            self.write(_frame(RST_STREAM, 0, stream.number, _LENGTH.pack(_NO_ERROR)))
            self.streams.pop(stream.number, None)
        else:
            self._forget(stream)

    def reset(self, stream: Stream, code: int = _CANCEL) -> None:
        """End a call without an answer."""
        self.write(_frame(RST_STREAM, 0, stream.number, _LENGTH.pack(code)))
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        if self.streams.pop(stream.number, None) is not None:
            stream.is_done, stream.is_open = True, False
            self._waiting.pop(stream.number, None)
            self._let_go(stream)
            stream.blocked = None
            self._calls.ended(stream)

    def leave(self) -> None:
        """No more calls are taken."""
        if not self._is_leaving:
            self._is_leaving = True
            self.write(_frame(GOAWAY, 0, 0, _LENGTH.pack(self._last) + _LENGTH.pack(_NO_ERROR)))

    def lost(self) -> None:
        """Nothing more comes, and nobody is told of anything."""
        for stream in list(self.streams.values()):
            self._forget(stream)
        del self._calls, self._turn_is_over  # They know us: nothing else would free all soon.


def _percent(text: str) -> bytes:
    return b"".join(
        b"%%%02X" % each if each < 0x20 or each > 0x7E or each == 0x25 else bytes((each,))
        for each in text.encode()[:1024]
    )

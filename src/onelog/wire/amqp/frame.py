"""Frames: how methods and contents follow one another on a connection. All big-endian.

    greeting  "AMQP" 0 0 9 1, once, from the client
    frame     u8 kind | u16 channel | u32 size | size bytes | 0xCE
    1 method  u16 class | u16 method | arguments
    2 header  u16 class | u16 0 | u64 size of the body | properties, flags first
    3 body    a part of the body
    8 beat    nothing, on channel 0

A method with content is followed on its channel by a header and as many bodies as its size asks
for; frames of other channels may come in between. What is read are events, a tuple each: channel,
class and method in one number, arguments, and for contents their properties as they came, and
their body (None if it was longer than allowed, and was read over).

A publish whose frames lie side by side, which nearly all do, is read without looking at frames one
by one; what a publisher says of each of its messages, exchange and key, is looked up by its bytes.
One that is as long as the last, and differs in its body only, is not looked at but for that, and
can be had with all that follow and are like it (`alike`). Of a publisher whose messages take turns
among several keys, and differ in nothing else, what comes before the body is looked up as a whole;
those for the default exchange, where each key is a queue, can be had by key (`scattered`).

Invariants: however the bytes of a connection are cut into pieces, the events are the same; bytes
that are no frames raise `FaultError`, which is a `WireError`.
"""

from collections.abc import Callable, Iterator
from struct import Struct

from onelog.errors import WireError
from onelog.message import Buffer
from onelog.record.forms.amqp_fields import short_string
from onelog.wire.amqp.codes import FaultError, ReplyCode
from onelog.wire.amqp.methods import NAMES, NUMBERS, Arguments, decode

Event = tuple[int, int, Arguments, bytes | None, bytes | None]
"""Channel, method, arguments, properties, body."""

GREETING = b"AMQP\0\0\x09\x01"
HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
FRAME_OVERHEAD = 8
METHOD, HEADER, BODY, BEAT = 1, 2, 3, 8
BASIC = 60

_END = 0xCE
_FRAME = Struct(">BHI")
_LENGTH = Struct(">I")
_ACK_FRAME = Struct(">BHIIQ?B")
_CONTENT = Struct(">BHIHxxQ")
_TOLERANCE = 8
"""Bytes that a frame may have too many, as with RabbitMQ."""
_CACHED_MAX = 1_000
_PREFIX_BYTES_MAX = 1_024
_PUBLISH = NUMBERS["basic.publish"]
_ACK = NUMBERS["basic.ack"]
_CONTENTS = frozenset(
    NUMBERS[name] for name in ("basic.publish", "basic.return", "basic.deliver", "basic.get-ok")
)
Alike = tuple[int, int, Arguments, bytes]
"""An event without its body."""
_HEARTBEAT_EVENT: Event = (0, 0, (), None, None)
"""What a heart-beat is read as: method 0 of channel 0."""


PARTS_AT_ONCE = 256
"""Of contents, that are read before something is handed out."""


class _Content:
    """A content of which something is still to come."""

    __slots__ = ("arguments", "left", "method", "pieces", "properties", "size")

    def __init__(self, method: int, arguments: Arguments) -> None:
        self.method = method
        self.arguments = arguments
        self.properties: bytes | None = None
        """None until the header is there."""
        self.size = self.left = 0
        self.pieces: list[bytes] | None = []
        """None if the body is too long to be kept."""


class EventReader:
    """Takes bytes as they come, hands out events."""

    __slots__ = (
        "_alike _at _body_bytes _body_bytes_max _contents _contents_bytes _data _filled _pieces "
        "_prefix _prefixes _publishes _size_max _tail_bytes _wanted"
    ).split()

    def __init__(self, frame_max: int, body_bytes_max: int) -> None:
        self._size_max = 0
        self.limit(frame_max)
        self._body_bytes_max = body_bytes_max
        self._data = b""
        self._at = 0
        """What was handed out of it already."""
        self._pieces: list[bytes] = []
        """What came after the data."""
        self._filled = 0
        """How many bytes there are that have not been read."""
        self._wanted = FRAME_OVERHEAD
        """How many of them are needed to get any further."""
        self._contents: dict[int, _Content] = {}
        self._contents_bytes = 0
        self._publishes: dict[bytes, Arguments] = {}
        self._prefix = GREETING
        """What the last publish had before its body: many are alike in all but that."""
        self._alike: Alike = (0, 0, (), b"")
        self._body_bytes = 1 << 63
        self._tail_bytes = 0
        """How many bytes of that follow the arguments of the method."""
        self._prefixes: dict[bytes, Alike] = {}
        """What others had there that differ from it in exchange or key."""

    def limit(self, frame_max: int) -> None:
        """What was agreed on; 0 for no limit, which is our own, then."""
        self._size_max = (frame_max or 1 << 20) - FRAME_OVERHEAD + _TOLERANCE

    @property
    def unread_bytes(self) -> int:
        """How many received bytes are part of nothing whole yet."""
        return self._filled + self._contents_bytes

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        if data:
            self._pieces.append(data)
            self._filled += len(data)

    def greeting(self) -> bytes | None:
        """The first eight bytes, once they are there."""
        if self._filled < len(GREETING):
            return None
        data = self._joined()
        self._at += len(GREETING)
        self._filled -= len(GREETING)
        return data[self._at - len(GREETING) : self._at]

    def _joined(self) -> bytes:
        """All bytes in one, up to where there is something unread."""
        if self._pieces:
            rest = self._data[self._at :]
            if rest or len(self._pieces) > 1:
                self._data = b"".join((rest, *self._pieces))
            else:
                self._data = self._pieces[0]
            self._pieces.clear()
            self._at = 0
        return self._data

    def events(self) -> Iterator[Event]:
        """What is whole by now. May be left at any point and called again.

        A content may come in very many parts: heart-beats among them are where to leave it.
        """
        parts = 0
        while self._filled >= self._wanted:
            data = self._joined() if self._pieces else self._data
            at = self._at
            if data.startswith(self._prefix, at) and not self._contents:
                begin = at + len(self._prefix)
                end = begin + self._body_bytes
                if end < len(data) and data[end] == _END:
                    self._at = end + 1
                    self._filled -= end + 1 - at
                    self._wanted = FRAME_OVERHEAD
                    yield (*self._alike, data[begin:end])
                    continue
            kind, channel, length = _FRAME.unpack_from(data, at)
            if self._prefixes and kind == METHOD and length < _PREFIX_BYTES_MAX:
                begin = at + length + self._tail_bytes
                prefix = data[at:begin]
                known = self._prefixes.get(prefix)
                if (
                    known is not None
                    and (end := begin + self._body_bytes) < len(data)
                    and data[end] == _END
                    and not self._contents
                ):
                    self._prefix, self._alike = prefix, known
                    self._at = end + 1
                    self._filled -= end + 1 - at
                    self._wanted = FRAME_OVERHEAD
                    yield (*self._alike, data[begin:end])
                    continue
            if length > self._size_max:
                raise FaultError(
                    ReplyCode.FRAME_ERROR,
                    f"a frame of {length} bytes; {self._size_max} is the most",
                )
            end = at + 7 + length
            if end >= len(data):
                self._wanted = length + FRAME_OVERHEAD
                return
            if data[end] != _END:
                raise FaultError(
                    ReplyCode.FRAME_ERROR, f"a frame of kind {kind} ends in {data[end]:#04x}"
                )
            event, self._at = self._frame(data, at, kind, channel, end)
            self._filled -= self._at - at
            self._wanted = FRAME_OVERHEAD
            if event is None:
                parts += 1
                if parts % PARTS_AT_ONCE:
                    continue
                event = _HEARTBEAT_EVENT
            yield event
        if not self._filled:  # Who is silent now need not keep what was read last.
            self._data, self._at = b"", 0

    def alike(self, event: Event) -> list[bytes]:
        """The bodies of what follows a publish, is whole, and differs from it in nothing else.

        What is handed out here is no event any more.
        """
        prefix, data, begin = self._prefix, self._data, self._at
        if event[3] is not self._alike[3] or self._contents or not data.startswith(prefix, begin):
            return []
        lead, step = len(prefix), len(prefix) + self._body_bytes + 1
        bodies: list[bytes] = []
        for at in range(begin, begin + (len(data) - begin) // step * step, step):
            end = at + step - 1
            if data[end] != _END or not data.startswith(prefix, at):
                break
            bodies.append(data[at + lead : end])
        self._at += step * len(bodies)
        self._filled -= step * len(bodies)
        return bodies

    def scattered(self, event: Event) -> list[tuple[str, list[bytes]]]:
        """The bodies of what follows a publish, is whole, and differs from it in body and key, by
        key: on its channel, to the default exchange, with nothing to be told of to the publisher.

        What is handed out here is no event any more.
        """
        prefixes, data, at = self._prefixes, self._data, self._at
        if not prefixes or event[3] is not self._alike[3] or self._contents:
            return []
        tail_bytes, body_bytes, size = self._tail_bytes, self._body_bytes, len(data)
        found: dict[bytes, list[bytes]] = {}
        while at + 7 < size:
            begin = at + _LENGTH.unpack_from(data, at + 3)[0] + tail_bytes
            prefix = data[at:begin]
            bodies = found.get(prefix)
            if bodies is None:
                known = prefixes.get(prefix)
                if known is None or known[0] != event[0] or known[2][0] or any(known[2][2:]):
                    break
                bodies = found[prefix] = []
            end = begin + body_bytes
            if end >= size or data[end] != _END:
                break
            bodies.append(data[begin:end])
            at = end + 1
        self._filled -= at - self._at
        self._at = at
        return [(prefixes[prefix][2][1], bodies) for prefix, bodies in found.items() if bodies]

    def _frame(
        self, data: bytes, at: int, kind: int, channel: int, end: int
    ) -> tuple[Event | None, int]:
        """What a whole frame, or several, are, and where they end."""
        contents = self._contents
        if kind == METHOD:
            if end - at < 11:
                raise FaultError(ReplyCode.FRAME_ERROR, "a method frame without a method", channel)
            if contents and channel in contents:
                name = NAMES[contents[channel].method]
                raise FaultError(
                    ReplyCode.UNEXPECTED_FRAME,
                    f"expected content of {name}, got a method frame instead",
                    channel,
                )
            method = int.from_bytes(data[at + 7 : at + 11], "big")
            payload = data[at + 11 : end]
            if method == _PUBLISH:
                arguments = self._publishes.get(payload)
                if arguments is None:
                    arguments = self._publish(payload)
                whole = self._whole(data, channel, arguments, at, end + 1)
                if whole is not None:
                    return whole
            else:
                arguments = decode(method, payload)
                if method not in _CONTENTS:
                    return (channel, method, arguments, None, None), end + 1
            contents[channel] = _Content(method, arguments)
            return None, end + 1
        if kind == BEAT:
            if channel:
                raise FaultError(ReplyCode.UNEXPECTED_FRAME, "a heart-beat on a channel", channel)
            return _HEARTBEAT_EVENT, end + 1
        if kind == HEADER:
            return self._header(channel, data[at + 7 : end]), end + 1
        if kind == BODY:
            return self._body(channel, data[at + 7 : end]), end + 1
        raise FaultError(ReplyCode.FRAME_ERROR, f"a frame of the unknown kind {kind}")

    def _publish(self, payload: bytes) -> Arguments:
        arguments = decode(_PUBLISH, payload)
        if len(self._publishes) >= _CACHED_MAX:
            self._publishes.clear()
        self._publishes[payload] = arguments
        return arguments

    def _whole(
        self, data: bytes, channel: int, arguments: Arguments, first: int, at: int
    ) -> tuple[Event, int] | None:
        """A publish that begins at `first`, whose header and only body are there and follow at
        `at`; None if that is not so."""
        size = len(data)
        if size - at < 22:
            return None
        kind, other, length, number, body_bytes = _CONTENT.unpack_from(data, at)
        end = at + 7 + length
        if (
            kind != HEADER
            or other != channel
            or number != BASIC
            or end >= size
            or data[end] != _END
            or length < 14
            or body_bytes > self._body_bytes_max
        ):
            return None
        properties = data[at + 19 : end]
        at = end + 1
        if not body_bytes:
            return (channel, _PUBLISH, arguments, properties, b""), at
        begin = at + 7
        end = begin + body_bytes
        if (
            end >= size
            or data[end] != _END
            or _FRAME.unpack_from(data, at) != (BODY, channel, body_bytes)
            or body_bytes > self._size_max
        ):
            return None
        alike = (channel, _PUBLISH, arguments, properties)
        if begin - first < _PREFIX_BYTES_MAX:
            self._expect(data[first:begin], alike, body_bytes)
        return (*alike, data[begin:end]), end + 1

    def _expect(self, prefix: bytes, alike: Alike, body_bytes: int) -> None:
        """A publish began like that: others that do may follow."""
        if alike[3] == self._alike[3] and body_bytes == self._body_bytes:
            # Nothing but the key is another one. The properties stay the same object, so that who
            # has looked at them need not do that again.
            alike = (*alike[:3], self._alike[3])
            if len(self._prefixes) >= _CACHED_MAX:
                self._prefixes.clear()
            self._prefixes[prefix] = alike
        elif self._prefixes:
            self._prefixes.clear()
        self._prefix, self._alike, self._body_bytes = prefix, alike, body_bytes
        self._tail_bytes = len(prefix) - int.from_bytes(prefix[3:7], "big")

    def _header(self, channel: int, payload: bytes) -> Event | None:
        content = self._contents.get(channel)
        if content is None or content.properties is not None:
            text = "expected a method or body frame, got a content header frame instead"
            raise FaultError(ReplyCode.UNEXPECTED_FRAME, text, channel)
        if len(payload) < 14:
            raise FaultError(ReplyCode.FRAME_ERROR, "a content header is cut off", channel)
        number = payload[0] << 8 | payload[1]
        if number != BASIC:
            text = f"expected a content header for class {BASIC}, got one for class {number}"
            raise FaultError(ReplyCode.UNEXPECTED_FRAME, text, channel)
        content.properties = payload[12:]
        content.size = content.left = int.from_bytes(payload[4:12], "big")
        if content.size > self._body_bytes_max:
            content.pieces = None
        self._contents_bytes += len(payload)
        return None if content.left else self._end(channel, content)

    def _body(self, channel: int, payload: bytes) -> Event | None:
        content = self._contents.get(channel)
        if content is None or content.properties is None:
            text = "expected a method or header frame, got a content body frame instead"
            raise FaultError(ReplyCode.UNEXPECTED_FRAME, text, channel)
        content.left -= len(payload)
        if content.left < 0:
            text = f"the body is {-content.left} bytes longer than its header says"
            raise FaultError(ReplyCode.FRAME_ERROR, text, channel)
        if content.pieces is not None:
            content.pieces.append(payload)
            self._contents_bytes += len(payload)
        return None if content.left else self._end(channel, content)

    def _end(self, channel: int, content: _Content) -> Event:
        del self._contents[channel]
        properties = content.properties
        assert properties is not None
        body = None if content.pieces is None else b"".join(content.pieces)
        self._contents_bytes -= len(properties) + 12 + len(body or b"")
        return channel, content.method, content.arguments, properties, body


# -- writing -----------------------------------------------------------------------------------


def method_frame(channel: int, payload: bytes) -> bytes:
    """A method, encoded already, as a frame."""
    return b"%b%b\xce" % (_FRAME.pack(METHOD, channel, len(payload)), payload)


def ack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    """basic.ack, the answer that there are most of."""
    return _ACK_FRAME.pack(METHOD, channel, 13, _ACK, tag, multiple, _END)


def content_frames(
    channel: int, payload: bytes, properties: bytes, body: Buffer, frame_max: int
) -> list[Buffer]:
    out: list[Buffer] = [_FRAME.pack(METHOD, channel, len(payload)), payload]
    _put_content(out, channel, properties, body, frame_max - FRAME_OVERHEAD)
    return out


_HEADER_AFTER = Struct(">BBHIIQ")
"""The end of the frame before, and a header frame up to its properties."""
_BODY_AFTER = Struct(">BBHI")
_END_BYTE = b"\xce"


def _put_content(
    out: list[Buffer], channel: int, properties: bytes, body: Buffer, size_max: int
) -> None:
    """What follows a method, from the end of its frame on."""
    size = len(body)
    out.append(_HEADER_AFTER.pack(_END, HEADER, channel, 12 + len(properties), BASIC << 16, size))
    out.append(properties)
    if size > size_max:
        view = memoryview(body)
        for at in range(0, size, size_max):
            piece = view[at : at + size_max]
            out.append(_BODY_AFTER.pack(_END, BODY, channel, len(piece)))
            out.append(piece)
    elif size:
        out.append(_BODY_AFTER.pack(_END, BODY, channel, size))
        out.append(body)
    out.append(_END_BYTE)


def _never(tag: int, body: bytes) -> bytes:
    raise AssertionError("nothing is like nothing")


class DeliveryWriter:
    """Writes what one consumer is delivered."""

    __slots__ = ("_channel", "_fixed", "_form", "_head", "_last", "_size_max", "like")

    def __init__(self, channel: int, consumer_tag: str, frame_max: int) -> None:
        self._channel = channel
        self._head = NUMBERS["basic.deliver"].to_bytes(4, "big") + short_string(consumer_tag)
        self._form = Struct(f">BHI{len(self._head)}sQB")
        self._fixed = len(self._head) + 9
        self._size_max = frame_max - FRAME_OVERHEAD
        self.like: tuple[bytes, int, Callable[[int, bytes], bytes]] = (b"", -1, _never)
        """How the record of a delivery like the last begins, its length, and what writes it."""
        self._last = (b"", -1)

    def expect(self, lead: bytes, address: bytes, properties: bytes, size: int) -> None:
        """The last delivery's record began with `lead`, which has `address` and `properties`, and
        was so long. If that was so of the one before, too, others like it come.
        """
        last, self._last = self._last, (lead, size)
        if last != self._last:
            return
        channel, body_bytes = self._channel, size - len(lead)
        if not 0 < body_bytes <= self._size_max:
            return
        begin = _FRAME.pack(METHOD, channel, self._fixed + len(address)) + self._head
        header = _HEADER_AFTER.pack(
            _END, HEADER, channel, 12 + len(properties), BASIC << 16, body_bytes
        )
        body_head = _BODY_AFTER.pack(_END, BODY, channel, body_bytes)
        middle = b"".join((b"\0", address, header, properties, body_head))
        pack = Struct(f">{len(begin)}sQ{len(middle)}s{body_bytes}sB").pack
        self.like = lead, size, lambda tag, body: pack(begin, tag, middle, body, _END)

    def put(
        self,
        out: list[Buffer],
        tag: int,
        redelivered: bool,
        address: bytes,
        properties: bytes,
        body: Buffer,
    ) -> None:
        """Add one delivery; `address`: exchange and key, as two short strings."""
        channel = self._channel
        size = len(body)
        head = self._form.pack(
            METHOD, channel, self._fixed + len(address), self._head, tag, redelivered
        )
        header = _HEADER_AFTER.pack(_END, HEADER, channel, 12 + len(properties), BASIC << 16, size)
        if 0 < size <= self._size_max:
            body_head = _BODY_AFTER.pack(_END, BODY, channel, size)
            out += (head, address, header, properties, body_head, body, _END_BYTE)
        else:
            out += (head, address)
            _put_content(out, channel, properties, body, self._size_max)


def encoded_address(exchange: str, key: str) -> bytes:
    """Exchange and key as a delivery has them."""
    try:
        return short_string(exchange) + short_string(key)
    except WireError:  # A key of another protocol can be longer than AMQP has room for.
        return short_string(exchange) + short_string(key.encode()[:255].decode("utf-8", "ignore"))

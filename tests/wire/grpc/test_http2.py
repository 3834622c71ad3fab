"""Frames in, calls out: whole, in any pieces, and garbage."""

import struct
from typing import Any

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.grpc.http2 import PREFACE, ServerConnection, Stream


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    """A frame."""
    size = len(payload)
    return struct.pack(">HBBBI", size >> 8, size & 0xFF, kind, flags, number) + payload


class Echo:
    """Answers each call with its last message."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes]] = []
        self.ends: list[int] = []
        self.out = bytearray()
        self.asked = 0
        self.turn = 1 << 30
        """How often it is asked until its turn is over."""
        self.connection = ServerConnection(self._write, self, self._turn_is_over)

    def _turn_is_over(self) -> bool:
        self.asked += 1
        return self.asked % self.turn == 0

    def _write(self, data: bytes) -> None:
        self.out += data

    def opened(self, stream: Stream) -> None:
        """A call."""

    def received(self, stream: Stream, message: bytes) -> None:
        """A message."""
        self.heard.append((stream.number, message))
        stream.token = message

    def half_closed(self, stream: Stream) -> None:
        """Its end."""
        stream.answer(stream.token or b"")

    def ended(self, stream: Stream) -> None:
        """It is over."""
        self.ends.append(stream.number)

    def answers(self) -> dict[int, bytes]:
        """What each stream was sent as data; and trailers were read, too."""
        at, decoder = 0, Decoder()
        found: dict[int, bytes] = {}
        out = bytes(self.out)
        while at < len(out):
            high, low, kind, _, number = struct.unpack_from(">HBBBI", out, at)
            size = high << 8 | low
            payload = out[at + 9 : at + 9 + size]
            if kind == 0:
                found[number] = found.get(number, b"") + payload
            elif kind == 1:
                decoder.decode(payload)
            at += 9 + size
        return found


def conversation(bodies: list[bytes], window: int = 65_535) -> bytes:
    """Calls with these messages."""
    encoder = Encoder()
    said = PREFACE + frame(4, 0, 0, struct.pack(">HI", 4, window))
    for index, body in enumerate(bodies):
        number = 2 * index + 1
        block = encoder.encode([(":path", "/x"), ("n", str(index))])
        said += frame(1, 4, number, block)
        data = struct.pack(">BI", 0, len(body)) + body
        for at in range(0, len(data), 16_000):
            last = at + 16_000 >= len(data)
            said += frame(0, int(last), number, data[at : at + 16_000])
    return said


@given(st.lists(st.binary(max_size=100), max_size=6), st.data())
def test_bytes_may_come_in_any_pieces(bodies: list[bytes], data: st.DataObject) -> None:
    said = conversation(bodies)
    whole = Echo()
    whole.connection.feed(said)
    pieces = Echo()
    at = 0
    while at < len(said):
        size = data.draw(st.integers(1, 60))
        pieces.connection.feed(said[at : at + size])
        at += size
    assert pieces.heard == whole.heard == [(2 * n + 1, body) for n, body in enumerate(bodies)]
    assert pieces.out == whole.out
    assert pieces.ends == [2 * n + 1 for n in range(len(bodies))]
    assert not pieces.connection.streams
    assert pieces.connection.unread_bytes == 0


def test_a_large_message_comes_whole_and_goes_as_the_windows_let_it() -> None:
    body = bytes(range(256)) * 1000
    echo = Echo()
    echo.connection.feed(conversation([body], window=1000))
    sent = echo.answers()[1]
    assert len(sent) == 1000
    while len(sent) < len(body) + 5:
        more = struct.pack(">I", 50_000)
        echo.connection.feed(frame(8, 0, 1, more) + frame(8, 0, 0, more))
        assert len(echo.answers()[1]) > len(sent)
        sent = echo.answers()[1]
    assert sent == struct.pack(">BI", 0, len(body)) + body
    assert echo.ends == [1]


@given(st.binary(max_size=300))
def test_garbage_raises_a_wire_error_or_waits(garbage: bytes) -> None:
    echo = Echo()
    try:
        echo.connection.feed(PREFACE + garbage)
    except WireError:
        pass


def test_a_lost_connection_ends_its_calls() -> None:
    echo = Echo()
    said = PREFACE + frame(4, 0, 0) + frame(1, 4, 1, Encoder().encode([(":path", "/x")]))
    echo.connection.feed(said)
    assert echo.ends == []
    echo.connection.lost()
    assert echo.ends == [1]


def test_of_very_many_frames_as_many_are_read_as_there_is_time_for() -> None:
    echo = Echo()
    echo.turn = 100
    echo.connection.feed(conversation([b"x"] * 600))
    turns = 1
    while len(echo.answers()) < 600:
        assert len(echo.heard) <= turns * echo.turn
        echo.connection.feed(b"")
        turns += 1
    assert turns > 10


def test_of_very_many_messages_in_one_frame_as_many_are_read_as_there_is_time_for() -> None:
    echo = Echo()
    echo.turn = 100
    opening = PREFACE + frame(4, 0, 0) + frame(1, 4, 1, Encoder().encode([(":path", "/x")]))
    echo.connection.feed(opening + frame(0, 1, 1, bytes(5) * 3_000) + frame(6, 0, 0, bytes(8)))
    turns = 1
    while not echo.ends:
        assert len(echo.heard) <= turns * echo.turn
        assert not echo.out.endswith(bytes(8)), "a later frame was read before"
        echo.connection.feed(b"")
        turns += 1
    assert turns > 20
    assert len(echo.heard) == 3_000
    echo.connection.feed(b"")
    assert echo.out.endswith(bytes(8))


def test_a_window_that_is_told_many_times_in_one_frame_counts_once() -> None:
    class Counted(dict[int, Stream]):
        looks = 0

        def values(self) -> Any:
            self.looks += 1
            return super().values()

    echo = Echo()
    echo.connection.streams = streams = Counted()
    echo.connection.feed(
        PREFACE + frame(4, 0, 0) + frame(1, 4, 1, Encoder().encode([(":path", "/x")]))
    )
    told = b"".join(struct.pack(">HI", 4, size % 2 * 50_000 + 1) for size in range(2_000))
    echo.connection.feed(frame(4, 0, 0, told))
    assert streams.looks == 1
    assert streams[1].window == 50_001


def test_headers_that_go_on_with_nothing_end_the_connection() -> None:
    echo = Echo()
    echo.connection.feed(PREFACE + frame(4, 0, 0) + frame(1, 0, 1))
    with pytest.raises(WireError, match="go on with nothing"):
        echo.connection.feed(frame(9, 0, 1))

"""Frames: the same however their bytes are cut, and nothing but `WireError` for what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.stomp.frame import (
    COMMAND_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    Frame,
    StompFrameReader,
    encode_frame,
)

LIMIT = 1_000
COMMANDS = st.sampled_from(["SEND", "MESSAGE", "ACK", "RECEIPT", "ERROR"])
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
BODIES = st.one_of(st.none(), st.binary(max_size=300))


def frames_of(version: str) -> st.SearchStrategy[list[Frame]]:
    """Frames that a version can say."""
    text = TEXT
    if version == "1.0":
        text = TEXT.map(lambda each: each.replace(":", ";").replace("\n", " ").strip())
    if version != "1.2":
        text = text.map(lambda each: each.replace("\r", "_"))
    names = text.filter(lambda each: bool(each) and each != "content-length")

    def made(command: str, headers: dict[str, str], body: bytes | None) -> Frame:
        if body is not None:
            headers = {**headers, "content-length": str(len(body))}
        return Frame(command, headers, body or b"")

    return st.lists(
        st.builds(made, COMMANDS, st.dictionaries(names, text, max_size=5), BODIES), max_size=6
    )


def encoded(frames: list[Frame], version: str, between: bytes = b"") -> bytes:
    return between.join(
        encode_frame(each.command, each.headers.items(), each.body, version) for each in frames
    )


def read(raw: bytes, version: str = "1.2") -> list[Frame]:
    reader = StompFrameReader(LIMIT)
    reader.version = version
    reader.feed(raw)
    return list(reader.frames())


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@given(data=st.data())
def test_any_cut_of_the_bytes_gives_the_same_frames(version: str, data: st.DataObject) -> None:
    frames = data.draw(frames_of(version))
    raw = encoded(frames, version, data.draw(st.sampled_from([b"", b"\n", b"\r\n", b"\n\n\n"])))
    reader = StompFrameReader(LIMIT)
    reader.version = version
    found: list[Frame] = []
    at = 0
    while at < len(raw):
        size = data.draw(st.integers(1, len(raw) - at))
        reader.feed(raw[at : at + size])
        at += size
        if data.draw(st.booleans()):
            found += reader.frames()
    found += reader.frames()
    assert found == frames
    assert [list(each.headers) for each in found] == [list(each.headers) for each in frames]
    assert reader.unread_bytes == 0


@given(frames=frames_of("1.2"))
def test_byte_by_byte(frames: list[Frame]) -> None:
    reader = StompFrameReader(LIMIT)
    reader.version = "1.2"
    found: list[Frame] = []
    for each in encoded(frames, "1.2"):
        reader.feed(bytes([each]))
        found += reader.frames()
    assert found == frames


@given(frames=frames_of("1.2"))
def test_reading_may_stop_after_any_frame_and_go_on(frames: list[Frame]) -> None:
    reader = StompFrameReader(LIMIT)
    reader.version = "1.2"
    reader.feed(encoded(frames, "1.2"))
    assert [next(reader.frames()) for _ in frames] == frames


@given(raw=st.binary(max_size=500), version=st.sampled_from(["", "1.0", "1.1", "1.2"]))
def test_garbage_is_refused_and_nothing_else_happens(raw: bytes, version: str) -> None:
    for data in (raw, b"SEND\n" + raw, b"SEND\ndestination:/queue/a\n\n" + raw + b"\0"):
        try:
            read(data, version)
        except WireError:
            pass


@pytest.mark.parametrize(
    "raw",
    [
        b"SEND\nno colon\n\n\0",
        b"SEND\n:nothing\n\n\0",
        b"SEND\ncontent-length:-1\n\n\0",
        b"SEND\ncontent-length:1e3\n\n\0",
        b"SEND\ncontent-length:\n\n\0",
        b"SEND\ncontent-length:2\n\nabc\0",
        b"SEND\ncontent-length:%d\n\n" % (LIMIT + 1),
        b"SEND\na:\\t\n\n\0",
        b"SEND\na:\\\n\n\0",
        b"SEND\na:\xff\n\n\0",
        b"SEND\0",
        b"SEND\na:b\0\n\n\0",
        b"SEND\n\n" + b"x" * (LIMIT + 1),
        b"GET / HTTP/1.1 and what else there is in a line\r\n",
        b"x" * (COMMAND_BYTES_MAX + 2),
        b"SEND\na:" + b"x" * HEAD_BYTES_MAX,
        b"SEND\n" + b"a:b\n" * (HEADERS_MAX + 1) + b"\n\0",
    ],
)
def test_what_is_no_frame_is_refused_as_soon_as_it_shows(raw: bytes) -> None:
    with pytest.raises(WireError):
        read(raw)


def test_the_first_of_repeated_headers_counts() -> None:
    (frame,) = read(b"SEND\nfoo:World\nfoo:Hello\n\n\0")
    assert frame.headers == {"foo": "World"}


def test_escapes_are_those_of_the_version() -> None:
    raw = b"SEND\na\\cb:1\\n2\\\\3\n\n\0"
    assert read(raw, "1.0")[0].headers == {"a\\cb": "1\\n2\\\\3"}
    assert read(raw, "1.1")[0].headers == {"a:b": "1\n2\\3"}
    assert read(raw, "1.2")[0].headers == {"a:b": "1\n2\\3"}
    assert read(b"SEND\na:\\r\n\n\0", "1.2")[0].headers == {"a": "\r"}
    with pytest.raises(WireError, match="no escape"):
        read(b"SEND\na:\\r\n\n\0", "1.1")


def test_connect_has_no_escapes() -> None:
    raw = b"CONNECT\naccept-version:1.2\nlogin:a\\c\npasscode: b\n\n\0"
    assert read(raw)[0].headers == {"accept-version": "1.2", "login": "a\\c", "passcode": " b"}


def test_spaces_around_headers_of_1_0_do_not_count() -> None:
    (frame,) = read(b"CONNECT\nlogin: me\npasscode : x y \n\n\0", "")
    assert frame.headers == {"login": "me", "passcode": "x y"}
    assert read(b"SEND\na: b\n\n\0", "1.1")[0].headers == {"a": " b"}


def test_lines_may_end_with_carriage_returns() -> None:
    frames = read(b"\r\nSEND\r\na:b\r\nc:d\r\n\r\nbody\r\n\0\r\n\r\nACK\r\n\r\n\0")
    assert frames == [Frame("SEND", {"a": "b", "c": "d"}, b"body\r\n"), Frame("ACK", {}, b"")]


def test_a_body_with_a_length_may_have_any_bytes() -> None:
    body = b"\0\n\n\0SEND\n\n\0"
    assert read(encode_frame("SEND", [("content-length", str(len(body)))], body)) == [
        Frame("SEND", {"content-length": "11"}, body)
    ]


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_no_value_can_add_a_header_or_end_a_frame(version: str) -> None:
    raw = encode_frame("MESSAGE", [("a", "b\nc:d\r\n\0e")], b"", version)
    (frame,) = read(raw, version)
    assert list(frame.headers) == ["a"]


def test_heart_beats_are_no_frames() -> None:
    reader = StompFrameReader(LIMIT)
    for _ in range(10_000):
        reader.feed(b"\n")
        assert not list(reader.frames())
    assert reader.unread_bytes == 0


def test_a_body_without_a_length_may_come_in_many_pieces() -> None:
    reader = StompFrameReader(1 << 20)
    reader.feed(b"SEND\n\n")
    for _ in range(10_000):
        reader.feed(b"x" * 100)
        assert not list(reader.frames())
    reader.feed(b"\0SEND\n\n\0")
    assert [len(each.body) for each in reader.frames()] == [1_000_000, 0]

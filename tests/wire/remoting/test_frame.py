import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.command import REFUSED, Command, Serialize
from onelog.wire.remoting.frame import (
    BODY_COPY_MAX,
    FRAME_BYTES_MAX,
    REQUEST_HEADER_BYTES_MAX,
    RemotingFrameReader,
    encode_request,
    encode_response,
)
from tests.wire.remoting import captured
from tests.wire.remoting.commands import encode_command

texts = st.text(st.characters(codec="utf-8"), max_size=20)
commands = st.builds(
    Command,
    code=st.integers(-(2**15), 2**15 - 1),
    language=st.sampled_from(["JAVA", "GO", "CPP"]),
    version=st.integers(0, 1000),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    remark=st.none() | texts.filter(bool),
    ext=st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=50) | st.integers(4000, 5000).map(bytes),
    serialize=st.sampled_from([0, 1]),
)


def encode(*them: Command) -> bytes:
    return b"".join(b"".join(encode_command(command)) for command in them)


def read(*pieces: bytes) -> list[Command]:
    reader = RemotingFrameReader()
    found = []
    for piece in pieces:
        reader.feed(piece)
        found += list(reader.commands())
    assert reader.unread_bytes == 0
    return found


@given(st.lists(commands, max_size=4))
def test_commands_survive_the_round_trip(them: list[Command]) -> None:
    assert read(encode(*them)) == them


@given(st.lists(commands, min_size=1, max_size=4), st.data())
def test_any_split_of_the_bytes_gives_the_same_commands(
    them: list[Command], data: st.DataObject
) -> None:
    stream = encode(*them)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(*pieces) == them


def test_one_byte_at_a_time_gives_the_same_commands() -> None:
    stream = captured.SEND_COMPACT_550 + captured.SEND_JSON_550 + captured.HEARTBEAT_JSON_498
    pieces = [stream[at : at + 1] for at in range(len(stream))]
    assert read(*pieces) == read(stream)


def test_reading_can_stop_after_any_command_and_go_on_later() -> None:
    stream = encode(Command(1), Command(2, body=b"x" * 5000), Command(3), Command(4))
    reader = RemotingFrameReader()
    reader.feed(stream[:-3])
    first = next(reader.commands())
    second = next(reader.commands())
    reader.feed(stream[-3:])
    rest = list(reader.commands())
    assert [first.code, second.code, *(command.code for command in rest)] == [1, 2, 3, 4]
    assert second.body == b"x" * 5000


def test_nothing_is_kept_but_what_belongs_to_the_next_command() -> None:
    frame = b"".join(encode_request(RequestCode.HEART_BEAT, 1, {}, bytes(1_000)))
    for rest in (b"", frame[:3], frame[:100]):
        received = frame * 50 + rest
        references = sys.getrefcount(received)
        reader = RemotingFrameReader()
        reader.feed(received)
        assert len(list(reader.commands())) == 50
        assert sys.getrefcount(received) == references
        assert reader.unread_bytes == len(rest)
        reader.feed(frame[len(rest) :])
        assert len(list(reader.commands())) == 1


def test_commands_before_garbage_are_handed_out_first() -> None:
    reader = RemotingFrameReader()
    reader.feed(encode(Command(1), Command(2)) + b"\x7f\xff\xff\xff")
    found = reader.commands()
    assert [next(found).code, next(found).code] == [1, 2]
    with pytest.raises(WireError):
        next(found)


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"\x7f\xff\xff\xff", "2147483647 bytes; the limit is 16777216"),
        (b"\xff\xff\xff\xff", "no room"),
        (struct.pack(">i", FRAME_BYTES_MAX + 1), "the limit"),
        (struct.pack(">iI", 3, 0), "no room"),
        (struct.pack(">iI", 4, 5), "header of 5 bytes in a frame of 4"),
        (struct.pack(">iI", 4, 2 << 24), "serialize type 2"),
        (b"GET / HTTP/1.1\r\n\r\n", "the limit"),
        (b"\x16\x03\x01\x02\x00", "the limit"),
    ],
)
def test_what_is_no_frame_is_refused_as_soon_as_it_can_be_known(stream: bytes, reason: str) -> None:
    reader = RemotingFrameReader()
    reader.feed(stream)
    with pytest.raises(WireError, match=reason):
        list(reader.commands())


def test_the_largest_frame_passes_and_its_body_is_not_copied() -> None:
    size = FRAME_BYTES_MAX - 4 - len(b"{}")
    frame = struct.pack(">iI", FRAME_BYTES_MAX, 2) + b"{}" + bytes(size)
    reader = RemotingFrameReader()
    reader.feed(frame)
    (command,) = reader.commands()
    assert isinstance(command.body, memoryview)
    assert command.body.obj is frame
    assert len(command.body) == size


def test_a_view_of_a_body_outlives_further_reading() -> None:
    body = bytes(range(256)) * 32
    stream = encode(Command(1, body=body), Command(2, body=body))
    reader = RemotingFrameReader()
    kept = []
    for at in range(0, len(stream), 1000):
        reader.feed(stream[at : at + 1000])
        kept += [command.body for command in reader.commands()]
    assert len(body) > BODY_COPY_MAX
    assert kept == [body, body]


@given(st.binary(max_size=200))
def test_garbage_raises_wire_error_and_nothing_else(stream: bytes) -> None:
    reader = RemotingFrameReader()
    reader.feed(stream)
    try:
        list(reader.commands())
    except WireError:
        pass


@given(st.sampled_from([captured.SEND_COMPACT_550, captured.SEND_JSON_550]), st.data())
def test_a_mutated_frame_raises_wire_error_and_nothing_else(
    frame: bytes, data: st.DataObject
) -> None:
    mutated = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    reader = RemotingFrameReader()
    reader.feed(bytes(mutated))
    try:
        list(reader.commands())
    except WireError:
        pass


@pytest.mark.parametrize("serialize", list(Serialize))
def test_an_answer_repeats_the_number_and_is_marked_as_one(serialize: Serialize) -> None:
    buffers = encode_response(17, 42, {"k": "v"}, "no such topic", serialize=serialize)
    (answer,) = read(*map(bytes, buffers))
    assert (answer.code, answer.opaque, answer.remark) == (17, 42, "no such topic")
    assert (answer.ext, answer.is_response, answer.version) == ({"k": "v"}, True, 513)
    assert answer.serialize == serialize


def test_a_large_body_is_passed_on_and_a_small_one_joined() -> None:
    records = [memoryview(bytes(3000)), memoryview(bytes(3000))]
    buffers = encode_response(0, 1, body=records)
    assert buffers[1:] == records
    assert buffers[1] is records[0]
    assert len(encode_response(0, 1, body=b"small")) == 1
    assert read(b"".join(buffers))[0].body == bytes(6000)
    assert read(b"".join(encode_response(0, 1, body=b"small")))[0].body == b"small"


def test_a_code_beyond_16_bits_goes_out_as_json() -> None:
    (command,) = read(b"".join(encode_request(200050, 1, {"a": "b"}, serialize=1)))
    assert (command.code, command.serialize) == (200050, Serialize.JSON)


def test_oneway_requests_say_so() -> None:
    (command,) = read(b"".join(encode_request(15, 1, oneway=True)))
    assert command.is_oneway


@pytest.mark.parametrize("serialize", [Serialize.JSON, Serialize.COMPACT])
def test_a_request_with_a_text_that_is_too_long_is_handed_out_as_refused(
    serialize: Serialize,
) -> None:
    long = Command(310, opaque=7, ext={"b": "t" * 2_000, "i": "p"}, serialize=serialize, body=b"x")
    after = Command(310, opaque=8, ext={"b": "t" * 1_024, "i": "p" * 40_000}, serialize=serialize)
    refused, taken = read(encode(long, after))
    reason = "the custom field <b> has 2000 characters; the limit is 1024"
    assert refused == Command(REFUSED, opaque=7, remark=reason, serialize=serialize)
    assert taken == after


def test_an_answer_may_have_long_texts() -> None:
    answer = Command(0, flag=1, ext={"msgId": "m" * 2_000_000})
    assert read(encode(answer)) == [answer]


def test_who_is_only_asked_reads_no_huge_headers() -> None:
    reader = RemotingFrameReader(header_bytes_max=REQUEST_HEADER_BYTES_MAX)
    noted = Command(310, ext={"note": "n" * (1 << 20)})
    reader.feed(encode(noted))
    assert list(reader.commands()) == [noted]
    reader.feed(encode(Command(310, ext={"note": "n" * (2 << 20)})))
    with pytest.raises(WireError, match=r"a header of \d+ bytes; the limit is 1114112"):
        list(reader.commands())


def test_frames_of_real_clients_are_read() -> None:
    (route,) = read(captured.ROUTE_JSON_498)
    assert (route.code, route.version, route.ext) == (105, 409, {"topic": "TBW102"})
    (route,) = read(captured.ROUTE_COMPACT_550)
    assert (route.code, route.version, route.ext) == (105, 513, {"topic": "t1"})
    (pull,) = read(captured.PULL_COMPACT_550)
    assert (pull.code, pull.ext["maxMsgBytes"]) == (11, "262144")


@pytest.mark.parametrize("name", ["ROUTE_COMPACT_550", "SEND_COMPACT_498", "PULL_COMPACT_550"])
def test_what_real_clients_send_in_compact_form_is_written_the_same(name: str) -> None:
    frame = getattr(captured, name)
    assert encode(*read(frame)) == frame

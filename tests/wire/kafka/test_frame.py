"""Frames: the same requests however their bytes are cut, and nothing but `WireError` for others."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.kafka import frame, schema
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.frame import (
    KafkaFrameReader,
    encode_answer,
    joined,
    read_fields,
    read_header,
)

LIMIT = 1_000
FRAMES = st.lists(st.binary(min_size=10, max_size=300), max_size=8)


def framed(frames: list[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(4, "big") + each for each in frames)


@given(frames=FRAMES, data=st.data())
def test_any_cut_of_the_bytes_gives_the_same_frames(
    frames: list[bytes], data: st.DataObject
) -> None:
    raw = framed(frames)
    reader = KafkaFrameReader(LIMIT)
    found: list[bytes] = []
    at = 0
    while at < len(raw):
        size = data.draw(st.integers(1, len(raw) - at))
        reader.feed(raw[at : at + size])
        at += size
        found += [bytes(each) for each in reader.frames()]
    assert found == frames
    assert reader.unread_bytes == 0


@given(frames=FRAMES, data=st.data())
def test_large_frames_are_read_to_where_they_stay(frames: list[bytes], data: st.DataObject) -> None:
    raw = framed(frames)
    reader = KafkaFrameReader(LIMIT)
    found: list[bytes] = []
    at = 0
    with mock.patch.object(frame, "_ROOM_BYTES_MIN", 20):
        while at < len(raw):
            room = reader.room
            if room is not None and data.draw(st.booleans()):
                size = data.draw(st.integers(1, len(room)))
                room[:size] = raw[at : at + size]
                reader.fill(size)
            else:
                size = data.draw(st.integers(1, len(raw) - at))
                reader.feed(raw[at : at + size])
            at += size
            if data.draw(st.booleans()):
                found += [bytes(each) for each in reader.frames()]
        found += [bytes(each) for each in reader.frames()]
    assert found == frames
    assert reader.unread_bytes == 0
    assert reader.room is None


@given(frames=FRAMES)
def test_reading_may_stop_after_any_frame_and_go_on(frames: list[bytes]) -> None:
    reader = KafkaFrameReader(LIMIT)
    reader.feed(framed(frames))
    assert [bytes(next(reader.frames())) for _ in frames] == frames


@pytest.mark.parametrize("size", [-1, 0, 9, LIMIT + 1, (1 << 31) - 1])
def test_a_length_that_cannot_be_is_refused_before_its_bytes_come(size: int) -> None:
    reader = KafkaFrameReader(LIMIT)
    reader.feed(size.to_bytes(4, "big", signed=True))
    with pytest.raises(WireError):
        list(reader.frames())


@given(garbage=st.binary(min_size=10, max_size=200))
def test_garbage_is_no_request(garbage: bytes) -> None:
    frame = memoryview(garbage)
    try:
        header = read_header(frame)
        if header.key in schema.apis() and header.version in schema.apis()[header.key].versions:
            read_fields(header, frame)
    except WireError:
        pass


def test_what_librdkafka_asks_for_all_topics_is_read_as_kafka_reads_it() -> None:
    captured = bytes.fromhex("0003000d00000006000772646b61666b610000000000010000")
    header = read_header(memoryview(captured))
    assert header[:4] == (ApiKey.METADATA, 13, 6, "rdkafka")
    assert read_fields(header, memoryview(captured))["topics"] is None


@pytest.mark.parametrize("version", [2, 3])
def test_the_answer_about_versions_never_has_tags_in_its_header(version: int) -> None:
    fields = {"error_code": 0, "api_keys": []}
    raw = b"".join(encode_answer(ApiKey.API_VERSIONS, version, 7, fields))
    assert raw[:8] == (len(raw) - 4).to_bytes(4, "big") + (7).to_bytes(4, "big")
    decoded = schema.decode_response(ApiKey.API_VERSIONS, version, memoryview(raw), 8)
    assert decoded["error_code"] == 0
    other = b"".join(encode_answer(ApiKey.LIST_GROUPS, 3, 7, {"error_code": 0}))
    assert schema.decode_response(ApiKey.LIST_GROUPS, 3, memoryview(other), 9)["groups"] == []


@given(pieces=st.lists(st.binary(max_size=30)))
def test_pieces_are_joined_in_their_order_and_large_ones_are_not_copied(
    pieces: list[bytes],
) -> None:
    found = joined(list(pieces), 10)
    assert b"".join(found) == b"".join(pieces)
    assert [each for each in found if len(each) > 10 and any(each is one for one in pieces)] == [
        each for each in pieces if len(each) > 10
    ]

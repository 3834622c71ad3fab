"""Batches in one record become messages, and everything else stays as it is."""

import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.message import Message, NewMessage, Part, SysFlag
from onelog.record.decode import decode_records
from onelog.record.encode import encode
from onelog.record.inner_batch import _split_one_by_one, encode_batch, split_batch, unwrapped

BATCH = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
PARTS = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)), min_size=1
)


def stored(body: bytes, sys_flag: int, queue_offset: int = 7) -> list[Message]:
    message = NewMessage("t", 3, body, b"INNER_NUM\x019\x02", sys_flag=sys_flag, born_ms=12)
    head, body_part, tail, _ = encode(message, queue_offset, 4096, 34, False)
    return decode_records(head + bytes(body_part) + tail)


@given(PARTS, st.booleans())
def test_a_batch_is_taken_apart(parts: list[tuple[int, bytes, bytes]], packed: bool) -> None:
    body = encode_batch(parts)
    if packed:
        before = stored(zlib.compress(body), BATCH | SysFlag.COMPRESSED | 3 << 8)
    else:
        before = stored(body, BATCH)
    after = unwrapped(before)
    assert [(each.flag, bytes(each.body), each.properties) for each in after] == parts
    assert [each.queue_offset for each in after] == list(range(7, 7 + len(parts)))
    for each in after:
        assert (each.topic, each.queue_id, each.log_offset) == ("t", 3, 4096)
        assert (each.born_ms, each.store_ms) == (12, 34)
        assert not each.sys_flag & (SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED)
        assert each.sys_flag & SysFlag.INNER_BATCH


@pytest.mark.parametrize("sys_flag", [0, SysFlag.INNER_BATCH, SysFlag.NEED_UNWRAP])
def test_what_is_no_batch_of_this_form_stays_as_it_is(sys_flag: int) -> None:
    before = stored(b"whatever", sys_flag)
    assert unwrapped(before) is before


def test_messages_around_a_batch_keep_their_places() -> None:
    messages = stored(b"a", 0, 6) + stored(encode_batch([(0, b"b", b"")]), BATCH) + stored(b"c", 0)
    assert [bytes(each.body) for each in unwrapped(messages)] == [b"a", b"b", b"c"]


def test_a_body_that_is_no_batch_is_refused_with_its_place() -> None:
    with pytest.raises(WireError, match="log offset 4096"):
        unwrapped(stored(b"no batch", BATCH))


batches = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40))
)


@given(batches)
def test_a_batch_survives_the_round_trip(messages: list[tuple[int, bytes, bytes]]) -> None:
    assert [tuple(message) for message in split_batch(encode_batch(messages))] == messages


@given(st.binary(max_size=100))
def test_garbage_raises_wire_error_and_nothing_else(body: bytes) -> None:
    try:
        split_batch(body)
    except WireError:
        pass


@pytest.mark.parametrize("size", [1, 19, 20, 22, 23, 24, 25])
def test_a_batch_that_is_cut_off_is_refused(size: int) -> None:
    batch = encode_batch([(0, b"abc", b"p")])
    with pytest.raises(WireError, match="message 0 of the batch"):
        split_batch(batch[:size])


def test_a_batch_with_lengths_that_disagree_is_refused() -> None:
    batch = bytearray(encode_batch([(0, b"abc", b"p")] * 2))
    struct.pack_into(">i", batch, 16, 4)
    with pytest.raises(WireError, match="wrong lengths"):
        split_batch(bytes(batch))


def outcome(data: bytes, split: Callable[[bytes], list[Part]]) -> str:
    try:
        return str(split(data))
    except WireError as error:
        return str(error)


@given(
    st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(0, 200),
    st.binary(min_size=1, max_size=4),
)
def test_a_damaged_batch_of_messages_of_one_size_is_read_as_any_other(
    bodies: list[bytes], at: int, damage: bytes
) -> None:
    batch = bytearray(encode_batch([(1, body, b"pp") for body in bodies]))
    assert split_batch(batch) == [(1, body, b"pp") for body in bodies]
    batch[at : at + len(damage)] = damage[: max(0, len(batch) - at)]
    data = bytes(batch)
    assert outcome(data, split_batch) == outcome(data, _split_one_by_one)

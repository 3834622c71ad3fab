"""Batches in one record become messages, and everything else stays as it is."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.message import Message, NewMessage, SysFlag
from onelog.store import record
from onelog.wire.remoting.inner_batch import unwrapped
from onelog.wire.remoting.records import decode_records
from onelog.wire.remoting.send import encode_batch

BATCH = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
PARTS = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)), min_size=1
)


def stored(body: bytes, sys_flag: int, queue_offset: int = 7) -> list[Message]:
    message = NewMessage("t", 3, body, b"INNER_NUM\x019\x02", sys_flag=sys_flag, born_ms=12)
    head, body_part, tail, _ = record.encode(message, queue_offset, 4096, 34, False)
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

"""HPACK: what the library's encoder writes is read, and what nobody would write is refused."""

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import WireError
from onelog.wire.grpc.header_blocks import LIST_BYTES_MAX, HeaderDecoder, literal

NAMES = st.sampled_from([b":path", b"content-type", b"x-mq-client-id", b"te", b"x-other"])
VALUES = st.binary(max_size=300)
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=8)


@given(st.lists(st.tuples(LISTS, st.booleans()), max_size=12))
def test_what_an_encoder_writes_is_read(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool]],
) -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    for headers, huffman in blocks:
        assert decoder.decode(encoder.encode(headers, huffman=huffman)) == dict(headers)


def test_a_table_that_shrinks_forgets_the_oldest() -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    assert decoder.decode(encoder.encode([(b"a", b"1"), (b"b", b"2")])) is not None
    encoder.header_table_size = 40
    assert decoder.decode(encoder.encode([(b"b", b"2"), (b"c", b"3")])) == {
        b"b": b"2",
        b"c": b"3",
    }


def test_headers_that_are_too_large_are_read_to_their_end() -> None:
    encoder, decoder = Encoder(), HeaderDecoder(100)
    assert decoder.decode(encoder.encode([(b"a", b"x" * 200), (b"b", b"2")])) is None
    assert decoder.decode(encoder.encode([(b"b", b"2")])) == {b"b": b"2"}


@pytest.mark.parametrize("huffman", [False, True])
def test_what_many_headers_may_have_together_counts(huffman: bool) -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    few = [(b"x%d" % number, b"0" * 4_000) for number in range(4)]
    assert decoder.decode(encoder.encode(few, huffman=huffman)) == dict(few)
    more = [*few, (b"y", b"0" * (LIST_BYTES_MAX - 4 * 4_002))]
    assert decoder.decode(encoder.encode(more, huffman=huffman)) is None
    # Twice the same is no more than once.
    assert decoder.decode(encoder.encode(few[3:] * 8, huffman=huffman)) == dict(few[3:])


@given(st.binary(max_size=200))
def test_garbage_raises_a_wire_error_or_is_headers(block: bytes) -> None:
    try:
        HeaderDecoder().decode(block)
    except WireError:
        pass


@pytest.mark.parametrize("size", [1, 126, 127, 128, 300, 20_000])
def test_literals_of_any_length_are_read(size: int) -> None:
    header = (b"grpc-message", b"y" * size)
    assert HeaderDecoder(1 << 20).decode(literal(*header)) == dict([header])

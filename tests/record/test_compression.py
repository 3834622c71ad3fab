"""Compressed bodies come out as they went in, and damaged ones do no harm."""

import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import CompressionError
from onelog.record.compression import UNPACKED_BYTES_MAX, Compression, compress, decompress

FORMS = st.sampled_from(list(Compression))
TEXT = b"the same words again and again, " * 300

# What the compressors of RocketMQ 5.5.0 (level 5) make of TEXT. None says how long it will be.
FROM_JAVA = {
    Compression.LZ4: (
        "04224d186070734d000000f2097468652073616d6520776f72647320616761696e20616e640a002f2c202000"
        + "ff" * 37
        + "6d5061696e2c2000000000"
    ),
    Compression.ZSTD: (
        "28b52ffd0058240100d07468652073616d6520776f72647320616761696e20616e642c2002005d65288e2956"
        "c6010000"
    ),
    Compression.ZLIB: (
        "785eedc9b109c0201000c0557e802cf5a02416518842d6b7489b11ae3bb875d59879d778c75366e499ad47f6"
        "f2e988e5bdf7de7befbdf7de7befbdf7de7befbdf7de7befbdf7fef7373e4f22e0"
    ),
}


@given(st.binary(max_size=3000) | st.binary(max_size=30).map(lambda part: part * 500), FORMS)
def test_every_body_comes_out_as_it_went_in(body: bytes, form: Compression) -> None:
    packed = compress(body, form)
    assert decompress(packed, form) == body
    assert decompress(memoryview(packed), form, len(body)) == body


@given(st.binary(max_size=200), FORMS)
def test_garbage_is_refused(garbage: bytes, form: Compression) -> None:
    with pytest.raises(CompressionError):
        decompress(b"\x01" + garbage, form)


@given(st.data(), FORMS)
def test_what_is_cut_off_is_refused(data: st.DataObject, form: Compression) -> None:
    packed = compress(TEXT, form)
    size = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(CompressionError, match="cut off"):
        decompress(packed[:size], form)


@pytest.mark.parametrize("form", list(Compression))
def test_a_body_that_grows_beyond_the_limit_is_refused(form: Compression) -> None:
    packed = compress(bytes(1001), form)
    assert decompress(packed, form, 1001) == bytes(1001)
    with pytest.raises(CompressionError, match="over 1000 bytes"):
        decompress(packed, form, 1000)


def test_a_small_body_that_claims_gigabytes_is_refused_before_it_has_them() -> None:
    # 8 GiB of zeros, in blocks that each repeat one byte: 4 bytes for 128 KiB.
    block = (128 << 10 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (128 << 10 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    bomb = bytes.fromhex("28b52ffd0058") + block * 65_535 + last
    assert zstandard.get_frame_parameters(bomb).content_size == zstandard.CONTENTSIZE_UNKNOWN
    with pytest.raises(CompressionError, match=f"over {UNPACKED_BYTES_MAX} bytes"):
        decompress(bomb, Compression.ZSTD)


@pytest.mark.parametrize("form", FROM_JAVA)
def test_what_the_java_client_compressed_is_read(form: Compression) -> None:
    assert decompress(bytes.fromhex(FROM_JAVA[form]), form) == TEXT


def test_the_forms_are_what_other_libraries_make_of_them() -> None:
    assert zlib.decompress(compress(TEXT, Compression.ZLIB)) == TEXT
    assert decompress(zlib.compress(TEXT, 5), Compression.UNNAMED) == TEXT
    frame = compress(TEXT, Compression.LZ4)
    assert not lz4.frame.get_frame_info(frame)["block_linked"]  # Java reads nothing else.
    assert decompress(lz4.frame.compress(TEXT, store_size=False), Compression.LZ4) == TEXT


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(CompressionError, match="form 5"):
        decompress(b"", 5)


def test_the_form_is_told_in_the_bits_of_the_sys_flag() -> None:
    assert [form.sys_flag for form in Compression] == [0x001, 0x101, 0x201, 0x301]

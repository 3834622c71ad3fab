"""The codecs of Kafka's record batches: gzip, snappy, LZ4 frames, zstd frames.

Snappy comes in two ways: Java's clients write blocks in the framing of the xerial library, the
others one raw block.

    xerial   82 'SNAPPY' 00 | int32 version | int32 compatible | (int32 length, block) ...

Invariants: `unpack(pack(raw, codec), codec)` is `raw`; nothing unpacks to more than the limit,
whatever its bytes claim; what is cut off, or no such codec, raises `CompressionError`.
"""

import zlib
from enum import IntEnum

from onelog.errors import CompressionError

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
_GZIP_WINDOW = 31
_ZSTD_FEED_BYTES = 1024


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def pack(raw: bytes, codec: int) -> bytes:
    """The bytes, compressed; as one raw block with snappy."""
    # The libraries are imported when they are needed: most programs never need them.
    if codec == Codec.GZIP:
        packer = zlib.compressobj(wbits=_GZIP_WINDOW)
        return packer.compress(raw) + packer.flush()
    if codec == Codec.SNAPPY:
        from cramjam import snappy

        return bytes(snappy.compress_raw(raw))
    if codec == Codec.LZ4:
        import lz4.frame

        return bytes(lz4.frame.compress(raw, block_linked=False))
    if codec == Codec.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor().compress(raw)
    return raw


def unpack(data: bytes | memoryview, codec: int, bytes_max: int) -> bytes | memoryview:
    """What was compressed; as it is if nothing was."""
    if codec == Codec.NONE:
        return data
    if codec == Codec.SNAPPY:
        return _from_snappy(bytes(data), bytes_max)
    unpackers = {Codec.GZIP: _from_gzip, Codec.LZ4: _from_lz4, Codec.ZSTD: _from_zstd}
    unpacker = unpackers.get(Codec(codec)) if codec <= Codec.ZSTD else None
    if unpacker is None:
        raise CompressionError(f"records are compressed by codec {codec}, which is unknown")
    raw, is_whole = unpacker(data, bytes_max)
    if len(raw) > bytes_max or not is_whole:
        raise CompressionError(f"compressed records are cut off, or over {bytes_max} bytes")
    return raw


def _from_gzip(data: bytes | memoryview, bytes_max: int) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        return inflater.decompress(data, bytes_max + 1), inflater.eof
    except zlib.error as error:
        raise _damaged(error) from None


def _from_lz4(data: bytes | memoryview, bytes_max: int) -> tuple[bytes, bool]:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    try:
        return bytes(inflater.decompress(data, max_length=bytes_max + 1)), bool(inflater.eof)
    except RuntimeError as error:
        raise _damaged(error) from None


def _from_zstd(data: bytes | memoryview, bytes_max: int) -> tuple[bytes, bool]:
    import zstandard

    # A window beyond the limit could only be needed by records beyond the limit.
    inflater = zstandard.ZstdDecompressor(max_window_size=max(1 << 23, bytes_max)).decompressobj()
    pieces: list[bytes] = []
    size = at = 0
    try:
        while at < len(data) and size <= bytes_max and not inflater.eof:
            pieces.append(inflater.decompress(data[at : at + _ZSTD_FEED_BYTES]))
            size += len(pieces[-1])
            at += _ZSTD_FEED_BYTES
    except zstandard.ZstdError as error:
        raise _damaged(error) from None
    return b"".join(pieces), inflater.eof


def _from_snappy(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _from_block(data, bytes_max)
    pieces: list[bytes] = []
    at, size = _XERIAL_HEAD_BYTES, 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if length > len(data) - at:
            raise CompressionError("a block of compressed records is cut off")
        pieces.append(_from_block(data[at : at + length], bytes_max - size))
        size += len(pieces[-1])
        at += length
    return b"".join(pieces)


def _from_block(block: bytes, bytes_max: int) -> bytes:
    from cramjam import DecompressionError, snappy

    try:
        if snappy.decompress_raw_len(block) > bytes_max:
            raise CompressionError(f"compressed records are over {bytes_max} bytes")
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> CompressionError:
    return CompressionError(f"records are said to be compressed, but: {error}")

"""Compressed bytes: the three forms of RocketMQ's bodies, and the codecs of Kafka's batches.

RocketMQ's form is in bits 8 to 10 of the sysFlag, and bit 0 says that there is one. Clients before
5.0 know zlib only, and leave the bits at 0. Kafka's codec is in a batch's attributes.

LZ4 frames are made of independent blocks: RocketMQ's Java client refuses blocks that refer to
earlier ones. zlib is done by isal, whose streams are as small as those of zlib's level 5, in an
eighth of the time. Snappy comes in two ways: Kafka's Java clients write blocks in the framing of
the xerial library, the others one raw block.

    xerial   82 'SNAPPY' 00 | int32 version | int32 compatible | (int32 length, block) ...

Invariants: `unpack(pack(raw, method), method)` is `raw`; nothing unpacks to more than the limit,
whatever its bytes claim; what is cut off, or no such method, raises `CompressionError`.
"""

from enum import Enum, IntEnum, auto
from typing import cast

from isal import isal_zlib

from onelog.errors import CompressionError, UnpackedTooLargeError
from onelog.message import Buffer, Message, SysFlag


class Method(Enum):
    """How bytes are compressed."""

    ZLIB = auto()
    GZIP = auto()
    LZ4 = auto()
    ZSTD = auto()
    SNAPPY = auto()


UNPACKED_BYTES_MAX = 64 << 20
"""What a compressed body may grow to: a few kilobytes can claim to hold gigabytes."""

_WINDOWS = {Method.ZLIB: 15, Method.GZIP: 31}
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
_ZLIB_LEVEL = 1
_ZSTD_LEVEL = 3
_ZSTD_FEED_BYTES, _ZSTD_LITTLE_BYTES = 1024, 256
"""Compressed bytes taken at a time: a block of four bytes can hold 128 KiB, so that the most by
which the limit can be passed is 32 MiB, and of a low limit 8 MiB."""
_LOW_BYTES = 1 << 20

_IsalError = cast("type[Exception]", isal_zlib.IsalError)  # Its stub says it is an instance.


class Compression(IntEnum):
    """How a compressed body was compressed: bits 8 to 10 of the sysFlag."""

    UNNAMED = 0
    """What clients older than the field leave there; they all use zlib."""
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The bits of the sysFlag that tell readers of this form."""
        return SysFlag.COMPRESSED | self << 8


_METHODS: dict[int, Method] = {
    Compression.UNNAMED: Method.ZLIB,
    Compression.LZ4: Method.LZ4,
    Compression.ZSTD: Method.ZSTD,
    Compression.ZLIB: Method.ZLIB,
}


def compress(body: Buffer, form: Compression) -> bytes:
    """The body in this form, whether or not that makes it smaller."""
    return pack(body, _METHODS[form])


def decompress(body: Buffer, form: int, bytes_max: int = UNPACKED_BYTES_MAX) -> bytes:
    """What was compressed; `CompressionError` if it cannot be had from these bytes."""
    method = _METHODS.get(form)
    if method is None:
        raise CompressionError(f"the body is compressed in form {form}, which is unknown")
    return unpack(body, method, bytes_max)


def pack(raw: Buffer, method: Method) -> bytes:
    """The bytes, compressed; as one raw block with snappy."""
    # The libraries are imported when they are needed: most programs never need them.
    if method is Method.LZ4:
        import lz4.frame

        return bytes(lz4.frame.compress(raw, block_linked=False))
    if method is Method.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(raw)
    if method is Method.SNAPPY:
        from cramjam import snappy

        return bytes(snappy.compress_raw(raw))
    return isal_zlib.compress(raw, _ZLIB_LEVEL, _WINDOWS[method])


def unpack(data: Buffer, method: Method, bytes_max: int = UNPACKED_BYTES_MAX) -> bytes:
    """What was compressed; `CompressionError` if it cannot be had from these bytes."""
    if method is Method.LZ4:
        unpacked, is_whole = _from_lz4(data, bytes_max)
    elif method is Method.ZSTD:
        unpacked, is_whole = _from_zstd(data, bytes_max)
    elif method is Method.SNAPPY:
        unpacked, is_whole = _from_snappy(bytes(data), bytes_max)
    else:
        unpacked, is_whole = _from_zlib(data, bytes_max, _WINDOWS[method])
    if len(unpacked) > bytes_max:
        raise UnpackedTooLargeError(f"the compressed body is over {bytes_max} bytes")
    if not is_whole:
        raise CompressionError("the compressed body is cut off")
    return unpacked


def unpacked_body(message: Message, bytes_max: int = UNPACKED_BYTES_MAX) -> bytes:
    """The body as its sender had it; `CompressionError` if it cannot be had from these bytes."""
    if not message.sys_flag & SysFlag.COMPRESSED:
        return bytes(message.body)
    return decompress(message.body, message.sys_flag >> 8 & 7, bytes_max)


def _from_zlib(body: Buffer, bytes_max: int, window: int) -> tuple[bytes, bool]:
    inflater = isal_zlib.decompressobj(window)
    try:
        return inflater.decompress(body, bytes_max + 1), inflater.eof
    except _IsalError as error:
        raise _damaged(error) from None


def _from_lz4(body: Buffer, bytes_max: int) -> tuple[bytes, bool]:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    try:
        return bytes(inflater.decompress(body, max_length=bytes_max + 1)), bool(inflater.eof)
    except RuntimeError as error:
        raise _damaged(error) from None


def _from_zstd(body: Buffer, bytes_max: int) -> tuple[bytes, bool]:
    import zstandard

    # A window beyond the limit could only be needed by a body beyond the limit.
    inflater = zstandard.ZstdDecompressor(max_window_size=UNPACKED_BYTES_MAX).decompressobj()
    pieces: list[bytes] = []
    size = at = 0
    feed_bytes = _ZSTD_FEED_BYTES if bytes_max > _LOW_BYTES else _ZSTD_LITTLE_BYTES
    try:
        while at < len(body) and size <= bytes_max and not inflater.eof:
            pieces.append(inflater.decompress(body[at : at + feed_bytes]))
            size += len(pieces[-1])
            at += feed_bytes
    except zstandard.ZstdError as error:
        raise _damaged(error) from None
    return b"".join(pieces), inflater.eof


def _from_snappy(data: bytes, bytes_max: int) -> tuple[bytes, bool]:
    from cramjam import DecompressionError, snappy

    blocks = [data]
    if data.startswith(_XERIAL):
        blocks, at = [], _XERIAL_HEAD_BYTES
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                return b"", False
            blocks.append(data[at + 4 : end])
            at = end
    try:
        if sum(map(snappy.decompress_raw_len, blocks)) > bytes_max:
            raise UnpackedTooLargeError(f"the compressed body is over {bytes_max} bytes")
        return b"".join(bytes(snappy.decompress_raw(block)) for block in blocks), True
    except DecompressionError as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> CompressionError:
    return CompressionError(f"the body is said to be compressed, but: {error}")

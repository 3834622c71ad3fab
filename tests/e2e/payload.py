"""Bodies that prove themselves, as `Payload.java` makes and reads them."""

import random
import zlib

NUMBER_BYTES = 16
HEAD_BYTES = 24


def body(number: int, size: int = 0) -> bytes:
    """A body with a number in it: 16 hexadecimal digits, 8 of the checksum, letters."""
    filler = random.Random(number).choices(
        b"abcdefghijklmnopqrstuvwxyz", k=max(0, size - HEAD_BYTES)
    )
    head = b"%016x" % number
    return head + b"%08x" % zlib.crc32(head + bytes(filler)) + bytes(filler)


def number(body: bytes) -> int:
    """The number inside, or -1 if these are not the bytes that `body` made, here or in Java."""
    head, checksum, filler = body[:NUMBER_BYTES], body[NUMBER_BYTES:HEAD_BYTES], body[HEAD_BYTES:]
    is_right = len(checksum) == 8 and int(checksum, 16) == zlib.crc32(head + filler)
    return int(head, 16) if is_right else -1

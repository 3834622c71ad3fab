"""Batches of Kafka's that are not what they say, and the store that has them."""

import gzip
from collections.abc import Iterable, Sequence

from onelog.message import NewMessage
from onelog.record.forms import Form, kafka
from onelog.record.forms.kafka import HEAD, Codec, encode_uvarint
from onelog.record.forms.neutral import Neutral


def zigzag(number: int) -> bytes:
    """As a varint; larger ones than 64 bits, too."""
    return encode_uvarint(number << 1 if number >= 0 else -number * 2 - 1)


def record(
    number: int, value: bytes = b"v", *, time_delta: int = 0, tail: bytes = b"\0", size: int = -1
) -> bytes:
    """One record, with any headers (`tail`), and any length."""
    body = b"".join(
        (b"\0", zigzag(time_delta), zigzag(number), b"\1", zigzag(len(value)), value, tail)
    )
    return zigzag(len(body) if size < 0 else size) + body


def batch(
    records: Iterable[bytes] | bytes, count: int, *, codec: Codec = Codec.NONE, base_ms: int = 1_000
) -> bytes:
    """A batch with these records, that says it has so many; its CRC is right."""
    raw = records if isinstance(records, bytes) else b"".join(records)
    packed = gzip.compress(raw, 6) if codec == Codec.GZIP else raw
    head = HEAD.pack(
        0,
        HEAD.size - 12 + len(packed),
        0,
        2,
        0,
        codec,
        count - 1,
        base_ms,
        base_ms,
        -1,
        -1,
        -1,
        count,
    )
    return kafka.with_crc(head + packed)


def tiny(count: int, codec: Codec = Codec.GZIP) -> bytes:
    """A batch of so many empty messages."""
    return kafka.from_neutral([Neutral(None, b"", (), 1_000)] * count, codec=codec)


def stored(topic: str, data: bytes, count: int | None = None, queue_id: int = 0) -> NewMessage:
    """A record with that batch, as an older version would have stored it."""
    found = kafka.read_head(data).records if count is None else count
    return NewMessage(topic, queue_id, data, sys_flag=Form.KAFKA.sys_flag, inner_count=found)


GOOD = [record(0, b"first"), record(1, b"second"), record(2, b"third")]
"""A batch of these is a good one."""

BAD: dict[str, tuple[bytes, Sequence[bytes]]] = {
    "times-beyond-all-bounds": (
        batch(
            [record(0, b"first", time_delta=(1 << 62)), record(1, b"second")],
            2,
            base_ms=(1 << 62) + 5,
        ),
        [b"first", b"second"],
    ),
    "times-before-all": (
        batch(
            [record(0, b"first", time_delta=-(1 << 62)), record(1, b"second")],
            2,
            base_ms=-(1 << 62),
        ),
        [b"first", b"second"],
    ),
    "a-length-inside": (
        batch([GOOD[0], b"\x0e" + b"\0\0\2\1\xfe\x01v", GOOD[2]], 3),
        [b"first", b"third"],
    ),
    "a-length-of-all": (batch([GOOD[0], record(1, b"second", size=500), GOOD[2]], 3), [b"first"]),
    "a-negative-length": (
        batch([GOOD[0], record(1, b"x", size=0)[:0] + b"\x05", GOOD[2]], 3),
        [b"first"],
    ),
    "header-names-that-are-no-text": (
        batch([record(0, b"first", tail=b"\2\4\xff\xfe\2x"), GOOD[1]], 2),
        [b"first", b"second"],
    ),
    "header-values-that-are-no-text": (
        batch([record(0, b"first", tail=b"\2\2n\4\xff\xfe"), GOOD[1]], 2),
        [b"first", b"second"],
    ),
    "a-header-without-a-name": (batch([record(0, b"x", tail=b"\2\1\2x"), GOOD[1]], 2), [b"second"]),
    "headers-that-are-not-there": (
        batch([record(0, b"x", tail=b"\xc8\1"), GOOD[1]], 2),
        [b"second"],
    ),
    "a-varint-of-eleven-bytes": (
        batch([GOOD[0], b"\x20\0" + b"\xff" * 10 + b"\1\0\0\0\0", GOOD[2]], 3),
        [b"first", b"third"],
    ),
    "more-than-there-are": (batch(GOOD, 9), [b"first", b"second", b"third"]),
    "fewer-than-there-are": (batch(GOOD, 2), [b"first", b"second"]),
    "numbers-out-of-order": (batch([record(2, b"x"), record(0, b"y"), record(1, b"z")], 3), [b"x"]),
    "numbers-beyond-the-last": (batch([record(0, b"first"), record(1 << 40, b"x")], 2), [b"first"]),
}
"""Batches that are wrong inside, and what is left of them for other protocols' readers."""

LOST: dict[str, bytes] = {
    "no-gzip": batch(b"", 3, codec=Codec.NONE)[:61] + b"garbage" * 9,
    "nothing-in-it": batch(b"", 3),
    "cut-off": b"",
}
LOST["no-gzip"] = kafka.with_crc(
    HEAD.pack(0, 49 + 63, 0, 2, 0, Codec.GZIP, 2, 0, 0, -1, -1, -1, 3) + b"garbage" * 9
)
LOST["cut-off"] = kafka.with_crc(
    HEAD.pack(0, 49 + 60, 0, 2, 0, Codec.GZIP, 2, 0, 0, -1, -1, -1, 3)
    + gzip.compress(b"x" * 9)[:9]
    + bytes(51)
)
"""Batches of which nothing can be read."""

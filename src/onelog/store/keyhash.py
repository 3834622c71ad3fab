"""The hashes under which messages are indexed, many at a time.

The key is `topic#key`, hashed as Java hashes strings, and a message is indexed under its unique id
and the tokens of its KEYS. Properties of most messages look alike: in those of one length, the
unique id is at the same place. Such messages become the rows of a matrix, and a few operations on
it hash all their keys; a look at the whole tells whether the rows are as alike as they seem.

Invariant: the fast way and `message_keys` with `key_hash` find the same keys and hashes.
"""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onelog.message import KEYS, UNIQUE_KEY, java_hash, property_bytes

KEYS_NEEDLE = KEYS.encode() + b"\x01"
_UNIQUE_KEY_NEEDLE = UNIQUE_KEY.encode() + b"\x01"
_MATRIX_BYTES_MAX = 8 << 20
"""One very long key must not make all others in the matrix as long."""
_ALIKE_MIN = 32
"""As many messages of one form are worth a matrix of their own."""

Numbers = npt.NDArray[np.int64]


@functools.lru_cache(maxsize=1024)
def _powers(width: int) -> npt.NDArray[np.uint32]:
    """The powers of 31 with which the characters of a text of this length are weighted."""
    return np.array([pow(31, width - 1 - i, 1 << 32) for i in range(width)], np.uint32)


def key_hash(key: str) -> int:
    """The hash of `topic#key` without its sign; the one value that has no positive is 0."""
    return abs(java_hash(key)) & 0x7FFFFFFF


def key_hashes(keys: list[bytes]) -> Numbers:
    """`key_hash` of many strings at once.

    31 * 0 + 0 is 0, so ASCII strings padded with zero bytes in front keep their hash, and one
    matrix product with the powers of 31 hashes them all.
    """
    width = max(map(len, keys))
    padded = b"".join(keys)
    if len(padded) != width * len(keys) <= _MATRIX_BYTES_MAX:
        padded = b"".join([key.rjust(width, b"\0") for key in keys])
    if len(padded) != width * len(keys) or not padded.isascii():
        return np.array([key_hash(key.decode("utf-8", "replace")) for key in keys], np.int64)
    matrix = np.frombuffer(padded, np.uint8)
    return _without_sign(_sums(matrix.reshape(-1, width)))


def _sums(matrix: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Java's hash of each row."""
    powers = _powers(matrix.shape[1])
    sums: npt.NDArray[np.uint32] = np.einsum(
        "ij,j->i", matrix, powers, dtype=np.uint32, casting="unsafe"
    )
    return sums


def _without_sign(hashes: npt.NDArray[np.uint32]) -> Numbers:
    signed: Numbers = hashes.astype(np.int32).astype(np.int64)
    return np.abs(signed) & 0x7FFFFFFF


def message_keys(properties: bytes) -> list[bytes]:
    """The keys under which a message is indexed: its unique id, then the tokens of KEYS."""
    # The usual cases of `property_bytes`, without its call: this is done for every message.
    before, found, rest = properties.partition(_UNIQUE_KEY_NEEDLE)
    if before and found and before[-1] != 2:
        unique = property_bytes(properties, _UNIQUE_KEY_NEEDLE)
    else:
        unique = rest.partition(b"\x02")[0]
    result = [unique] if unique else []
    if properties.partition(KEYS_NEEDLE)[1]:
        keys = property_bytes(properties, KEYS_NEEDLE) or b""
        result += [key for key in keys.split(b" ") if key]
    return result


def hashes_of(topics: Sequence[str], properties: Sequence[bytes]) -> tuple[Numbers, Numbers]:
    """The hashes of all keys of messages, and the number of the message that each belongs to.

    Messages come in order; those of one message with its unique id first.
    """
    sizes = set(map(len, properties))
    if len(sizes) == 1 and sizes != {0} and len(set(topics)) == 1:
        hashes = _hashes_alike(topics[0], properties) if len(properties) >= _ALIKE_MIN else None
        if hashes is not None:
            return hashes, np.arange(len(properties))
    forms: dict[tuple[str, int], list[int]] = {}
    for number, form in enumerate(zip(topics, map(len, properties), strict=True)):
        try:
            forms[form].append(number)
        except KeyError:
            forms[form] = [number]
    found: list[tuple[Numbers, Numbers]] = []
    keys: list[bytes] = []
    owners: list[int] = []
    for (topic, size), members in forms.items():
        rows = [properties[number] for number in members]
        hashes = _hashes_alike(topic, rows) if size and len(rows) >= _ALIKE_MIN else None
        if hashes is not None:
            found.append((hashes, np.array(members, np.int64)))
        elif size:
            prefix = f"{topic}#".encode()
            for number, row in zip(members, rows, strict=True):
                several = message_keys(row)
                keys += [prefix + key for key in several]
                owners += [number] * len(several)
    if keys:
        found.append((key_hashes(keys), np.array(owners, np.int64)))
    hashes = np.concatenate([np.empty(0, np.int64), *(each for each, _ in found)])
    numbers = np.concatenate([np.empty(0, np.int64), *(each for _, each in found)])
    order = np.argsort(numbers, kind="stable")
    return hashes[order], numbers[order]


def _hashes_alike(topic: str, rows: Sequence[bytes]) -> Numbers | None:
    """Of messages with properties of one length: the hash of each one's unique id.

    None if that may not be its only key, or is not at the same place in all rows.
    """
    first = rows[0]
    size = len(first)
    at = first.find(_UNIQUE_KEY_NEEDLE)
    begin = at + len(_UNIQUE_KEY_NEEDLE)
    end = first.find(b"\x02", begin)
    end = end if end >= 0 else size
    whole = b"".join(rows)
    if (
        at < 0
        or begin == end
        or whole.count(_UNIQUE_KEY_NEEDLE) != len(rows)
        or whole.find(KEYS_NEEDLE) >= 0
        or not whole.isascii()
        or len(whole) > _MATRIX_BYTES_MAX
    ):
        return None
    matrix = np.frombuffer(whole, np.uint8).reshape(-1, size)
    # A separator before the name, if it is not the first, and one after the value.
    frame = matrix[:, [*range(max(0, at - 1), begin), *range(end, min(end + 1, size))]]
    keys = matrix[:, begin:end]
    if (frame != frame[0]).any() or (at and first[at - 1] != 2) or (keys == 2).any():
        return None
    name = f"{topic}#"
    before = java_hash(name) * pow(31, end - begin, 1 << 32) & 0xFFFFFFFF
    return _without_sign(_sums(keys) + np.uint32(before))

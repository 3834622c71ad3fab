"""The last offset of each key, for as many keys as there is room for.

Keys are known by 128 bits of a hash, 24 bytes for each: what comes is collected in columns, and put
in order when the columns are full or somebody asks.

Invariant: a message is called superseded only if a later one with the same hash was added.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

_DIGEST_BYTES = 16
_Numbers = npt.NDArray[np.uint64]


class LastOffsets:
    """Which message of each key is the last."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._digests = bytearray()
        self._offsets = array("q")
        self._high: _Numbers = np.empty(0, np.uint64)
        self._low: _Numbers = np.empty(0, np.uint64)
        self._last: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, key: bytes, offset: int) -> None:
        """A message with this key is there."""
        self._digests += _digest(key)
        self._offsets.append(offset)

    @property
    def is_full(self) -> bool:
        """Whether there are as many keys as may be."""
        if len(self._offsets) + len(self._last) >= 2 * self._keys_max:
            self._put_in_order()
        return len(self._last) >= self._keys_max

    def superseded(self, keys: Sequence[bytes], offsets: Sequence[int]) -> list[bool]:
        """Of each message with one of these keys, at these offsets, whether a later one is there.

        Where two keys share the first half of their hash, the answer may be no instead of yes.
        """
        self._put_in_order()
        if not len(self._last):
            return [False] * len(keys)
        high, low = _halves(b"".join([_digest(key) for key in keys]))
        rows = np.searchsorted(self._high, high).clip(max=len(self._last) - 1)
        is_known = (self._high[rows] == high) & (self._low[rows] == low)
        later = self._last[rows] > np.array(offsets, np.int64)
        found: list[bool] = (is_known & later).tolist()
        return found

    def _put_in_order(self) -> None:
        """Plain columns, and no copies in between: others run while numpy works on those."""
        if not self._offsets:
            return
        new_high, new_low = _halves(self._digests)
        high, low = np.concatenate([self._high, new_high]), np.concatenate([self._low, new_low])
        last = np.concatenate([self._last, np.frombuffer(self._offsets, np.int64)])
        self._digests, self._offsets = bytearray(), array("q")
        order = np.lexsort((last, low, high))
        high, low, last = high[order], low[order], last[order]
        is_last = np.append((high[1:] != high[:-1]) | (low[1:] != low[:-1]), True)
        self._high, self._low, self._last = high[is_last], low[is_last], last[is_last]


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _halves(digests: bytes | bytearray) -> tuple[_Numbers, _Numbers]:
    """The first halves of some digests, and the second ones."""
    halves = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    return halves[:, 0], halves[:, 1]

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

_DIGEST = np.dtype([("high", "<u8"), ("low", "<u8")])
_DIGEST_BYTES = _DIGEST.itemsize


class LastOffsets:
    """Which message of each key is the last."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._digests = bytearray()
        self._offsets = array("q")
        self._keys = np.empty(0, _DIGEST)
        self._last: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, key: bytes, offset: int) -> None:
        """A message with this key is there."""
        self._digests += blake2b(key, digest_size=_DIGEST_BYTES).digest()
        self._offsets.append(offset)

    @property
    def is_full(self) -> bool:
        """Whether there are as many keys as may be."""
        if len(self._offsets) + len(self._keys) >= 2 * self._keys_max:
            self._put_in_order()
        return len(self._keys) >= self._keys_max

    def superseded(self, keys: Sequence[bytes], offsets: Sequence[int]) -> list[bool]:
        """Of each message with one of these keys, at these offsets, whether a later one is there.

        Where two keys share the first half of their hash, the answer may be no instead of yes.
        """
        self._put_in_order()
        if not len(self._keys):
            return [False] * len(keys)
        digests = b"".join([blake2b(key, digest_size=_DIGEST_BYTES).digest() for key in keys])
        wanted = np.frombuffer(digests, _DIGEST)
        rows = np.searchsorted(self._keys["high"], wanted["high"]).clip(max=len(self._keys) - 1)
        is_known = self._keys[rows] == wanted
        later = self._last[rows] > np.array(offsets, np.int64)
        found: list[bool] = (is_known & later).tolist()
        return found

    def _put_in_order(self) -> None:
        if not self._offsets:
            return
        keys = np.concatenate([self._keys, np.frombuffer(bytes(self._digests), _DIGEST)])
        last = np.concatenate([self._last, np.frombuffer(self._offsets.tobytes(), np.int64)])
        self._digests, self._offsets = bytearray(), array("q")
        order = np.lexsort((last, keys["low"], keys["high"]))
        keys, last = keys[order], last[order]
        is_last = np.append(keys[1:] != keys[:-1], True)
        self._keys, self._last = keys[is_last], last[is_last]

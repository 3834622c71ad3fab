"""Patterns of words, and which of them a key matches: topic exchanges, and MQTT's subscriptions.

A key is words with a separator between them. In a pattern one sign stands for any word, and another
for any number of words, none included.

Patterns are kept word by word in a tree, which a key goes down by all ways that its words lead to,
side by side. Patterns that could be at very many places at once are not in the tree: those with
any number of words before their end, and long ones. They are rows of bits, one bit for each of
their places, and a word of the key moves all of a row in a few operations on one large number. So
the work for a key is its words times a bound that does not depend on what they are. A row has so
many places at most: to lay one out anew, when its patterns change, or to look for what has matched,
takes a time that grows with it. What a key matched is remembered until patterns change.

Invariant: `match` answers each value once, in the order in which its first pattern was added.
"""

from array import array
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

_Value = TypeVar("_Value")
REMEMBERED_MAX = 60_000
"""Keys that are remembered, and what they match."""
TREE_WORDS_MAX = 16
"""Of a pattern in the tree."""
_PLACES_MAX = 32_000
"""Of one row."""
_MASKS_BYTES_MAX = 1 << 20
"""What one row keeps of words that it was asked for."""


class _Node(Generic[_Value]):
    """A place in the tree: what follows by word, and the values of patterns that end here."""

    __slots__ = ("any_number", "any_word", "values", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node[_Value]] = {}
        self.any_word: _Node[_Value] | None = None
        self.any_number: _Node[_Value] | None = None
        self.values: dict[_Value, int] = {}
        """And how often each was added, by a number that grows: the order of the answer."""

    @property
    def is_empty(self) -> bool:
        return not (self.words or self.any_word or self.any_number or self.values)


class _Row(Generic[_Value]):
    """Patterns side by side: bit n of a number stands for place n of all their places.

    Before each word of a pattern is a place, and one behind the last. A place moves on to the next
    one with a word that fits; a place before any number of words stays, and is the next one, too.
    """

    def __init__(self) -> None:
        self.patterns: dict[tuple[str, ...], dict[_Value, int]] = {}
        self._ends: dict[int, tuple[str, ...]] = {}
        self._at: dict[str, array[int]] = {}
        """The places before each word,"""
        self._masks: dict[str, int] = {}
        """and the same as bits, for words that were asked for."""
        self._masks_bytes = 0
        self._size = 0
        self._starts = self._many = self._one = self._finals = 0
        self._is_stale = False
        self._end_of: dict[tuple[str, ...], int] = {}
        self._places = self._living = 0
        """How many there are, and how many of them are of patterns that are still there."""

    def has_room(self, words: tuple[str, ...]) -> bool:
        """Whether one more pattern fits."""
        return not self._places or self._places + len(words) < _PLACES_MAX

    def values_of(self, words: tuple[str, ...]) -> dict[_Value, int]:
        """Those of a pattern, which is there from now on."""
        values = self.patterns.get(words)
        if values is None:
            values = self.patterns[words] = {}
            self._places += len(words) + 1
            self._living += len(words) + 1
            self._is_stale = True
        return values

    def drop(self, words: tuple[str, ...]) -> None:
        """A pattern is gone; its places are left until they are too many."""
        del self.patterns[words]
        self._living -= len(words) + 1
        if self._living < self._places // 4:
            self._is_stale = True
        elif not self._is_stale:
            bit = self._end_of.pop(words)
            del self._ends[bit]
            self._finals ^= 1 << bit

    def lay_out(self, one: str, many: str) -> None:
        """Give each word of each pattern its place."""
        self._is_stale = False
        self._places = self._living
        self._at, self._masks, self._masks_bytes, self._ends = {}, {}, 0, {}
        starts, at = array("I"), self._at
        bit = 0
        for words in self.patterns:
            starts.append(bit)
            for place, word in enumerate(words, bit):
                places = at.get(word)
                if places is None:
                    places = at[word] = array("I")
                places.append(place)
            bit += len(words)
            self._ends[bit] = words
            bit += 1
        self._end_of = {words: end for end, words in self._ends.items()}
        self._size = bit // 8 + 1
        self._starts, self._finals = self._bits(starts), self._bits(array("I", self._ends))
        self._one = self._bits(at.pop(one, starts[:0]))
        self._many = self._bits(at.pop(many, starts[:0]))

    def _bits(self, places: "array[int]") -> int:
        row = np.zeros(self._size * 8, np.uint8)
        if places:
            row[np.frombuffer(places, np.uint32)] = 1
        return int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")

    def _mask(self, word: str) -> int:
        mask = self._masks.get(word)
        if mask is None:
            at = self._at.get(word)
            mask = self._one if at is None else self._one | self._bits(at)
            if at is not None:
                if self._masks_bytes > _MASKS_BYTES_MAX:
                    self._masks, self._masks_bytes = {}, 0
                self._masks[word] = mask
                self._masks_bytes += self._size
        return mask

    def find(self, words: Sequence[str], one: str, many: str) -> list[dict[_Value, int]]:
        """The values of the patterns that a key matches, and their order."""
        if self._is_stale:
            self.lay_out(one, many)
        stays = self._many
        places = self._starts
        places |= (places & stays) << 1
        for word in words:
            places = (places & self._mask(word)) << 1 | places & stays
            places |= (places & stays) << 1
            if not places:
                return []
        found: list[dict[_Value, int]] = []
        places &= self._finals
        while places:
            bit = places.bit_length() - 1
            found.append(self.patterns[self._ends[bit]])
            places ^= 1 << bit
        return found


class TopicTrie(Generic[_Value]):
    """Values by pattern. A value may have many patterns, and a pattern many values."""

    def __init__(self, separator: str = ".", one: str = "*", many: str = "#") -> None:
        self._separator, self._one, self._many = separator, one, many
        self._root: _Node[_Value] = _Node()
        self._rows: list[_Row[_Value]] = []
        self._row_of: dict[tuple[str, ...], _Row[_Value]] = {}
        self._cached: dict[str, tuple[_Value, ...]] = {}
        self._remembered = 0
        self._added = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: str, value: _Value) -> bool:
        """Add a value under a pattern; False if it is there already."""
        words = self._words(pattern)
        if self._is_wide(words):
            values = self._row(words).values_of(words)
        else:
            node = self._root
            for word in words:
                node = self._step(node, word)
            values = node.values
        if value in values:
            return False
        self._added += 1
        self._count += 1
        values[value] = self._added
        self._cached.clear()
        return True

    def _row(self, words: tuple[str, ...]) -> _Row[_Value]:
        """Where a pattern is, or is to be."""
        row = self._row_of.get(words)
        if row is None:
            if not self._rows or not self._rows[-1].has_room(words):
                if self._rows:  # One at a time has to be laid out anew when a key is looked for.
                    self._rows[-1].lay_out(self._one, self._many)
                self._rows.append(_Row())
            row = self._row_of[words] = self._rows[-1]
        return row

    def _is_wide(self, words: tuple[str, ...]) -> bool:
        """Whether a pattern can be at more than a few places at once."""
        return len(words) > TREE_WORDS_MAX or self._many in words[:-1]

    def remove(self, pattern: str, value: _Value) -> bool:
        """Take a value away from a pattern; False if it is not there."""
        words = self._words(pattern)
        if self._is_wide(words):
            return self._remove_wide(words, value)
        path: list[tuple[_Node[_Value], str]] = []
        node = self._root
        for word in words:
            path.append((node, word))
            following = self._follow(node, word)
            if following is None:
                return False
            node = following
        if node.values.pop(value, None) is None:
            return False
        self._count -= 1
        self._cached.clear()
        while path and node.is_empty:
            node, word = path.pop()
            if word == self._one:
                node.any_word = None
            elif word == self._many:
                node.any_number = None
            else:
                del node.words[word]
        return True

    def _remove_wide(self, words: tuple[str, ...], value: _Value) -> bool:
        row = self._row_of.get(words)
        if row is None or row.patterns[words].pop(value, None) is None:
            return False
        if not row.patterns[words]:
            row.drop(words)
            del self._row_of[words]
            if not row.patterns:
                self._rows.remove(row)
        self._count -= 1
        self._cached.clear()
        return True

    def match(self, key: str) -> tuple[_Value, ...]:
        """The values of all patterns that a key matches."""
        found = self._cached.get(key)
        if found is None:
            found = self.find(key)
            self._remembered += 1 + len(found)
            if self._remembered > REMEMBERED_MAX:
                self._cached.clear()
                self._remembered = 1 + len(found)
            self._cached[key] = found
        return found

    def find(self, key: str) -> tuple[_Value, ...]:
        """`match`, of a key that is not worth remembering."""
        words = key.split(self._separator)
        matching: list[dict[_Value, int]] = []
        for row in self._rows:
            matching += row.find(words, self._one, self._many)
        places = [self._root]
        for word in words:
            reached: list[_Node[_Value]] = []
            for node in places:
                if node.any_number is not None:  # Which is the end of its patterns.
                    matching.append(node.any_number.values)
                if (following := node.words.get(word)) is not None:
                    reached.append(following)
                if (following := node.any_word) is not None:
                    reached.append(following)
            places = reached
            if not places:
                break
        for node in places:
            if node.values:
                matching.append(node.values)
            if node.any_number is not None:
                matching.append(node.any_number.values)
        if len(matching) == 1:
            return tuple(matching[0])
        first: dict[_Value, int] = {}
        for values in matching:
            for value, order in values.items():
                first[value] = min(order, first.get(value, order))
        return tuple(sorted(first, key=first.__getitem__))

    def _words(self, pattern: str) -> tuple[str, ...]:
        """The words of a pattern; any number twice is the same as once."""
        words: list[str] = []
        for word in pattern.split(self._separator):
            if word != self._many or words[-1:] != [word]:
                words.append(word)
        return tuple(words)

    def _step(self, node: "_Node[_Value]", word: str) -> "_Node[_Value]":
        following = self._follow(node, word)
        if following is None:
            following = _Node()
            if word == self._one:
                node.any_word = following
            elif word == self._many:
                node.any_number = following
            else:
                node.words[word] = following
        return following

    def _follow(self, node: "_Node[_Value]", word: str) -> "_Node[_Value] | None":
        if word == self._one:
            return node.any_word
        return node.any_number if word == self._many else node.words.get(word)

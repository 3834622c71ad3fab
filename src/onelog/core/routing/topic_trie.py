"""Patterns of words, and which of them a key matches: topic exchanges, and MQTT's subscriptions.

A key is words with a separator between them. In a pattern one sign stands for any word, and another
for any number of words, none included.

Patterns are kept word by word in a tree. A key is matched by all places of the tree that its words
lead to, side by side, so that no pattern makes it try twice: the work is at most the words times
the places that are reached. What a key matched is remembered until patterns change.

Invariant: `match` answers each value once, in the order in which its first pattern was added.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

_Value = TypeVar("_Value")
CACHED_MAX = 20_000
"""Keys whose matches are remembered."""


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


class TopicTrie(Generic[_Value]):
    """Values by pattern. A value may have many patterns, and a pattern many values."""

    def __init__(self, separator: str = ".", one: str = "*", many: str = "#") -> None:
        self._separator, self._one, self._many = separator, one, many
        self._root: _Node[_Value] = _Node()
        self._cached: dict[str, tuple[_Value, ...]] = {}
        self._added = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: str, value: _Value) -> bool:
        """Add a value under a pattern; False if it is there already."""
        node = self._root
        for word in self._words(pattern):
            node = self._step(node, word)
        if value in node.values:
            return False
        self._added += 1
        self._count += 1
        node.values[value] = self._added
        self._cached.clear()
        return True

    def remove(self, pattern: str, value: _Value) -> bool:
        """Take a value away from a pattern; False if it is not there."""
        path: list[tuple[_Node[_Value], str]] = []
        node = self._root
        for word in self._words(pattern):
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

    def match(self, key: str) -> tuple[_Value, ...]:
        """The values of all patterns that a key matches."""
        found = self._cached.get(key)
        if found is None:
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            found = self._cached[key] = self._find(key)
        return found

    def _find(self, key: str) -> tuple[_Value, ...]:
        places: dict[_Node[_Value], bool] = {}
        self._enter(self._root, places)
        for word in key.split(self._separator):
            reached: dict[_Node[_Value], bool] = {}
            for node, stays in places.items():
                if stays:
                    reached[node] = True
                if (following := node.words.get(word)) is not None:
                    self._enter(following, reached)
                if (following := node.any_word) is not None:
                    self._enter(following, reached)
            places = reached
            if not places:
                return ()
        matching = [node.values for node in places if node.values]
        if len(matching) == 1:
            return tuple(matching[0])
        first: dict[_Value, int] = {}
        for values in matching:
            for value, order in values.items():
                first[value] = min(order, first.get(value, order))
        return tuple(sorted(first, key=first.__getitem__))

    @staticmethod
    def _enter(node: "_Node[_Value]", places: "dict[_Node[_Value], bool]") -> None:
        """Be at a place, and at the one behind it for any number of words: none is enough.

        There one stays, whatever word comes next.
        """
        places.setdefault(node, False)
        if node.any_number is not None:
            places[node.any_number] = True

    def _words(self, pattern: str) -> Iterator[str]:
        """The words of a pattern; any number twice is the same as once."""
        before = ""
        for word in pattern.split(self._separator):
            if word != self._many or before != word:
                yield word
            before = word

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

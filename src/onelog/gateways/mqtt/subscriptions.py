"""The subscriptions of one client, and what they grant for a topic.

Overlapping filters make one delivery: with the highest QoS of those that match, and all their
identifiers. What a topic is granted is remembered, and forgotten when subscriptions change.
"""

from typing import NamedTuple

from onelog.core.routing.topic_trie import TopicTrie
from onelog.gateways.mqtt.filters import Filter
from onelog.gateways.mqtt.outgoing import Grant

NO_LOCAL = 4
RETAIN_AS_PUBLISHED = 8
GRANTS_MAX = 256
FEW = 32
"""Filters of a client that are looked at one by one; of more, a tree finds those that match."""


class Subscribed(NamedTuple):
    """A filter, and how its messages are to come."""

    filter: Filter
    options: int
    identifier: int

    @property
    def qos(self) -> int:
        """The highest QoS of its messages."""
        return self.options & 3

    @property
    def grant(self) -> Grant:
        ids = (self.identifier,) if self.identifier else ()
        keeps = bool(self.options & RETAIN_AS_PUBLISHED)
        return Grant(self.qos, keeps, ids, not keeps and not ids)


class Subscriptions:
    """All of one client, by the text of their filters."""

    __slots__ = ("_name", "_no_locals", "_tree", "by_filter", "grants", "has_no_local")

    def __init__(self, client_id: str) -> None:
        self._name = client_id.encode()
        self.by_filter: dict[str, Subscribed] = {}
        self.grants: dict[bytes, Grant | None] = {}
        """What topics were granted, unless their publisher matters."""
        self._no_locals = 0
        self.has_no_local = False
        self._tree: TopicTrie[str] | None = None

    def set(self, text: str, subscribed: Subscribed) -> bool:
        """Add or replace one; whether it is new."""
        before = self.by_filter.get(text)
        self.by_filter[text] = subscribed
        self._changed(before, subscribed)
        if self._tree is None and len(self.by_filter) > FEW:
            self._tree = TopicTrie("/", "+", "#")
            for known, each in self.by_filter.items():
                self._plant(known, each)
        else:
            self._plant(text, subscribed)
        return before is None

    def drop(self, text: str) -> Subscribed | None:
        subscribed = self.by_filter.pop(text, None)
        self._changed(subscribed, None)
        if self._tree is not None and subscribed is not None and not subscribed.filter.group:
            self._tree.remove(subscribed.filter.text, text)
        return subscribed

    def _plant(self, text: str, subscribed: Subscribed) -> None:
        if self._tree is not None and not subscribed.filter.group:
            self._tree.add(subscribed.filter.text, text)

    def _changed(self, before: Subscribed | None, after: Subscribed | None) -> None:
        self.grants = {}
        self._no_locals += bool(after is not None and after.options & NO_LOCAL)
        self._no_locals -= bool(before is not None and before.options & NO_LOCAL)
        self.has_no_local = self._no_locals > 0

    def grant(self, topic: bytes, publisher: bytes) -> Grant | None:
        """What the filters that are not shared grant for a topic; None if none matches."""
        if self.has_no_local and publisher == self._name:
            return self._matched(topic, NO_LOCAL)
        try:
            return self.grants[topic]
        except KeyError:
            if len(self.grants) >= GRANTS_MAX:
                self.grants = {}
            grant = self.grants[topic] = self._matched(topic, 0)
            return grant

    def _matched(self, topic: bytes, without: int) -> Grant | None:
        name, known = topic.decode("utf-8", "replace"), self.by_filter
        if self._tree is None:
            levels = name.split("/")
            found = [
                each
                for each in known.values()
                if not each.filter.group and each.filter.matches(levels)
            ]
        else:
            found = list(map(known.__getitem__, self._tree.find(name)))
            if name[:1] == "$":
                found = [each for each in found if each.filter.levels[0] not in ("+", "#")]
        if without:
            found = [each for each in found if not each.options & without]
        if not found:
            return None
        ids = tuple(each.identifier for each in found if each.identifier)
        keeps = any(each.options & RETAIN_AS_PUBLISHED for each in found)
        return Grant(max(each.qos for each in found), keeps, ids, not keeps and not ids)

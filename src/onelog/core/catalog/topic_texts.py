"""Texts by name; for each of some topics, kept for as long as the topic lives.

table     "placements", "schemas": {topic: text}, "kafka_settings": {what they are of: text}
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.durable.tables import Tables, in_parts


class Texts:
    """One table of them."""

    def __init__(self, name: str, tables: Tables) -> None:
        self.name = name
        self._tables = tables
        self._known: dict[str, str] = {}
        self.on_change: list[Callable[[str], None]] = []
        """Called with a name whose text was put or taken away."""

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._known.pop(key, None)
        else:
            self._known[key] = msgspec.convert(value, str)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every text; some at a time."""
        return map(dict, in_parts(self._known))

    def get(self, name: str) -> str | None:
        """The text of a name, if it has one."""
        return self._known.get(name)

    def all(self) -> dict[str, str]:
        """Every text, by name."""
        return dict(self._known)

    def put(self, name: str, text: str | None) -> None:
        """Give a name a text, or take it away."""
        if self._known.get(name) != text:
            self._tables.write([(self.name, name, text)])
            for listener in self.on_change:
                listener(name)


class TopicTexts(Texts):
    """A table of texts of topics."""

    def __init__(self, name: str, tables: Tables, topics: Topics) -> None:
        super().__init__(name, tables)
        topics.on_change.append(self._topic_changed)

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if config is None:
            self.put(name, None)

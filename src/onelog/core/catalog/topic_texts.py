"""A text for each of some topics, kept for as long as the topic lives.

table     "placements", "schemas": {topic: text}
"""

from collections.abc import Iterator
from typing import Any

from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.durable.tables import Tables, in_parts


class TopicTexts:
    """One table of them."""

    def __init__(self, name: str, tables: Tables, topics: Topics) -> None:
        self.name = name
        self._tables = tables
        self._known: dict[str, str] = {}
        topics.on_change.append(self._topic_changed)

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._known.pop(key, None)
        else:
            self._known[key] = value

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every text; some at a time."""
        return map(dict, in_parts(self._known))

    def get(self, topic: str) -> str | None:
        """The text of a topic, if it has one."""
        return self._known.get(topic)

    def all(self) -> dict[str, str]:
        """Every text, by topic."""
        return dict(self._known)

    def put(self, topic: str, text: str | None) -> None:
        """Give a topic a text, or take it away."""
        if self._known.get(topic) != text:
            self._tables.write([(self.name, topic, text)])

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if config is None:
            self.put(name, None)

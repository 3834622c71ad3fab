"""What groups note beside their positions: a word of their own, and the leader's epoch.

    table     "offset_notes": {topic@group: {queue id: [epoch, text]}}; an entry names only the
              queues that changed, so applying merges

Invariant: a queue without a note has `NO_NOTE`, and takes no room.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from onelog.core.catalog.groups import GroupConfig, Groups
from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.durable.tables import Change, Tables, in_parts
from onelog.names import join_key, split_key


class Note(NamedTuple):
    """What was said of a position."""

    epoch: int = -1
    text: str = ""


NO_NOTE = Note()


class OffsetNotes:
    """The notes of all groups."""

    name = "offset_notes"

    def __init__(self, tables: Tables, topics: Topics, groups: Groups) -> None:
        self._tables = tables
        self._notes: dict[tuple[str, str], dict[int, Note]] = {}
        topics.on_change.append(self._topic_changed)
        groups.on_change.append(self._group_changed)

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        topic, group = split_key(key)
        if value is None:
            self._notes.pop((group, topic), None)
            return
        notes = self._notes.setdefault((group, topic), {})
        for queue_id, (epoch, text) in value.items():
            notes[int(queue_id)] = Note(epoch, text)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every note; some at a time."""
        for part in in_parts(self._notes):
            yield {
                join_key(topic, group): {each: list(note) for each, note in notes.items()}
                for (group, topic), notes in part
            }

    def get(self, group: str, topic: str, queue_id: int) -> Note:
        """What the group noted when it committed its position."""
        return self._notes.get((group, topic), {}).get(queue_id, NO_NOTE)

    def changes(self, group: str, topic: str, notes: Mapping[int, Note]) -> list[Change]:
        """What has to be recorded, if anything, for the group to have these notes."""
        changed = {
            str(queue_id): list(note)
            for queue_id, note in notes.items()
            if self.get(group, topic, queue_id) != note
        }
        return [(self.name, join_key(topic, group), changed)] if changed else []

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if config is None:
            self._forget([cursor for cursor in self._notes if cursor[1] == name])

    def _group_changed(self, name: str, config: GroupConfig | None) -> None:
        if config is None:
            self._forget([cursor for cursor in self._notes if cursor[0] == name])

    def _forget(self, cursors: list[tuple[str, str]]) -> None:
        self._tables.write([(self.name, join_key(topic, group), None) for group, topic in cursors])

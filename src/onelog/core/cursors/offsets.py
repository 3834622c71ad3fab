"""Cursors: how far each group has consumed each queue.

A commit changes memory only; every few seconds, and at close, what has changed since is written as
one durable record. A crash loses the commits of those seconds, and the messages come again: that is
the at-least-once that every group lives with.

    table entry   key "topic@group" (see `names`), value {queue id: offset}; an entry names
                  only the queues that changed, so applying merges

Invariant: `_positions` = the recorded table, with `_dirty` on top.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from onelog.core.durable.tables import PART_ENTRIES, Change, Tables, in_parts
from onelog.errors import MessageError
from onelog.message import QUEUE_ID_MAX
from onelog.names import VIEW_TOPICS, join_key, split_key
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

Cursor = tuple[str, str]
"""A group and a topic."""
ChangeListener = Callable[[str, str, Mapping[int, int] | None], None]
"""Called with a group, a topic, and where the group is from now on; None if that is forgotten."""
MoveListener = Callable[[str, str, Mapping[int, int]], None]
"""Called with a group, a topic and where the group is now."""


REMOTE_QUEUES = QUEUE_ID_MAX + 1
"""Behind all queues of this broker: the position in a partition that another broker has is kept as
that in the queue of this number and the partition's."""


def cursor_key(group: str, topic: str) -> str:
    """The table's key of a cursor, as RocketMQ's consumerOffset.json has it too."""
    return join_key(topic, group)


class Offsets:
    """The cursors of all groups."""

    name = "offsets"

    def __init__(self, tables: Tables, store: MessageStore, memory_bytes: int) -> None:
        self._tables = tables
        self._store = store
        self._near_bytes = memory_bytes * 4 // 10
        self._positions: dict[Cursor, dict[int, int]] = {}
        self._dirty: dict[Cursor, set[int]] = {}
        self._passing: list[Cursor] = []
        """What of that is being recorded, part by part."""
        self._resets: dict[Cursor, dict[int, int]] = {}
        self._pulled: dict[Cursor, dict[int, int]] = {}
        self.on_change: list[ChangeListener] = []
        """Called when positions were recorded."""
        self.on_move: list[MoveListener] = []
        """Called with a group, a topic and the new positions, after somebody corrected them."""

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        topic, group = split_key(key)
        changed: dict[int, int] | None = None
        if value is None:
            self._positions.pop((group, topic), None)
        else:
            changed = msgspec.convert(value, dict[int, int], str_keys=True)
            self._positions.setdefault((group, topic), {}).update(changed)
        for listener in self.on_change:
            listener(group, topic, changed)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every cursor, committed a moment ago or long recorded; some at a time."""
        for part in in_parts(self._positions):
            yield {cursor_key(*cursor): queues for cursor, queues in part}

    def come_back(self) -> None:
        """Put positions that are behind their queue's end there; after everything is remembered.

        A loss of power can take the end of the log and leave the positions. New messages would get
        the offsets that these groups have passed.
        """
        changes: list[Change] = []
        for (group, topic), queues in self._positions.items():
            ends = {
                queue_id: int(self._store.max_offset(topic, queue_id))
                for queue_id in queues
                if queue_id < REMOTE_QUEUES and topic not in VIEW_TOPICS
            }
            beyond = {each: end for each, end in ends.items() if queues[each] > end}
            if beyond:
                log.warning(
                    "group %s was ahead of queues of topic %s, whose last messages were lost in a "
                    "crash: it goes on at their ends (queue: offset) %s",
                    group,
                    topic,
                    beyond,
                )
                changes.append((self.name, cursor_key(group, topic), beyond))
        self._tables.write(changes)

    # -- committing ----------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group has consumed everything below `offset`.

        Ignored while the group is yet to be sent elsewhere: the commit is from before that.
        """
        cursor = (group, topic)
        if self._resets and queue_id in self._resets.get(cursor, ()):
            return
        queues = self._positions.get(cursor)
        if queues is None:
            queues = self._positions[cursor] = {}
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            dirty = self._dirty.get(cursor)
            if dirty is None:
                dirty = self._dirty[cursor] = set()
            dirty.add(queue_id)

    def committing(self, group: str, positions: Mapping[str, Mapping[int, int]]) -> list[Change]:
        """The changes that commit positions; the caller records them."""
        self._flush([(group, topic) for topic in positions])  # What was committed before.
        return [
            (self.name, cursor_key(group, topic), dict(queues))
            for topic, queues in positions.items()
            if queues
        ]

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """Forget the group's position in one queue."""
        queues = self.of(group, topic)
        if queues.pop(queue_id, None) is None:
            return
        key = cursor_key(group, topic)
        changes = self.removal(group=group, topic=topic)
        self._tables.write([*changes, (self.name, key, queues)] if queues else changes)

    def pulled(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """The group has been given everything below `next_offset`; in memory only."""
        queues = self._pulled.get((group, topic))
        if queues is None:
            queues = self._pulled[group, topic] = {}
        queues[queue_id] = next_offset

    def flush(self) -> None:
        """Record what was committed since the last time. If that fails, it stays to be recorded."""
        self._passing = []
        while self.flush_some():
            pass

    def flush_some(self) -> bool:
        """Record a part of it; whether there is more that was committed before the first part."""
        if not self._passing:
            self._passing = list(self._dirty)
        some, self._passing = self._passing[:PART_ENTRIES], self._passing[PART_ENTRIES:]
        self._flush(some)
        return bool(self._passing)

    def _flush(self, cursors: Iterable[Cursor]) -> None:
        some = [cursor for cursor in dict.fromkeys(cursors) if cursor in self._dirty]
        changes: list[Change] = []
        for cursor in some:
            positions = self._positions[cursor]
            queues = {queue_id: positions[queue_id] for queue_id in sorted(self._dirty[cursor])}
            changes.append((self.name, cursor_key(*cursor), queues))
        try:
            self._tables.write(changes)
        except MessageError:
            self._flush_one_by_one(changes)
        for cursor in some:
            del self._dirty[cursor]

    def _flush_one_by_one(self, changes: list[Change]) -> None:
        """One cannot be recorded, such as 1,000 queues in a segment of 4 KiB: record the others.

        That one is in memory and in the next snapshot.
        """
        for change in changes:
            try:
                self._tables.write([change])
            except MessageError as error:
                log.error("the position of %s cannot be recorded: %s", change[1], error)

    # -- asking --------------------------------------------------------------------------------

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group is: where it was reset to, else what it committed."""
        cursor = (group, topic)
        if self._resets and (resets := self._resets.get(cursor)) is not None:
            offset = resets.get(queue_id)
            if offset is not None:
                return offset
        queues = self._positions.get(cursor)
        return None if queues is None else queues.get(queue_id)

    def query(
        self, group: str, topic: str, queue_id: int, *, zero_if_missing: bool = True
    ) -> int | None:
        """Where a starting consumer should go on; None leaves that to its own settings.

        A group without a position starts at 0 while the queue's first message is still there and
        recent (within 40 % of the memory of the log's end): a young topic is consumed from its
        start, whatever the consumer's settings say. That is RocketMQ's rule, and people rely on it.
        """
        offset = self.get(group, topic, queue_id)
        if offset is not None:
            return offset
        if zero_if_missing and self._store.min_offset(topic, queue_id) <= 0:
            first = next(iter(self._store.entries(topic, queue_id, 0, 1)), None)
            if first is not None and self._store.log_end - first[0] <= self._near_bytes:
                return 0
        return None

    def pulled_up_to(self, group: str, topic: str, queue_id: int) -> int | None:
        """The end of what the group was given last."""
        return self._pulled.get((group, topic), {}).get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """The group's position in each queue of the topic."""
        return dict(self._positions.get((group, topic), {}))

    def topics_of(self, group: str) -> list[str]:
        """The topics in which the group has a position."""
        return [topic for owner, topic in list(self._positions) if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """The groups with a position in the topic."""
        return [group for group, subject in list(self._positions) if subject == topic]

    def topics_by_group(self) -> dict[str, list[str]]:
        """The topics in which each group has a position."""
        found: dict[str, list[str]] = {}
        for group, topic in list(self._positions):
            found.setdefault(group, []).append(topic)
        return found

    def in_parts(self) -> Iterator[list[tuple[Cursor, dict[int, int]]]]:
        """Every position; some at a time."""
        return in_parts(self._positions)

    def all(self) -> dict[Cursor, dict[int, int]]:
        """Every position."""
        return {cursor: dict(queues) for cursor, queues in list(self._positions.items())}

    # -- correcting ----------------------------------------------------------------------------

    def reset(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        """Move the group, recorded at once; its next pull of each queue is sent there."""
        # Behind the commits that it follows upon.
        self._flush([(group, topic)])
        self._tables.write([(self.name, cursor_key(group, topic), dict(positions))])
        self._resets.setdefault((group, topic), {}).update(positions)
        for listener in self.on_move:
            listener(group, topic, positions)

    @property
    def has_resets(self) -> bool:
        """Whether any group is yet to be sent to a new position."""
        return bool(self._resets)

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the group is yet to be sent to a new position in this queue."""
        return queue_id in self._resets.get((group, topic), ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The position to send this pull to, once."""
        queues = self._resets.get((group, topic))
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[group, topic]
        return offset

    def clone(self, source: str, target: str, topic: str) -> None:
        """Put one group where another is, in every queue of the topic."""
        queues = self._positions.get((source, topic))
        if queues is not None:
            key = cursor_key(target, topic)
            self._flush([(source, topic), (target, topic)])
            self._tables.write([(self.name, key, None), (self.name, key, dict(queues))])
            for listener in self.on_move:
                listener(target, topic, self.of(target, topic))

    def removal(self, *, group: str | None = None, topic: str | None = None) -> list[Change]:
        """The changes that forget a group's or a topic's positions; the caller records them."""
        gone = [
            cursor
            for cursor in self._positions
            if (group is None or cursor[0] == group) and (topic is None or cursor[1] == topic)
        ]
        self._flush(gone)
        for cursor in gone:
            self._resets.pop(cursor, None)
            self._pulled.pop(cursor, None)
        return [(self.name, cursor_key(*cursor), None) for cursor in gone]


def machine_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""Where queues begin, if somebody had their first messages deleted.

    table     "queue_starts": {topic@queue id: offset}

The messages stay in the log until their segment goes. Invariant: a queue begins there or behind.
"""

from collections.abc import Iterator
from typing import Any

from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.durable.tables import Tables, in_parts
from onelog.errors import OffsetOutOfRangeError
from onelog.names import join_key, split_key
from onelog.store.message_store import MessageStore


class QueueStarts:
    """The table of queues that begin later than their first message."""

    name = "queue_starts"

    def __init__(self, tables: Tables, store: MessageStore, topics: Topics) -> None:
        self._tables = tables
        self._store = store
        self._starts: dict[str, int] = {}
        topics.on_change.append(self._topic_changed)

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._starts.pop(key, None)
            return
        self._starts[key] = value
        topic, queue_id = split_key(key)
        queue = self._store.queue_table.find(topic, int(queue_id))
        if queue is not None:
            # The end of the log may have been lost since.
            queue.begin_at(min(value, queue.end), lambda path: path.unlink(missing_ok=True))

        if (topic, int(queue_id)) in self._store.carried:
            start, end = self._store.carried[topic, int(queue_id)]
            self._store.carried[topic, int(queue_id)] = (max(start, value), end)

    def of(self, topic: str, queue_id: int) -> int:
        """Where somebody had a queue begin, 0 if nobody did."""
        return self._starts.get(join_key(topic, str(queue_id)), 0)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every such queue."""
        return map(dict, in_parts(self._starts))

    def delete_before(self, topic: str, queue_id: int, offset: int) -> int:
        """Let a queue begin at an offset, -1 for its end; where it begins then."""
        end = self._store.max_offset(topic, queue_id)
        start = self._store.min_offset(topic, queue_id)
        offset = end if offset == -1 else offset
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(f"offset {offset} is not in {start} to {end}")
        if offset > start:
            self._tables.write([(self.name, join_key(topic, str(queue_id)), offset)])
        return offset

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if config is None:
            gone = [key for key in self._starts if split_key(key)[0] == name]
            self._tables.write([(self.name, key, None) for key in gone])

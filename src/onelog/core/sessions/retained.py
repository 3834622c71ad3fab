"""Retained messages: the last one of each topic, for whoever subscribes later.

    table     "retained": {topic: record body in base64}

The body is of MQTT's form. Topics are a tree of their levels, in which a filter with wildcards
finds its own without looking at the others. Changes are recorded with the tick that they came in.

Invariants: what is here is what was retained last; `bytes` are at most `bytes_max`.
"""

import base64
from collections.abc import Iterator
from typing import Any

from onelog.core.durable.storage import Storage
from onelog.core.durable.tables import in_parts
from onelog.core.sessions.tick_records import OnRecorded, TickRecords
from onelog.errors import BrokerBusyError

BYTES_MAX = 256 << 20
_ENTRY_BYTES = 200
"""What a retained message costs besides its bytes."""
_Node = dict[str, Any]
"""What follows by level; under the empty key of three slashes, which no level is, the topic."""
_HERE = "///"
_STEPS = 100


class Retained:
    """The retained messages of this broker."""

    name = "retained"

    def __init__(self, storage: Storage, bytes_max: int = BYTES_MAX) -> None:
        self._records = TickRecords(storage)
        self._bytes_max = bytes_max
        self._bodies: dict[str, bytes] = {}
        self._tree: _Node = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    # -- the table -----------------------------------------------------------------------------

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        self._set(key, None if value is None else base64.b64decode(value))

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every retained message; some at a time."""
        for part in in_parts(self._bodies):
            yield {topic: base64.b64encode(body).decode() for topic, body in part}

    # -- for gateways --------------------------------------------------------------------------

    def retain(self, topic: str, body: bytes | None, on_recorded: OnRecorded) -> None:
        """Keep a topic's last message, or with None none; `on_recorded` when that is written."""
        if body is not None and self.bytes + len(body) > self._bytes_max:
            raise BrokerBusyError(f"retained messages have {self.bytes} bytes: no more are kept")
        if body is None and topic not in self._bodies:
            on_recorded(None)
            return
        self._set(topic, body)
        value = None if body is None else base64.b64encode(body).decode()
        self._records.put((self.name, topic, value), on_recorded)

    def find(self, topic: str) -> bytes | None:
        return self._bodies.get(topic)

    def matching(self, levels: list[str]) -> Iterator[bytes | None]:
        """What is retained of the topics that a filter of these levels matches.

        May be left at any point, and gone on with while others change what is there: there is a
        None now and then where it looks for long.
        """
        if "+" not in levels and "#" not in levels:
            body = self._bodies.get("/".join(levels))
            return iter(() if body is None else (body,))
        return self._walk(levels)

    def _walk(self, levels: list[str]) -> Iterator[bytes | None]:
        found: list[tuple[_Node, int]] = [(self._tree, 0)]
        opened: list[tuple[_Node, Iterator[str], int]] = []
        """Nodes of which all that follows is looked at, by which level of the filter."""
        steps = 0
        while found or opened:
            steps += 1
            if not steps % _STEPS:
                yield None
            if not found:
                node, following, at = opened[-1]
                level = next(following, None)
                if level is None:
                    opened.pop()
                elif (
                    level != _HERE
                    and level in node
                    and (node is not self._tree or level[:1] != "$")
                ):
                    found.append((node[level], at))
                continue
            node, at = found.pop()
            wanted = levels[at] if at < len(levels) else ""
            if (at == len(levels) or wanted == "#") and _HERE in node:
                body = self._bodies.get(node[_HERE])
                if body is not None:
                    yield body
            if wanted in ("#", "+"):
                opened.append((node, iter([*node]), at + (wanted == "+")))
            elif at < len(levels) and wanted in node:
                found.append((node[wanted], at + 1))

    def _set(self, topic: str, body: bytes | None) -> None:
        old = self._bodies.get(topic)
        if old is not None:
            self.bytes -= len(old) + _ENTRY_BYTES
        if body is not None:
            self.bytes += len(body) + _ENTRY_BYTES
            if old is None:
                node = self._tree
                for level in topic.split("/"):
                    node = node.setdefault(level, {})
                node[_HERE] = topic
            self._bodies[topic] = body
        elif old is not None:
            del self._bodies[topic]
            self._cut(topic.split("/"))

    def _cut(self, levels: list[str]) -> None:
        """Take a topic out of the tree, and the places that lead nowhere else."""
        path: list[tuple[_Node, str]] = []
        node = self._tree
        for level in levels:
            path.append((node, level))
            node = node[level]
        node.pop(_HERE, None)
        while path and not node:
            node, level = path.pop()
            del node[level]

"""Which queues were declared, and how: those that outlive a restart, as a durable table.

    table "workqueues"   {vhost@name: {"auto_delete": true, "arguments": base64, "shared": true}}
                         arguments as AMQP encodes a table, because they may be what JSON has not;
                         shared, if its topic was there before: its permissions count for the queue

Queues that live in memory are not in it: nothing of them is left when the broker ends.
"""

import base64
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import starmap
from types import MappingProxyType
from typing import Any, NamedTuple

from onelog.core.durable.tables import Change, in_parts
from onelog.core.queues.arguments import QueueLimits, limits_of
from onelog.core.routing.names import topic_of
from onelog.names import join_key, split_key
from onelog.record.forms.amqp_fields import decode_table, encode_table


class Declaration(NamedTuple):
    """A queue, as it was declared."""

    vhost: str
    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = MappingProxyType({})
    owner: Hashable = None
    """Whose it is, if it is exclusive."""
    is_shared: bool = False

    @property
    def label(self) -> str:
        """What people call it."""
        return f"queue '{self.name}' in vhost '{self.vhost}'"

    @property
    def topic(self) -> str:
        """Where its messages are; empty: in memory."""
        return topic_of(self.vhost, self.name) if self.durable and not self.exclusive else ""

    def limits(self) -> QueueLimits:
        """What its arguments mean, or `PreconditionFailedError`."""
        return limits_of(
            self.arguments,
            self.label,
            durable=self.durable,
            exclusive=self.exclusive,
            auto_delete=self.auto_delete,
        )


def _recorded(key: str, value: Any) -> Declaration:
    vhost, name = split_key(key)
    arguments = decode_table(base64.b64decode(value["arguments"]))
    is_shared = value.get("shared", False)
    return Declaration(
        vhost, name, True, False, value["auto_delete"], arguments, is_shared=is_shared
    )


def _is_stream(key: str, value: Any) -> bool:
    return _recorded(key, value).arguments.get("x-queue-type") == "stream"


class DeclaredQueues:
    """The table of durable queues."""

    name = "workqueues"

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def apply(self, key: str, value: Any) -> None:
        """Make one change; raises what is wrong with a queue that could not be made."""
        self._known.pop(key, None)
        if value is not None:
            _recorded(key, value).limits()
            self._known[key] = value

    def parts(self) -> Iterator[dict[str, Any]]:
        for part in in_parts(self._known):
            yield dict(part)

    def all(self) -> Iterator[Declaration]:
        """Every queue, in the order of declaration."""
        return starmap(_recorded, list(self._known.items()))

    def topics(self) -> Iterator[tuple[str, Callable[[], bool]]]:
        """The topic of every queue, and what tells whether that is a stream."""
        for key, value in list(self._known.items()):
            vhost, name = split_key(key)
            yield topic_of(vhost, name), partial(_is_stream, key, value)

    def has(self, vhost: str, name: str) -> bool:
        """Whether there is such a queue."""
        return join_key(vhost, name) in self._known

    def change(self, queue: Declaration) -> Change:
        """What is to be recorded of a queue."""
        encoded = base64.b64encode(encode_table(queue.arguments)).decode()
        value: dict[str, Any] = {"auto_delete": queue.auto_delete, "arguments": encoded}
        if queue.is_shared:
            value["shared"] = True
        return self.name, join_key(queue.vhost, queue.name), value

    def removal(self, vhost: str, name: str) -> Change:
        """What is to be recorded of a queue that is gone."""
        return self.name, join_key(vhost, name), None

"""Which queues were declared, and how: those that outlive a restart, as a durable table.

    table "workqueues"   {vhost@name: {"auto_delete": true, "arguments": base64, "shared": true}}
                         arguments as AMQP encodes a table, because they may be what JSON has not;
                         shared, if its topic was there before: its permissions count for the queue

Queues that live in memory are not in it: nothing of them is left when the broker ends.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from onelog.core.durable.tables import Change, in_parts
from onelog.core.queues.arguments import limits_of
from onelog.core.routing.names import topic_of
from onelog.names import join_key, split_key
from onelog.record.forms.amqp_fields import Table, decode_table, encode_table


class Declared(NamedTuple):
    """A durable queue, as it was declared."""

    vhost: str
    name: str
    auto_delete: bool
    arguments: Table
    is_shared: bool


def _arguments(value: Any) -> Table:
    return decode_table(base64.b64decode(value["arguments"]))


def _is_stream(value: Any) -> bool:
    return _arguments(value).get("x-queue-type") == "stream"


class DeclaredQueues:
    """The table of durable queues."""

    name = "workqueues"

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def apply(self, key: str, value: Any) -> None:
        """Make one change; raises what is wrong with a queue that could not be made."""
        self._known.pop(key, None)
        if value is not None:
            vhost, name = split_key(key)
            limits_of(
                _arguments(value),
                f"queue '{name}' in vhost '{vhost}'",
                durable=True,
                exclusive=False,
                auto_delete=value["auto_delete"],
            )
            self._known[key] = value

    def parts(self) -> Iterator[dict[str, Any]]:
        for part in in_parts(self._known):
            yield dict(part)

    def all(self) -> Iterator[Declared]:
        """Every queue, in the order of declaration."""
        for key, value in list(self._known.items()):
            vhost, name = split_key(key)
            shared = value.get("shared", False)
            yield Declared(vhost, name, value["auto_delete"], _arguments(value), shared)

    def topics(self) -> Iterator[tuple[str, Callable[[], bool]]]:
        """The topic of every queue, and what tells whether that is a stream."""
        for key, value in list(self._known.items()):
            vhost, name = split_key(key)
            yield topic_of(vhost, name), partial(_is_stream, value)

    def has(self, vhost: str, name: str) -> bool:
        """Whether there is such a queue."""
        return join_key(vhost, name) in self._known

    def change(
        self,
        vhost: str,
        name: str,
        auto_delete: bool,
        arguments: Mapping[str, Any],
        is_shared: bool = False,
    ) -> Change:
        """What is to be recorded of a queue."""
        encoded = base64.b64encode(encode_table(arguments)).decode()
        value: dict[str, Any] = {"auto_delete": auto_delete, "arguments": encoded}
        if is_shared:
            value["shared"] = True
        return self.name, join_key(vhost, name), value

    def removal(self, vhost: str, name: str) -> Change:
        """What is to be recorded of a queue that is gone."""
        return self.name, join_key(vhost, name), None

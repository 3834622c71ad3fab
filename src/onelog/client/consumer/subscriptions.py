"""Whether the members of a consumer group subscribe to the same, which they should.

OneLog's brokers tell when they do not. RocketMQ's know only what the last heartbeat said; there the
members themselves have to be asked, each for its running info (what `mqadmin consumerStatus` does).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from onelog.errors import WireError
from onelog.wire.remoting import fastjson
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import ConsumerConnection

Filters = dict[str, str]
"""Topics, and the filter on each; a SQL-92 condition begins with `SQL92: `."""
_SQL = "SQL92"


def filter_text(expression: str, kind: str | None) -> str:
    """A filter in one text."""
    return f"{_SQL}: {expression}" if kind == _SQL else expression


def differences_told(answers: Iterable[ConsumerConnection]) -> dict[str, Filters]:
    """The filters of each member, by client id, if brokers say that they differ; else nothing."""
    return {
        client_id: {
            each.topic: filter_text(each.sub_string, each.expression_type)
            for each in sorted(subscriptions, key=lambda data: data.topic)
        }
        for answer in answers
        for client_id, subscriptions in sorted((answer.member_subscriptions or {}).items())
    }


def differences(filters: Mapping[str, Filters | None]) -> dict[str, Filters]:
    """The filters of the members that told theirs, if they differ; else nothing."""
    told = {client_id: each for client_id, each in filters.items() if each is not None}
    first = next(iter(told.values()), {})
    return told if any(each != first for each in told.values()) else {}


def read_running_info(
    running_info: bytes | bytearray | memoryview,
) -> tuple[list[MessageQueue], Filters | None]:
    """The queues that a member has, and its filters, from its running info."""
    allowance = fastjson.Allowance(fastjson.ANSWER_PIECES_MAX)
    info = fastjson.loads(running_info, MessageQueue.from_members, allowance)
    if not isinstance(info, dict):
        raise WireError("a client's running info is no object")
    table = info.get("mqTable") or {}
    queues = [key for key in table if isinstance(key, MessageQueue)]
    told = info.get("subscriptionSet")
    return queues, _filters(told) if isinstance(told, list) else None


def _filters(told: list[Any]) -> Filters:
    found = {
        str(each.get("topic", "")): filter_text(
            str(each.get("subString", "")), each.get("expressionType")
        )
        for each in told
        if isinstance(each, dict)
    }
    return dict(sorted(found.items()))

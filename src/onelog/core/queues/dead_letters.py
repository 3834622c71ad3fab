"""Dead letters: what a message is told of its death, and where it goes then.

RabbitMQ's bookkeeping, which its clients read: the header x-death has an entry for each queue and
reason, the newest first, with how often that happened; x-first-death-* and x-last-death-* tell the
first and the last. Letters that go in a circle, without anybody who rejected them on the way, end.

What a client has written there counts as if a broker had, but for what is no entry; several entries
for one queue and reason are one.
"""

from typing import Any, Literal

from onelog.core.routing.targets import DeadLetter
from onelog.record.forms.amqp import Content
from onelog.record.forms.amqp_fields import (
    REMOVE,
    Long,
    Timestamp,
    headers_of,
    property_of,
    with_headers,
)

Reason = Literal["rejected", "expired", "maxlen", "delivery_limit"]
_COUNT_MAX = (1 << 63) - 1


def dead_letter_of(
    content: Content,
    vhost: str,
    queue: str,
    reason: Reason,
    exchange: str,
    key: str | None,
    now_ms: int,
) -> DeadLetter:
    """The letter that a message becomes that died in a queue with this dead-letter exchange."""
    headers = headers_of(content.properties)
    copies = headers.get("CC")
    keys = [content.key]
    if isinstance(copies, list):
        keys += [each for each in copies if isinstance(each, str)]
    death: dict[str, Any] = {
        "count": Long(1),
        "reason": reason,
        "queue": queue,
        "time": Timestamp(now_ms // 1000),
        "exchange": content.exchange,
        "routing-keys": keys,
    }
    expiration = property_of(content.properties, "expiration")
    if expiration is not None:
        death["original-expiration"] = expiration
    deaths = _deaths(headers.get("x-death"), death)
    changes: dict[str, Any] = {"x-death": deaths}
    for name, value in (("reason", reason), ("queue", queue), ("exchange", content.exchange)):
        if "x-death" not in headers:
            changes[f"x-first-death-{name}"] = value
        changes[f"x-last-death-{name}"] = value
    if key is not None:
        keys = [key]
        if "CC" in headers:
            changes["CC"] = REMOVE
    properties = with_headers(content.properties, changes, expiration=REMOVE)
    not_to = frozenset() if reason == "rejected" else _went_through(deaths)
    return DeadLetter(
        vhost,
        exchange,
        tuple(keys),
        properties,
        content.body,
        not_to,
        is_authorized=key is not None,
    )


def _deaths(known: Any, death: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of x-death, this one first: as it was, if it happened before, but for its count.

    Entries that a client wrote have no count, or several of them are of one queue and reason: then
    the first is kept, and counts for all.
    """
    alike: dict[str, list[dict[str, Any]]] = {}
    for each in known if isinstance(known, list) else ():
        if isinstance(each, dict):
            alike.setdefault(_kind(each), []).append(each)
    mine = alike.pop(_kind(death), None)
    if mine is not None:
        count = _count(mine[0], len(mine) if len(mine) > 1 else 0)
        death = {**mine[0], "count": Long(min(count + 1, _COUNT_MAX))}
    others = [{**each[0], "count": Long(_count(each[0], len(each)))} for each in alike.values()]
    return [death, *others]


def _kind(death: dict[str, Any]) -> str:
    return repr((death.get("queue"), death.get("reason")))


def _count(death: dict[str, Any], otherwise: int) -> int:
    count = death.get("count")
    return count if isinstance(count, int) and not isinstance(count, bool) else otherwise


def _went_through(deaths: list[dict[str, Any]]) -> frozenset[str]:
    """The queues that would close a circle in which nobody rejected the message."""
    queues = []
    for each in deaths:
        if each.get("reason") == "rejected":
            break
        queues.append(each.get("queue"))
    return frozenset(each for each in queues if isinstance(each, str))

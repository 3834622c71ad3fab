"""Dead letters: what a message is told of its death, and where it goes then.

RabbitMQ's bookkeeping, which its clients read: the header x-death has an entry for each queue and
reason, the newest first, with how often that happened; x-first-death-* and x-last-death-* tell the
first and the last. Letters that go in a circle, without anybody who rejected them on the way, end.
"""

from typing import Any, Literal

from onelog.core.routing.targets import Letter
from onelog.record.forms.amqp import Content
from onelog.record.forms.amqp_fields import REMOVE, Timestamp, headers_of, property_of, with_headers

Reason = Literal["rejected", "expired", "maxlen", "delivery_limit"]


def letter_of(
    content: Content,
    vhost: str,
    queue: str,
    reason: Reason,
    exchange: str,
    key: str | None,
    now_ms: int,
) -> Letter:
    """The letter that a message becomes that died in a queue with this dead-letter exchange."""
    headers = headers_of(content.properties)
    copies = headers.get("CC")
    keys = [content.key]
    if isinstance(copies, list):
        keys += [each for each in copies if isinstance(each, str)]
    death: dict[str, Any] = {
        "count": 1, "reason": reason, "queue": queue, "time": Timestamp(now_ms // 1000),
        "exchange": content.exchange, "routing-keys": keys,
    }  # fmt: skip
    expiration = property_of(content.properties, "expiration")
    if expiration is not None:
        death["original-expiration"] = expiration
    deaths = _deaths(headers.get("x-death"), death)
    changes: dict[str, Any] = {"x-death": deaths}
    for name, value in (("reason", reason), ("queue", queue), ("exchange", content.exchange)):
        if f"x-first-death-{name}" not in headers:
            changes[f"x-first-death-{name}"] = value
        changes[f"x-last-death-{name}"] = value
    if key is not None:
        keys = [key]
        if "CC" in headers:
            changes["CC"] = REMOVE
    properties = with_headers(content.properties, changes, expiration=REMOVE)
    not_to = frozenset() if reason == "rejected" else _went_through(deaths)
    return Letter(vhost, exchange, tuple(keys), properties, content.body, not_to)


def _deaths(known: Any, death: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of x-death, this one first: as it was, if it happened before, but for its count.

    What somebody else has put there is not kept.
    """
    deaths = [each for each in known if isinstance(each, dict)] if isinstance(known, list) else []
    for each in deaths:
        if (each.get("queue"), each.get("reason")) == (death["queue"], death["reason"]):
            count = each.get("count")
            times = count + 1 if isinstance(count, int) and not isinstance(count, bool) else 2
            return [{**each, "count": times}, *(other for other in deaths if other is not each)]
    return [death, *deaths]


def _went_through(deaths: list[dict[str, Any]]) -> frozenset[str]:
    """The queues that would close a circle in which nobody rejected the message."""
    queues = []
    for each in deaths:
        if each.get("reason") == "rejected":
            break
        queues.append(each.get("queue"))
    return frozenset(each for each in queues if isinstance(each, str))

"""Headers of STOMP and properties of AMQP, in which messages are kept.

Names are those of RabbitMQ, and of ActiveMQ where it has others. What is neither travels with the
message as a header of AMQP, a text.

Selectors of subscriptions are on these headers, and on those that JMS has names for.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from onelog.core.filters.selectors import Selector
from onelog.core.queues.arguments import ARGUMENTS
from onelog.core.queues.deliveries import in_amqp_form
from onelog.errors import InvalidRequestError, WireError
from onelog.record.forms import amqp, amqp_fields
from onelog.record.forms.amqp_fields import NO_PROPERTIES, decode_properties

SCHEDULE = (
    "AMQ_SCHEDULED_DELAY",
    "AMQ_SCHEDULED_PERIOD",
    "AMQ_SCHEDULED_REPEAT",
    "AMQ_SCHEDULED_CRON",
)
_TEXTS = {
    "content-type": "content_type",
    "content-encoding": "content_encoding",
    "correlation-id": "correlation_id",
    "reply-to": "reply_to",
    "amqp-message-id": "message_id",
    "type": "type",
    "user-id": "user_id",
    "app-id": "app_id",
}
_NUMBERS = {"priority": ("priority", 255), "timestamp": ("timestamp", (1 << 63) - 1)}
_OWN = {
    "destination",
    "receipt",
    "transaction",
    "content-length",
    "persistent",
    "expiration",
    *_TEXTS,
    *_NUMBERS,
    *SCHEDULE,
    *ARGUMENTS,
}
"""What is said with it about a message is no header of it."""
_SHOWN = {
    **{name: header for header, name in _TEXTS.items()},
    "priority": "priority",
    "timestamp": "timestamp",
    "expiration": "expiration",
}


def is_true(text: str | None) -> bool:
    """Whether a header says yes."""
    return text is not None and text.lower() in ("true", "1")


def number(headers: Mapping[str, str], name: str, most: int = (1 << 63) - 1, least: int = 0) -> int:
    """A header that is a number."""
    text = headers[name].strip()
    try:
        found = int(text[:20])
    except ValueError:
        found = least - 1
    if not least <= found <= most:
        raise InvalidRequestError(f"{name}:{text[:40]} is not a number from {least} to {most}")
    return found


def properties_of(headers: Mapping[str, str], now_ms: int) -> bytes:
    """The properties of a message that is sent with these headers."""
    found: dict[str, Any] = {}
    for header, name in _TEXTS.items():
        if header in headers:
            found[name] = headers[header]
    for header, (name, most) in _NUMBERS.items():
        if header in headers:
            found[name] = number(headers, header, most)
    if "persistent" in headers:
        found["delivery_mode"] = 2 if is_true(headers["persistent"]) else 1
    if "expiration" in headers or "expires" in headers:
        expiration = _expiration(headers, now_ms)
        if expiration is not None:
            found["expiration"] = str(expiration)
    others = {name: value for name, value in headers.items() if name not in _OWN}
    if others:
        found["headers"] = others
    if not found:
        return NO_PROPERTIES
    try:
        return amqp_fields.encode_properties(found)
    except WireError as error:
        raise InvalidRequestError(f"a header cannot be kept: {error}") from None


def _expiration(headers: Mapping[str, str], now_ms: int) -> int | None:
    """How long a message may wait: `expiration` is a time from now, `expires` one of the clock."""
    times = [number(headers, "expiration")] if "expiration" in headers else []
    if "expires" in headers and (expires_ms := number(headers, "expires")):
        times.append(max(0, expires_ms - now_ms))
    return min(times, default=None)


def arguments_of(headers: Mapping[str, str]) -> dict[str, Any]:
    """What a queue is declared with."""
    found: dict[str, Any] = {}
    for name in ARGUMENTS.keys() & headers.keys():
        kind = ARGUMENTS[name].kind
        if kind is int:
            found[name] = number(headers, name)
        else:
            found[name] = is_true(headers[name]) if kind is bool else headers[name]
    return found


@lru_cache(maxsize=1024)
def shown(properties: bytes) -> tuple[tuple[str, str], ...]:
    """The headers of a message with these properties; none, if nobody can read those."""
    if properties == NO_PROPERTIES:
        return ()
    try:
        known = amqp_fields.decode_properties(properties)
    except WireError:
        return ()
    found: dict[str, str] = {}
    for name, value in known.items():
        if name in _SHOWN:
            found[_SHOWN[name]] = str(value)
        elif name == "delivery_mode":
            found["persistent"] = "true" if value == 2 else "false"
        elif name == "headers":
            for header, each in value.items():
                found.setdefault(header, text_of(each))
    return tuple(found.items())


def text_of(value: Any) -> str:
    """A value of AMQP, as a text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, int | float | Decimal):
        return str(value)
    return json.dumps(value, default=text_of)


_JMS = {
    "JMSCorrelationID": "correlation_id",
    "JMSExpiration": "expiration",
    "JMSMessageID": "message_id",
    "JMSReplyTo": "reply_to",
    "JMSTimestamp": "timestamp",
    "JMSType": "type",
    "JMSXUserID": "user_id",
}
_PRIORITY = 4
"""Of a message that says nothing of it, by JMS."""


def is_wanted(selector: Selector, properties: bytes) -> bool:
    """Whether a message with these properties is selected."""
    try:
        return selector(_headers(properties))
    except WireError:
        return False


def is_wanted_record(selector: Selector, record: bytes | memoryview, form: int) -> bool:
    """The same, of a message as it is kept."""
    return is_wanted(selector, amqp.read(in_amqp_form(record, form)).properties)


def _headers(properties: bytes) -> Mapping[str, Any]:
    found: dict[str, Any] = dict(shown(properties))
    known = decode_properties(properties)
    for name, each in _JMS.items():
        if each in known:
            found[name] = known[each]
    found["JMSPriority"] = known.get("priority", _PRIORITY)
    found["JMSDeliveryMode"] = "PERSISTENT" if known.get("delivery_mode") == 2 else "NON_PERSISTENT"
    return found

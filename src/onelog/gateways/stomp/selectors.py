"""Selectors of subscriptions: on the headers of STOMP, and on those that JMS has names for."""

from collections.abc import Mapping
from typing import Any

from onelog.core.filters.selectors import Selector, compile_selector
from onelog.core.queues.deliveries import in_amqp_form
from onelog.errors import WireError
from onelog.gateways.stomp.headers import shown
from onelog.record.forms import amqp
from onelog.record.forms.amqp_fields import decode_properties

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


def compiled(selector: str) -> Selector:
    """A selector, as a function; `FilterSyntaxError` if it is none."""
    return compile_selector(selector)


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

"""Names of queues as names of topics, and topics of MQTT as keys of exchanges; both reversible.

    queue `orders` of vhost `/`       topic `orders`
    queue `orders` of vhost `shop`    topic `~shop~orders`
    a name that no topic may have     the long form, also in vhost `/`: `~%2F~%25RETRY%25x`

In the long form what could be mistaken, and what no name of a topic may have, is in URL quotes. A
name that would be longer than a topic's may be ends in a digest, and is not read back by itself:
whoever declares queues knows whose topic it is.

MQTT's levels are AMQP's words: `/` and `.` change places, and so do `+` and `*`.
"""

import re
from urllib.parse import unquote

from onelog.names import (
    INTERNAL_PREFIXES,
    LIGHT_QUEUE_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    fitting,
)

DEFAULT_VHOST = "/"
_LONG = "~"
_QUOTED = re.compile(r"[%~/\x00-\x1f\x7f-\x9f]")
_NOT_PLAIN = (_LONG, LIGHT_QUEUE_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, *INTERNAL_PREFIXES)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SWAP = str.maketrans("/.+*", "./*+")


def topic_of(vhost: str, queue: str) -> str:
    """The topic that a durable queue is."""
    if vhost == DEFAULT_VHOST and not queue.startswith(_NOT_PLAIN) and not _CONTROL.search(queue):
        return queue
    return fitting(f"{_LONG}{_quoted(vhost)}{_LONG}{_quoted(queue)}")


def named_for_access(vhost: str, name: str) -> str:
    """What permissions call an exchange or a queue; the default exchange is `amq.default`."""
    return topic_of(vhost, name or "amq.default")


def queue_of(topic: str) -> tuple[str, str]:
    """The vhost and the name of the queue that a topic can be."""
    if not topic.startswith(_LONG):
        return DEFAULT_VHOST, topic
    vhost, _, queue = topic[1:].partition(_LONG)
    return unquote(vhost), unquote(queue)


def _quoted(name: str) -> str:
    return _QUOTED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def swapped(text: str) -> str:
    """A topic or filter of MQTT as a key or pattern of AMQP, and the other way round."""
    return text.translate(_SWAP)

"""Destinations: what the texts mean that messages are sent to and subscribed to.

    /queue/NAME             a durable queue that is shared, made when it is first named
    /topic/KEY              `amq.topic` with that routing key; a subscription has a queue of its own
    /exchange/NAME[/KEY]    any exchange
    /amq/queue/NAME         a queue that is there already
    /temp-queue/NAME        a queue of this connection, for answers to its requests
    /reply-queue/NAME       where such answers are sent
    /temp-topic/NAME        a topic that only this connection knows the key of

Several can be given at a time, with commas between them; what follows a comma may leave out what it
has in common with the first (`/queue/a,b`). `%2F` is how a name has a slash where that would be
misread, `%2C` how it has a comma. For a subscription, `*` stands for one word, and `>` at the end
(ActiveMQ) or `#` anywhere (RabbitMQ, in topics) for any number of words.
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple
from urllib.parse import unquote

from onelog.errors import InvalidRequestError

TOPIC_EXCHANGE = "amq.topic"
TEMPORARY = "/temp-queue/"
DESTINATIONS_MAX = 100
"""Destinations in one text."""

Kind = Literal["queue", "topic", "exchange", "amq/queue", "temp-queue", "reply-queue", "temp-topic"]
_KINDS: dict[str, Kind] = {
    "/queue/": "queue",
    "/topic/": "topic",
    "/exchange/": "exchange",
    "/amq/queue/": "amq/queue",
    "/temp-queue/": "temp-queue",
    "/temp-topic/": "temp-topic",
    "/reply-queue/": "reply-queue",
    "/remote-temp-queue/": "reply-queue",
}
_ODD = re.compile(r"[%,]")


class Destination(NamedTuple):
    """One place: a queue or an exchange by its name, with a routing key if it is an exchange."""

    kind: Kind
    name: str
    key: str = ""

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for many queues."""
        words = self.name.split(".")
        return self.kind == "queue" and ("*" in words or words[-1] == ">")


@lru_cache(maxsize=4096)
def destinations(text: str) -> tuple[Destination, ...]:
    """What a text says; `InvalidRequestError` if it says nothing."""
    found: list[Destination] = []
    prefix = ""
    pieces = text.strip().split(",")
    if len(pieces) > DESTINATIONS_MAX:
        raise InvalidRequestError(f"{len(pieces)} destinations; the limit is {DESTINATIONS_MAX}")
    for piece in pieces:
        piece = piece.strip()
        if not piece.startswith("/") and found:
            piece = prefix + piece
        prefix = next((each for each in _KINDS if piece.startswith(each)), "")
        name = piece.removeprefix(prefix)
        if not prefix or not name:
            raise InvalidRequestError(
                f"{text[:200]!r} is no destination: it begins with one of {', '.join(_KINDS)}, "
                "and a name follows"
            )
        found.append(_parsed(_KINDS[prefix], name))
    return tuple(found)


def _parsed(kind: Kind, name: str) -> Destination:
    if kind == "exchange":
        name, _, key = name.partition("/")
        return Destination(kind, unquote(name), unquote(key))
    name = unquote(name)
    if kind == "topic":
        return Destination(kind, TOPIC_EXCHANGE, name)
    return Destination(kind, name)


def binding_key(key: str) -> str:
    """A routing key, as those who subscribe to many give it, in the way of exchanges."""
    if key == ">":
        return "#"
    return f"{key.removesuffix('.>')}.#" if key.endswith(".>") else key


@lru_cache(maxsize=1024)
def queue_pattern(pattern: str) -> re.Pattern[str]:
    """What names of queues are compared with."""
    *words, last = pattern.split(".")
    if last != ">":
        words.append(last)
    parts = [r"[^.]+" if word == "*" else re.escape(word) for word in words]
    end = r"(?:\..*)?" if last == ">" and parts else ".*" if last == ">" else ""
    return re.compile(r"\.".join(parts) + end, re.DOTALL)


@lru_cache(maxsize=4096)
def destination_of(exchange: str, key: str) -> str:
    """Where a message was sent to, as its readers are told."""
    if not exchange:
        return f"/queue/{_quoted(key)}"
    if exchange == TOPIC_EXCHANGE:
        return f"/topic/{_quoted(key)}"
    return f"/exchange/{_quoted(exchange).replace('/', '%2F')}/{_quoted(key)}"


def _quoted(name: str) -> str:
    return _ODD.sub(lambda odd: f"%{ord(odd[0]):02X}", name)

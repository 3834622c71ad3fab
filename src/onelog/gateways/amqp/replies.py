"""Direct reply-to: answers that go from connection to connection, and are never stored.

A client consumes from the queue `amq.rabbitmq.reply-to`, which does not exist, and names it in
`reply-to` of its requests. In them it becomes a name of its own, `amq.rabbitmq.reply-to.<token>`,
which whoever answers uses as the routing key of the default exchange. An answer for somebody who is
gone goes nowhere.
"""

from random import Random
from typing import TYPE_CHECKING

from onelog.message import Buffer
from onelog.wire.amqp.frame import DeliveryWriter, encoded_address

if TYPE_CHECKING:
    from onelog.gateways.amqp.channel import Channel

REPLY_TO = "amq.rabbitmq.reply-to"
REPLY_TO_BYTES = REPLY_TO.encode()
REPLY_TO_PREFIX = REPLY_TO + "."


class Replies:
    """Who waits for answers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._waiting: dict[str, tuple[Channel, DeliveryWriter]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._waiting

    def open(self, channel: "Channel", consumer_tag: str) -> str:
        """The name that answers to this channel have."""
        name = f"{REPLY_TO_PREFIX}{self._random.getrandbits(128):032x}"
        writer = DeliveryWriter(channel.number, consumer_tag, channel.session.frame_max)
        self._waiting[name] = (channel, writer)
        return name

    def close(self, name: str) -> None:
        """Nobody waits there any more."""
        self._waiting.pop(name, None)

    def publish(self, name: str, properties: bytes, body: bytes) -> int:
        """Deliver an answer; how many got it."""
        found = self._waiting.get(name)
        if found is None:
            return 0
        channel, writer = found
        out: list[Buffer] = []
        tag = channel.consuming.next_tag()
        writer.put(out, tag, False, encoded_address("", name), properties, body)
        channel.session.connection.send(out)
        return 1

"""Publishing on a channel: messages in, returns and confirms out; transactions.

Confirms are told at the end of a tick, all at once: one `ack` says that everything up to a number
is safe. A message that went nowhere is confirmed at once, and returned before that if it is
`mandatory`.

In a transaction (tx.select), messages and acknowledgements are kept back until the commit: then the
messages are one staged transaction of the core, and the acknowledgements follow it.

Invariant: a number is confirmed when its message is as safe as configured, and once.
"""

from typing import TYPE_CHECKING, Literal

from onelog.core.durable.writer import nobody
from onelog.core.queues.session import Settlement, Taken, settle, when_recorded
from onelog.errors import OnelogError
from onelog.gateways.amqp.refusals import not_implemented, reply_code, unmet
from onelog.gateways.amqp.replies import REPLY_TO, REPLY_TO_BYTES, REPLY_TO_PREFIX
from onelog.message import Appended, AppendedRun
from onelog.record.forms.amqp_fields import field_spans, property_of, with_properties
from onelog.wire.amqp.codes import ReplyCode
from onelog.wire.amqp.frame import ack_frame, content_frames
from onelog.wire.amqp.methods import ENCODERS, NUMBERS, Arguments

if TYPE_CHECKING:
    from onelog.gateways.amqp.channel import Channel

_RETURN = ENCODERS["basic.return"]
_COMMIT = NUMBERS["tx.commit"]
Settling = tuple[Settlement, list[Taken]]
"""What a transaction will do to deliveries, and which."""


class Publishing:
    """What a channel publishes."""

    def __init__(self, channel: "Channel") -> None:
        self.channel = channel
        self.session = channel.session
        self.mode: Literal["plain", "confirm", "tx"] = "plain"
        self._publish = channel.broker.publish.routing.publish
        self._publish_all = channel.broker.publish.routing.publish_all
        self._principal, self._vhost = channel.principal, channel.vhost
        self._seen = b""
        """The last properties; most messages have the same as the one before."""
        self._wants_reply = False
        self.count = 0
        """How many messages were published."""
        # Confirms.
        self._number = 0
        """Of the last message that is to be confirmed."""
        self._done = 0
        """All up to here are safe, or were refused."""
        self._confirmed = 0
        self._early: set[int] = set()
        """Those above that are, too."""
        self._refused: list[int] = []
        self._is_telling = False
        # Transactions.
        self._returns: list[tuple[Arguments, bytes, bytes]] = []
        self.settling: list[Settling] = []
        self._is_ended = False

    # -- messages ------------------------------------------------------------------------------

    def publish(self, arguments: Arguments, properties: bytes, body: bytes | None) -> None:
        exchange, key, mandatory, immediate = arguments
        self.count += 1
        if body is None:
            size_max = self.session.body_bytes_max
            raise unmet(f"message size is larger than configured max size {size_max}")
        if immediate:
            raise not_implemented("immediate=true")
        if properties is not self._seen:
            self._check(properties)
        if self._wants_reply:
            properties = self._with_reply_to(properties)
        mode = self.mode
        if not exchange and key.startswith(REPLY_TO_PREFIX):
            queues = self.channel.gateway.replies.publish(key, properties, body)
            if mode == "confirm":
                self._number += 1
        elif mode == "plain":
            queues = self._publish(
                self._principal, self._vhost, exchange, key, properties, body, nobody
            )
        elif mode == "confirm":
            self._number += 1
            number = self._number
            queues = self._publish(
                self._principal, self._vhost, exchange, key, properties, body, self._stored, number
            )
            if queues:
                return
        else:
            queues = self.channel.broker.publish.routing.stage(
                self._principal, self.channel, "", self._vhost, exchange, key, properties, body
            )
            if not queues and mandatory:
                self._returns.append((arguments, properties, body))
            return
        if not queues and mandatory:
            self._give_back(arguments, properties, body)
        if mode == "confirm":
            self._stored(self._number, None, None)

    def publish_all(self, arguments: Arguments, properties: bytes, bodies: list[bytes]) -> bool:
        """basic.publish, for messages that differ in bodies of one length; False: not that way."""
        exchange, key, _, immediate = arguments
        if immediate or self.mode == "tx" or (not exchange and key.startswith(REPLY_TO_PREFIX)):
            return False
        if properties is not self._seen:
            self._check(properties)
        if self._wants_reply:
            return False
        route = self._principal, self._vhost, exchange, key, properties
        first, last = self._number + 1, self._number + len(bodies)
        if self.mode == "plain":
            taken = self._publish_all(*route, bodies, nobody)
        elif taken := self._publish_all(*route, bodies, self._all_stored, (first, last)):
            self._number = last
        if taken:
            self.count += len(bodies)
        return taken

    def publish_scattered(
        self, properties: bytes, found: list[tuple[str, list[bytes]]]
    ) -> list[tuple[str, list[bytes]]]:
        """The same for several keys of the default exchange; returns what is not for that way."""
        if properties is not self._seen:
            self._check(properties)
        if self.mode != "plain" or self._wants_reply:
            return found
        if any(key.startswith(REPLY_TO_PREFIX) for key, _ in found):
            return found
        left = self.channel.broker.publish.routing.publish_scattered(
            self._vhost, "", properties, found, nobody
        )
        self.count += sum([len(bodies) for _, bodies in found])
        self.count -= sum([len(bodies) for _, bodies in left])
        return left

    def _check(self, properties: bytes) -> None:
        field_spans(properties)  # Whoever is delivered this must be able to read it.
        self._seen = properties
        self._wants_reply = (
            REPLY_TO_BYTES in properties and property_of(properties, "reply_to") == REPLY_TO
        )

    def _with_reply_to(self, properties: bytes) -> bytes:
        name = self.channel.consuming.reply_name
        if name is None:
            raise unmet("fast reply consumer does not exist")
        return with_properties(properties, {"reply_to": name})

    def _give_back(self, arguments: Arguments, properties: bytes, body: bytes) -> None:
        """basic.return."""
        exchange, key = arguments[:2]
        payload = _RETURN(ReplyCode.NO_ROUTE, "NO_ROUTE", exchange, key)
        frame_max = self.session.frame_max
        self.session.connection.send(
            content_frames(self.channel.number, payload, properties, body, frame_max)
        )

    # -- confirms ------------------------------------------------------------------------------

    def confirm(self) -> None:
        if self.mode == "tx":
            raise unmet("cannot switch from tx to confirm mode")
        self.mode = "confirm"

    @property
    def unconfirmed(self) -> int:
        """How many messages are not confirmed yet."""
        return self._number - self._confirmed

    def _stored(self, number: int, _: Appended | None, error: OnelogError | None) -> None:
        """A message is safe, or was refused."""
        if error is not None:
            self._refused.append(number)
        if number == self._done + 1:
            self._done = number
            early = self._early
            while early and self._done + 1 in early:
                self._done += 1
                early.discard(self._done)
        else:
            self._early.add(number)
        if not self._is_telling:
            self._is_telling = True
            self.session.connection.soon(self._tell)

    def _all_stored(
        self, numbers: tuple[int, int], _: AppendedRun | None, error: OnelogError | None
    ) -> None:
        """The same for messages that came together."""
        first, last = numbers
        if error is None and first == self._done + 1:
            self._done = last - 1
            self._stored(last, None, None)
        else:
            for number in range(first, last + 1):
                self._stored(number, None, error)

    def _tell(self) -> None:
        self._is_telling = False
        channel = self.channel
        if self._is_ended or channel.is_closing:
            return
        if self._refused:
            refused, self._refused = set(self._refused), []
            for number in sorted(refused):
                channel.reply("basic.nack", number, False, False)
            if refused.issuperset(range(self._confirmed + 1, self._done + 1)):
                self._confirmed = self._done
        if self._done > self._confirmed:
            multiple = self._done - self._confirmed > 1
            self.session.connection.write(ack_frame(channel.number, self._done, multiple))
            self._confirmed = self._done

    # -- transactions --------------------------------------------------------------------------

    def select(self) -> None:
        if self.mode == "confirm":
            raise unmet("cannot switch from confirm to tx mode")
        if self.mode != "tx":
            self.mode = "tx"
            self.channel.broker.transactions.begin(self._principal, self.channel)

    def commit(self) -> None:
        if self.mode != "tx":
            raise unmet("channel is not transactional")
        returns, self._returns = self._returns, []
        for arguments, properties, body in returns:
            self._give_back(arguments, properties, body)
        self.channel.wait()
        self.channel.broker.publish.routing.commit(
            self._principal, self.channel, "", self._committed
        )

    def _committed(self, _: object, appended: Appended | None, error: OnelogError | None) -> None:
        if self._is_ended:
            return
        if error is not None:
            self.channel.waiting = None
            self._fail_commit(error)
            return
        settling, self.settling = self.settling, []
        left = {
            queue for how, taken in settling for queue in settle(how, (each[1:] for each in taken))
        }
        self.channel.broker.transactions.begin(self._principal, self.channel)
        when_recorded(left, self._end_commit)

    def _end_commit(self, _: OnelogError | None) -> None:
        if not self._is_ended:
            self.channel.reply("tx.commit-ok")
            self.channel.resume()

    def _fail_commit(self, error: OnelogError) -> None:
        if reply_code(error) == ReplyCode.PRECONDITION_FAILED:
            error = unmet("partial tx completion")
        self.channel.fail(error, _COMMIT)

    def roll_back(self) -> None:
        """tx.rollback."""
        if self.mode != "tx":
            raise unmet("channel is not transactional")
        self._returns.clear()
        self.channel.broker.publish.routing.abort(self._principal, self.channel, "")
        self.channel.broker.transactions.begin(self._principal, self.channel)
        self._unsettle()
        self.channel.reply("tx.rollback-ok")

    def _unsettle(self) -> None:
        settling, self.settling = self.settling, []
        for _, taken in settling:
            self.channel.consuming.take_back(taken)

    def end(self) -> None:
        """The channel is gone."""
        self._is_ended = True
        if self.mode == "tx":
            self._unsettle()
            self.channel.broker.groups.channel_closed(self.channel)

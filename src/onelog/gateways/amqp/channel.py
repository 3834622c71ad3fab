"""One channel of a connection: its methods, its publisher, its consumers, and its end.

A method is handled by a function that takes the channel and the method's arguments. Most answer at
once; one that must wait (a commit, a message on disk) keeps the channel `waiting`: what arrives
meanwhile is handled after it, so that answers come in the order of the methods.

Invariants: of a channel that the broker has closed nothing is heard but the end, and nothing is
delivered to it; what it had not acknowledged is back in its queues; its number is not free before
the client has confirmed the end, also if the client's own `close` crossed the broker's.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from onelog.errors import OnelogError
from onelog.gateways import ChannelState, RefusedError
from onelog.gateways.amqp.consuming import Consuming
from onelog.gateways.amqp.publishing import Publishing
from onelog.gateways.amqp.refusals import reply_code
from onelog.wire.amqp.codes import ReplyCode, reply_text
from onelog.wire.amqp.frame import Event, method_frame
from onelog.wire.amqp.methods import ENCODERS, NAMES, NUMBERS

if TYPE_CHECKING:
    from onelog.gateways.amqp.session import AmqpSession

_OPEN = NUMBERS["channel.open"]
_CLOSE, _CLOSE_OK = NUMBERS["channel.close"], NUMBERS["channel.close-ok"]
_PUBLISH, _ACK = NUMBERS["basic.publish"], NUMBERS["basic.ack"]
_WAITING_MAX = 10_000
"""Methods that may wait for the one before them."""

Handler = Callable[..., None]
"""Takes a channel and the arguments of its method."""


class Channel:
    """A channel that is open."""

    def __init__(self, session: "AmqpSession", number: int, handlers: dict[int, Handler]) -> None:
        self.session = session
        self.number = number
        self._handlers = handlers
        self.gateway = session.gateway
        self.broker = session.broker
        self.principal = session.principal
        self.vhost = session.vhost
        self.queue = ""
        """The last queue that was declared here: what no name means."""
        self.is_closing = False
        """Whether the client was told that it is closed, and has not confirmed that."""
        self.waiting: deque[Event] | None = None
        """What arrived while a method waits for its answer."""
        self.publishing = Publishing(self)
        self.consuming = Consuming(self)

    def described(self) -> ChannelState:
        """What management tools are told of it."""
        consuming, publishing = self.consuming, self.publishing
        return ChannelState(
            self,
            self.number,
            list(consuming.consumers.values()),
            consuming.prefetch,
            consuming.window.limit,
            len(consuming.unacked),
            publishing.unconfirmed,
            publishing.mode,
            publishing.count,
            consuming.last_tag,
        )

    @property
    def is_awaited(self) -> bool:
        """Whether its client waits for something before it goes on."""
        return self.publishing.mode != "plain" or bool(self.consuming.unacked)

    # -- in ------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Do what a method says."""
        _, method, arguments, properties, body = event
        if self.is_closing and method != _OPEN:
            if method == _CLOSE:  # It crossed ours, which the client has still to confirm.
                self.reply("channel.close-ok")
            elif method == _CLOSE_OK:
                self.session.forget(self)
                self.session.confirmed.add(self.number)
            return
        if self.waiting is not None:
            if len(self.waiting) >= _WAITING_MAX:
                text = f"{_WAITING_MAX} methods wait for an answer"
                raise RefusedError(ReplyCode.RESOURCE_ERROR, text)
            self.waiting.append(event)
            return
        try:
            if method == _ACK:
                self.consuming.ack(*arguments)
                return
            self.session.flush_acknowledgements()
            if method == _PUBLISH:
                assert properties is not None
                self.publishing.publish(arguments, properties, body)
            else:
                handler = self._handlers.get(method)
                if handler is None:
                    text = f"{NAMES[method]} is not for brokers"
                    raise RefusedError(ReplyCode.COMMAND_INVALID, text)
                handler(self, *arguments)
        except OnelogError as error:
            self.fail(error, method)

    def publish(self, event: Event) -> None:
        """The same for what comes most often."""
        if self.is_closing or self.waiting is not None:
            self.handle(event)
            return
        try:
            self.publishing.publish(event[2], event[3] or b"", event[4])
        except OnelogError as error:
            self.fail(error, _PUBLISH)

    def publish_all(self, event: Event, more: list[bytes]) -> None:
        """The same for a message and others that differ from it in their bodies only."""
        bodies = [event[4] or b"", *more]
        try:
            if not (self.is_closing or self.waiting is not None) and self.publishing.publish_all(
                event[2], event[3] or b"", bodies
            ):
                return
        except OnelogError as error:
            self.fail(error, _PUBLISH)
            return
        for number, body in enumerate(bodies, 1):
            if self.waiting is not None:
                self.waiting.extend((*event[:4], each) for each in bodies[number - 1 :])
                return
            self.publish((*event[:4], body))
            if self.is_closing:
                return
            if number < len(bodies) and self.session.connection.turn_is_over():
                self.wait()
                self.session.resuming.append(self)

    def publish_scattered(self, event: Event, found: list[tuple[str, list[bytes]]]) -> int:
        """The same for messages that differ from it in their keys, too; how many there were."""
        _, method, _, properties, _ = event
        count = sum([len(bodies) for _, bodies in found])
        left = found
        if found and not (self.is_closing or self.waiting is not None):
            try:
                left = self.publishing.publish_scattered(properties or b"", found)
            except OnelogError as error:
                self.fail(error, _PUBLISH)
                return count
        for key, bodies in left:
            arguments = "", key, False, False
            self.publish_all((self.number, method, arguments, properties, bodies[0]), bodies[1:])
        return count

    def wait(self) -> None:
        """What follows is to wait until `resume`."""
        if self.waiting is None:
            self.waiting = deque()

    def resume(self) -> None:
        """Handle what had to wait, up to what has to wait again."""
        left = self.waiting or deque()
        self.waiting = None
        while left and not self.is_closing:
            self.handle(left.popleft())
            if self.session.channels.get(self.number) is not self:
                self.session.dispatch(left)
                break
            if self._keep_waiting(left):
                break
            if left and self.session.connection.turn_is_over():
                self.waiting = left
                self.session.resuming.append(self)
                break
        self.session.flush_acknowledgements()

    def _keep_waiting(self, left: deque[Event]) -> bool:
        """Whether these have to wait again."""
        if self.waiting is None:
            return False
        self.waiting.extend(left)
        return True

    # -- out -----------------------------------------------------------------------------------

    def reply(self, name: str, *arguments: Any) -> None:
        """Send a method."""
        self.session.connection.write(method_frame(self.number, ENCODERS[name](*arguments)))

    def answer(self, nowait: bool, name: str, *arguments: Any) -> None:
        """Send a method, unless nobody waits for it."""
        if not nowait:
            self.reply(name, *arguments)

    def fail(self, error: OnelogError, method: int) -> None:
        """A method went wrong: the end of the channel, or of the connection."""
        code = reply_code(error)
        if not code.is_soft:
            self.session.fail(code, str(error), method)
            return
        if self.is_closing:
            return
        self.session.log_failure(self.number, code, error)
        self.end()
        self.is_closing = True
        text = reply_text(code, str(error))
        self.reply("channel.close", code, text, method >> 16, method & 0xFFFF)

    # -- the end -------------------------------------------------------------------------------

    def closed_by_peer(self) -> None:
        self.end()
        self.reply("channel.close-ok")
        self.session.forget(self)

    def end(self) -> None:
        """Give back what it has: deliveries, consumers, a transaction."""
        for _ in self.ending():
            pass

    def ending(self) -> Iterator[None]:
        """The same in steps, for one that may have very many."""
        self.session.flush_acknowledgements()
        self.waiting = None
        self.publishing.end()
        yield from self.consuming.ending()

    def take_apart(self) -> None:
        """Nobody knows it any more: without this, only the collector would free it."""
        del self.publishing, self.consuming

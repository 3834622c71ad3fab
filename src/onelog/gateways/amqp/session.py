"""One AMQP client: the handshake, its channels, signs of life, and the end.

    client             broker
    greeting        ->
                    <- start          who are you?
    start-ok        ->
                    <- tune           how much at a time?
    tune-ok, open   ->
                    <- open-ok        and from now on, methods on channels

What is wrong with a method ends its channel, or the connection, with RabbitMQ's code. A connection
that is about to end is told so with `close`, and has a few seconds to say `close-ok`; nothing else
that it says counts.

Where the broker has users, these log in with their passwords (PLAIN, AMQPLAIN), or by the
certificate that they have shown (EXTERNAL: it names a user, as `security.certificate_user` says).
Where it has none, everybody on its own machine is `guest`, with the password that RabbitMQ gives.

Invariants: a client that does not read gets no deliveries, and is still read from, since it may
read only after it has written; a client that publishes while the disk is full is not read from.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any

from onelog import __version__
from onelog.core.access import Principal
from onelog.core.queues.consumers import Consumer
from onelog.core.queues.session import Acknowledgements
from onelog.errors import NotPermittedError, OnelogError, WireError
from onelog.gateways import RABBITMQ_VERSION, ClientState, GatewayContext, RefusedError
from onelog.gateways.amqp import declaring
from onelog.gateways.amqp.channel import Channel, Handler
from onelog.gateways.amqp.refusals import not_allowed, not_implemented, reply_code
from onelog.gateways.amqp.replies import Replies
from onelog.gateways.amqp.streams import StreamReader
from onelog.net.connection import Connection, FramedSession, is_here
from onelog.record.forms.amqp_fields import Table, decode_table
from onelog.wire.amqp.codes import FaultError, ReplyCode, reply_text
from onelog.wire.amqp.frame import GREETING, HEARTBEAT, Event, EventReader, method_frame
from onelog.wire.amqp.methods import ENCODERS, NAMES, NUMBERS

MECHANISMS = b"PLAIN AMQPLAIN"
EXTERNAL = "EXTERNAL"
GUEST = "guest"


def credentials(mechanism: str, response: bytes) -> tuple[str, str]:
    """The name and the password that a client gives."""
    if mechanism == "PLAIN":
        name, password = _plain(response)
    elif mechanism == "AMQPLAIN":
        name, password = _amqplain(response)
    else:
        raise RefusedError(
            ReplyCode.COMMAND_INVALID, f"unknown authentication mechanism '{mechanism}'"
        )
    return name, password.decode("utf-8", "replace")


def refusal(mechanism: str) -> RefusedError:
    """What whoever cannot log in is told."""
    return RefusedError(
        ReplyCode.ACCESS_REFUSED,
        f"Login was refused using authentication mechanism {mechanism}. For details see the "
        "broker logfile.",
    )


def _plain(response: bytes) -> tuple[str, bytes]:
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise RefusedError(ReplyCode.SYNTAX_ERROR, "a response of PLAIN has three parts")
    return parts[1].decode("utf-8", "replace"), parts[2]


def _amqplain(response: bytes) -> tuple[str, bytes]:
    try:
        table = decode_table(response)
    except WireError as error:
        raise RefusedError(ReplyCode.SYNTAX_ERROR, f"AMQPLAIN: {error}") from None
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if isinstance(password, str):
        password = password.encode()
    if not isinstance(name, str) or not isinstance(password, bytes):
        raise RefusedError(
            ReplyCode.SYNTAX_ERROR, "AMQPLAIN auth info is missing LOGIN or PASSWORD field"
        )
    return name, password


log = logging.getLogger(__name__)

HANDSHAKE_MS_MAX = 10_000
CLOSE_MS_MAX = 5_000
PACE_MS, FAST_PER_MS, MANY = 8, 64, 512
"""Who has published so many messages a millisecond, for so long, or so many at once, publishes
much."""
REFUSAL_MS = 1_000
"""After that time a client is dropped that could not log in, and does not understand `close`."""
FRAME_BYTES_MIN = 4_096
"""What a client may agree on at least, and the most that it may send before it has."""
CAPABILITIES: Table = dict.fromkeys(
    (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ),
    True,
)
_OLD_GREETING = b"AMQP\1\1\0\x09"
_PUBLISH = NUMBERS["basic.publish"]
_CHANNEL_OPEN, _CHANNEL_CLOSE = NUMBERS["channel.open"], NUMBERS["channel.close"]
_START_OK = NUMBERS["connection.start-ok"]
_CLOSE, _CLOSE_OK = NUMBERS["connection.close"], NUMBERS["connection.close-ok"]


class ConnectionState(IntEnum):
    """How far a connection is."""

    GREETING = 0
    STARTING = 1
    CHECKING = 2
    """Its password is being looked at."""
    TUNING = 3
    OPENING = 4
    OPEN = 5
    CLOSING = 6
    """The client was told that it ends."""
    DEAF = 7
    """The same, and nothing that it sends can be understood."""


class Gateway:
    """What all sessions of one broker share."""

    def __init__(self, context: GatewayContext) -> None:
        self.context = context
        self.broker = context.broker
        self.clock = context.clock
        self.random = context.random
        self.call_soon: Callable[..., object] = asyncio.get_running_loop().call_soon
        self.replies = Replies(context.random)
        self.sessions: set[AmqpSession] = set()
        self.alarm = ""
        """Why nothing can be published; empty if that is not so."""
        self.broker.queues.declared.on_alarm.append(self.look_at_alarms)
        name = context.broker.admin.config.name
        self.properties: Table = {
            "product": "RabbitMQ",
            "version": RABBITMQ_VERSION,
            "platform": f"OneLog {__version__}",
            "copyright": "",
            "information": "",
            "cluster_name": context.broker.admin.config.cluster or name,
            "capabilities": CAPABILITIES,
        }

    def tick(self) -> None:
        """Once a second: who is dead, who is late, and may be published?"""
        self.look_at_alarms()
        now_ms = self.clock.now_ms()
        for session in tuple(self.sessions):
            session.connection.guard(session.tick, now_ms)

    def look_at_alarms(self) -> None:
        """Block those who publish while there is no room on disk or in memory; or let them go."""
        alarm = "low on disk" if self.broker.publish.refusal() else ""
        if self.broker.queues.declared.memory_is_high:
            alarm = alarm or "low on memory"
        if bool(alarm) != bool(self.alarm):
            self.alarm = alarm
            for session in tuple(self.sessions):
                session.connection.guard(session.alarmed)

    def clients(self) -> list[ClientState]:
        """Who is connected, for management tools."""
        return [each.described() for each in self.sessions]

    def say_goodbye(self) -> None:
        """The broker goes."""
        text = "broker forced connection closure with reason 'shutdown'"
        for session in tuple(self.sessions):
            session.fail(ReplyCode.CONNECTION_FORCED, text, 0)


class AmqpSession(FramedSession):
    """One client. It is also what the core knows the owner of exclusive queues by."""

    _reader: EventReader

    def __init__(self, connection: Connection, gateway: Gateway) -> None:
        super().__init__(connection)
        self.gateway = gateway
        self.broker = gateway.broker
        self._config = gateway.context.loaded.config.amqp
        self.frame_max = self._config.frame_bytes_max
        self.channel_max = self._config.channel_max
        self.body_bytes_max = gateway.broker.admin.config.routed_body_bytes_max
        self._reader = EventReader(FRAME_BYTES_MIN, self.body_bytes_max)
        self.state = ConnectionState.GREETING
        self.principal = Principal("", "amqp", connection.remote_address)
        self.vhost = ""
        self.client: Table = {}
        """What the client says of itself."""
        self._capabilities: dict[str, Any] = {}
        self.channels: dict[int, Channel] = {}
        self._ended: list[Channel] = []
        """Channels that have ended with the connection, and may be in the middle of a method."""
        self.confirmed: set[int] = set()
        """Channels that the broker has closed, as the client has confirmed."""
        self.acknowledgements = Acknowledgements()
        """Those that were read and not passed on yet."""
        self.paused: set[Consumer | StreamReader] = set()
        """Consumers that get nothing until the client has read what it was sent."""
        self.since_ms = gateway.clock.now_ms()
        self._deadline_ms = self.since_ms + HANDSHAKE_MS_MAX
        """When it ends, unless it is open by then."""
        self.heartbeat_seconds = 0
        self._beat_at_ms = 0
        self._heard = True
        self._silent_since_ms = self.since_ms
        self._has_published = False
        self._is_blocked_sent = False
        self.resuming: list[Channel] = []
        """Those that go on in the next turn with what had to wait."""
        self._came = self._paced_ms = 0
        self._is_fast = False
        connection.reads_on = True
        connection.idle_ms = 0
        gateway.sessions.add(self)

    def can(self, capability: str) -> bool:
        """Whether the client has said that it understands something."""
        return self._capabilities.get(capability) is True

    def described(self) -> ClientState:
        """What management tools are told of it."""
        if self.state != ConnectionState.OPEN:
            state = "starting" if self.state < ConnectionState.OPEN else "closing"
        else:
            state = "blocked" if self.connection.held else "running"
        return ClientState(
            self.connection,
            self.principal.name,
            self.vhost,
            state,
            self.since_ms,
            self.client,
            [each.described() for each in self.channels.values()],
            self.frame_max,
            self.channel_max,
            self.heartbeat_seconds,
        )

    def random_name(self) -> str:
        """A name that nobody else has."""
        data = self.gateway.random.getrandbits(128).to_bytes(16, "big")
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    # -- in ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._heard = True
        if self.state != ConnectionState.DEAF:
            super().data_received(data)

    def pause(self) -> None:
        """Deliver nothing more until the client reads: many queues would soon be too much."""
        for channel in self.channels.values():
            for consumer in channel.consuming.consumers.values():
                if isinstance(consumer, Consumer) and not consumer.paused:
                    consumer.pause()
                    self.paused.add(consumer)

    def writable(self) -> None:
        """The client reads again: deliver on."""
        paused, self.paused = self.paused, set()
        for consumer in paused:
            consumer.resume()
        super().writable()

    def connection_lost(self) -> Iterator[None]:
        """The connection is gone, and with it everything that hung on it."""
        self.gateway.sessions.discard(self)
        return self._leave_behind()

    def _leave_behind(self) -> Iterator[None]:
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            if not channel.is_closing:
                yield from channel.ending()
                channel.is_closing = True
        self.flush_acknowledgements()
        yield from self.broker.queues.declared.leaving(self)
        self.broker.groups.channel_closed(self)
        for channel in (*channels.values(), *self._ended):
            channel.take_apart()
        self._ended, self.resuming = [], []
        self.paused.clear()

    def _handle_read(self) -> None:
        if self.connection.held or (self.state == ConnectionState.GREETING and not self._greet()):
            return
        channels = self.channels
        reader = self._reader
        published = scattered = 0
        try:
            resuming, self.resuming = self.resuming, []
            for resumed in resuming:
                resumed.resume()
            if self.resuming:
                return
            for event in reader.events():
                number = event[0]
                channel = channels.get(number)
                if channel is not None and self.state == ConnectionState.OPEN:
                    if event[1] == _PUBLISH:
                        if not self._has_published:
                            self._published()
                        bodies = reader.alike(event)
                        if bodies:
                            channel.publish_all(event, bodies)
                        else:
                            channel.publish(event)
                            if channel.publishing.mode == "plain":
                                found = reader.scattered(event)
                                scattered += channel.publish_scattered(event, found)
                        published += 1 + len(bodies)
                    else:
                        channel.handle(event)
                else:
                    self._handle(event)
                connection = self.connection
                if connection.closing or connection.held or connection.turn_is_over():
                    break
        except FaultError as fault:
            self.fail(fault.code, str(fault), 0, deaf=True)
        except RefusedError as error:
            self.fail(error.code, str(error), 0)
        self.flush_acknowledgements()
        if published:
            self._pace(published, scattered)

    def dispatch(self, events: Iterable[Event]) -> None:
        """Handle what had to wait behind the end of its channel."""
        for event in events:
            channel = self.channels.get(event[0])
            if channel is not None and self.state == ConnectionState.OPEN:
                channel.handle(event)
            elif self.state == ConnectionState.OPEN:
                self._handle(event)

    def _pace(self, published: int, scattered: int) -> None:
        """Let who publishes much, and waits for nothing, be read less often, and more at a time.

        And not while queues have a lot to deliver: what is read meanwhile would only take memory.
        Who publishes to many queues is read on until then: a turn of each of them costs more than
        a look at a socket, so each should have several messages by then.
        """
        published += scattered
        self._came += published
        now_ms = self.gateway.clock.now_ms()
        if now_ms - self._paced_ms >= PACE_MS:
            self._is_fast = self._came >= FAST_PER_MS * (now_ms - self._paced_ms)
            self._paced_ms, self._came = now_ms, 0
        is_behind = self.broker.queues.declared.is_behind
        if (
            (self._is_fast or published >= MANY)
            and (scattered < MANY or is_behind())
            and not any(each.is_awaited for each in self.channels.values())
        ):
            self.connection.rest(is_behind)

    def flush_acknowledgements(self) -> None:
        """Pass on what was acknowledged."""
        if self.acknowledgements.waiting:
            self.acknowledgements.flush()

    def _handle(self, event: Event) -> None:
        """What is said on channel 0, or on a channel that is not open."""
        number, method, arguments, _, _ = event
        if not method:
            return
        if self.state == ConnectionState.CLOSING:
            if method == _CLOSE and not number:  # It crossed ours, which is still to be confirmed.
                self._send("connection.close-ok")
            elif method == _CLOSE_OK and not number:
                self.connection.close()
            return
        if number:
            if self.state != ConnectionState.OPEN:
                text = f"{NAMES[method]} on channel {number} before the connection is open"
                raise RefusedError(ReplyCode.CHANNEL_ERROR, text)
            self._open_channel(number, method)
            return
        handler = _HANDLERS.get(method)
        if handler is None or (handler[0] != self.state and handler[0] >= 0):
            text = f"unexpected method in connection state {self.state.name.lower()}"
            raise RefusedError(ReplyCode.CHANNEL_ERROR, text)
        try:
            handler[1](self, *arguments)
        except OnelogError as error:
            self.fail(reply_code(error), str(error), method)

    # -- the handshake -------------------------------------------------------------------------

    def _greet(self) -> bool:
        greeting = self._reader.greeting()
        if greeting is None:
            return False
        if greeting not in (GREETING, _OLD_GREETING):
            self.connection.warn("%s does not speak AMQP 0-9-1", self.connection)
            self.connection.write(GREETING)
            self.state = ConnectionState.DEAF
            self.connection.close()
            return False
        self.state = ConnectionState.STARTING
        # Only who has shown a certificate can be known by it.
        mechanisms = MECHANISMS + b" EXTERNAL" * bool(self.connection.certificate)
        self._send("connection.start", 0, 9, self.gateway.properties, mechanisms, b"en_US")
        return True

    def start_ok(self, client: Table, mechanism: str, response: bytes, locale: str) -> None:
        self.client = client
        capabilities = client.get("capabilities")
        if isinstance(capabilities, dict):
            self._capabilities = capabilities
        logins = self.broker.users.logins
        if mechanism == EXTERNAL and self.connection.certificate:
            where = self.connection.remote_address
            certified = logins.certified(self.connection.certificate, "amqp", where)
            if certified is None:
                self._refuse(refusal(mechanism))
            else:
                self._logged_in(certified)
            return
        name, password = credentials(mechanism, response)
        if not logins.users.is_open:
            self.state = ConnectionState.CHECKING
            route = "amqp", self.connection.remote_address
            logins.log_in(name, password, *route, lambda found: self._checked(found, mechanism))
            return
        is_local = is_here(self.connection.remote[0], self.connection.local[0])
        if is_local and name == password == GUEST:
            self._logged_in(Principal(name, "amqp", self.connection.remote_address))
        else:
            self._refuse(refusal(mechanism))

    def _checked(self, found: Principal | OnelogError, mechanism: str) -> None:
        """A password was looked at."""
        if self.state == ConnectionState.CHECKING and not self.connection.closing:
            if isinstance(found, OnelogError):
                self._refuse(refusal(mechanism))
            else:
                self._logged_in(found)

    def _refuse(self, error: RefusedError) -> None:
        self.connection.warn("%s could not log in", self.connection)
        if self.can("authentication_failure_close"):
            self.fail(error.code, str(error), _START_OK)
        else:
            self.state = ConnectionState.DEAF
            self._deadline_ms = self.gateway.clock.now_ms() + REFUSAL_MS

    def _logged_in(self, principal: Principal) -> None:
        self.principal = principal
        self.connection.user = principal.name
        self.state = ConnectionState.TUNING
        heartbeat = self.gateway.context.loaded.config.amqp.heartbeat_seconds
        self._send("connection.tune", self.channel_max, self.frame_max, heartbeat)

    def tune_ok(self, channel_max: int, frame_max: int, heartbeat: int) -> None:
        self._check_tuned("channel_max", channel_max, 1, self.channel_max)
        self._check_tuned("frame_max", frame_max, FRAME_BYTES_MIN, self.frame_max)
        self.channel_max, self.frame_max = channel_max, frame_max
        self._reader.limit(frame_max)
        self.heartbeat_seconds = heartbeat
        self.state = ConnectionState.OPENING

    def _check_tuned(self, name: str, value: int, least: int, most: int) -> None:
        if 0 < value < least:
            raise not_allowed(
                f"negotiated {name} = {value} is lower than the minimum allowed value ({least})"
            )
        if value == 0 or value > most:
            shown = "0 (no limit)" if value == 0 else value
            raise not_allowed(
                f"negotiated {name} = {shown} is higher than the maximum allowed value ({most})"
            )

    def open(self, vhost: str) -> None:
        try:
            is_there = self.broker.publish.routing.enter(self.principal, vhost)
        except NotPermittedError:
            raise not_allowed(
                f"access to vhost '{vhost}' refused for user '{self.principal.name}'"
            ) from None
        if not is_there:
            raise not_allowed(f"vhost {vhost} not found")
        self.vhost = vhost
        self.state = ConnectionState.OPEN
        self._send("connection.open-ok")

    def update_secret(self, secret: bytes, reason: str) -> None:
        """connection.update-secret: passwords do not expire here."""
        self._send("connection.update-secret-ok")

    def _open_channel(self, number: int, method: int) -> None:
        if method == _CHANNEL_CLOSE and number in self.confirmed:
            return  # Go's client may say so after it has confirmed ours, and waits for no answer.
        if method != _CHANNEL_OPEN:
            text = f"expected 'channel.open' on channel {number}, got '{NAMES[method]}'"
            raise RefusedError(ReplyCode.CHANNEL_ERROR, text)
        if len(self.channels) >= self.channel_max:
            raise not_allowed(
                f"number of channels opened ({len(self.channels)}) has reached the negotiated "
                f"channel_max ({self.channel_max})"
            )
        self.confirmed.discard(number)
        self.channels[number] = channel = Channel(self, number, HANDLERS)
        channel.reply("channel.open-ok")

    def forget(self, channel: Channel) -> None:
        """A channel is closed, as both sides know."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            channel.take_apart()

    # -- signs of life -------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Once a second: send signs of life, and see whether the client gives any."""
        if self.state != ConnectionState.OPEN:
            if now_ms >= self._deadline_ms:
                self.connection.abort()
            return
        if not self.heartbeat_seconds:
            return
        if now_ms >= self._beat_at_ms:
            self._beat_at_ms = now_ms + self.heartbeat_seconds * 500
            self.connection.write(HEARTBEAT)
        if self._heard or self.connection.held:
            self._heard = False
            self._silent_since_ms = now_ms
        elif now_ms - self._silent_since_ms > self.heartbeat_seconds * 2_000:
            log.warning("%s gave no sign of life: closed", self.connection)
            self.connection.abort()

    # -- there is no room ----------------------------------------------------------------------

    def _published(self) -> None:
        """It publishes: it is one of those who have to wait when there is no room."""
        self._has_published = True
        if self.gateway.alarm:
            self.alarmed()

    def alarmed(self) -> None:
        """Nothing can be published from now on; or it can again."""
        alarm = self.gateway.alarm
        if self.state != ConnectionState.OPEN or not self._has_published:
            return
        if alarm:
            if self.can("connection.blocked"):
                self._send("connection.blocked", alarm)
                self._is_blocked_sent = True
            self.connection.hold(True)
        else:
            if self._is_blocked_sent:
                self._send("connection.unblocked")
                self._is_blocked_sent = False
            self.connection.hold(False)
            self.data_received(b"")

    # -- the end -------------------------------------------------------------------------------

    def _send(self, name: str, *arguments: Any) -> None:
        self.connection.write(method_frame(0, ENCODERS[name](*arguments)))

    def log_failure(self, number: int, code: ReplyCode, error: OnelogError) -> None:
        """A channel ends by an error."""
        log.info("%s, channel %d: %d %s", self.connection, number, code, error)

    def fail(self, code: ReplyCode, text: str, method: int, *, deaf: bool = False) -> None:
        """End the connection; `deaf`: what it sends is not even looked at."""
        if self.state >= ConnectionState.CLOSING or self.connection.closing:
            if deaf:
                self.state = ConnectionState.DEAF
            return
        log.info("%s ends: %d %s", self.connection, code, text)
        self._end_channels()
        text = reply_text(code, text)
        self._send("connection.close", code, text, method >> 16, method & 0xFFFF)
        self.state = ConnectionState.DEAF if deaf else ConnectionState.CLOSING
        self.connection.hold(False)
        self._deadline_ms = self.gateway.clock.now_ms() + CLOSE_MS_MAX

    def closed_by_peer(self, *reason: object) -> None:
        self._end_channels()
        self.broker.groups.channel_closed(self)
        self._send("connection.close-ok")
        # Some clients would take the end of the socket for an error: it is for them to close it.
        self.state = ConnectionState.DEAF
        self._deadline_ms = self.gateway.clock.now_ms() + CLOSE_MS_MAX

    def _end_channels(self) -> None:
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            if not channel.is_closing:
                channel.end()
                channel.is_closing = True
        self._ended += channels.values()
        self.flush_acknowledgements()


_ANY = -1
_HANDLERS: dict[int, tuple[int, Callable[..., None]]] = {
    _START_OK: (ConnectionState.STARTING, AmqpSession.start_ok),
    NUMBERS["connection.tune-ok"]: (ConnectionState.TUNING, AmqpSession.tune_ok),
    NUMBERS["connection.open"]: (ConnectionState.OPENING, AmqpSession.open),
    NUMBERS["connection.update-secret"]: (ConnectionState.OPEN, AmqpSession.update_secret),
    _CLOSE: (_ANY, AmqpSession.closed_by_peer),
}
"""In which state each method of channel 0 may come, and what does it."""


def _open_again(channel: Channel) -> None:
    raise RefusedError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")


def _flow(channel: Channel, active: bool) -> None:
    if not active:
        raise not_implemented("active=false")
    channel.reply("channel.flow-ok", True)


def _recover(channel: Channel, requeue: bool) -> None:
    channel.consuming.recover(requeue)
    channel.reply("basic.recover-ok")


def _confirm(channel: Channel, nowait: bool) -> None:
    channel.publishing.confirm()
    channel.answer(nowait, "confirm.select-ok")


def _select(channel: Channel) -> None:
    channel.publishing.select()
    channel.reply("tx.select-ok")


_BY_NAME: dict[str, Handler] = {
    "channel.open": _open_again,
    "channel.flow": _flow,
    "channel.flow-ok": lambda channel, active: None,
    "channel.close": lambda channel, *reason: channel.closed_by_peer(),
    "access.request": lambda channel, *wanted: channel.reply("access.request-ok", 1),
    "exchange.declare": declaring.exchange_declare,
    "exchange.delete": declaring.exchange_delete,
    "exchange.bind": declaring.exchange_bind,
    "exchange.unbind": declaring.exchange_unbind,
    "queue.declare": declaring.queue_declare,
    "queue.bind": declaring.queue_bind,
    "queue.unbind": declaring.queue_unbind,
    "queue.purge": declaring.queue_purge,
    "queue.delete": declaring.queue_delete,
    "basic.qos": lambda channel, *how: channel.consuming.qos(*how),
    "basic.consume": lambda channel, *how: channel.consuming.consume(*how),
    "basic.cancel": lambda channel, *how: channel.consuming.cancel(*how),
    "basic.cancel-ok": lambda channel, tag: None,
    "basic.get": lambda channel, *how: channel.consuming.get(*how),
    "basic.nack": lambda channel, *how: channel.consuming.nack(*how),
    "basic.reject": lambda channel, *how: channel.consuming.reject(*how),
    "basic.recover": _recover,
    "basic.recover-async": lambda channel, requeue: channel.consuming.recover(requeue),
    "confirm.select": _confirm,
    "tx.select": _select,
    "tx.commit": lambda channel: channel.publishing.commit(),
    "tx.rollback": lambda channel: channel.publishing.roll_back(),
}
HANDLERS: dict[int, Handler] = {NUMBERS[name]: handler for name, handler in _BY_NAME.items()}

"""One client of STOMP: frames in, frames out, receipts when what they are for is safe.

An error is one ERROR frame, after which the connection is closed, as the specification has it. Its
`message` says which kind of error it is, and its body what to do.

Invariants: each frame with a receipt gets one RECEIPT or one ERROR, unless the connection is lost;
the one of DISCONNECT comes after those of all frames before it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from onelog import __version__, errors
from onelog.core.access import Principal
from onelog.gateways import GatewayContext, code_of
from onelog.gateways.stomp.headers import number
from onelog.net.connection import Connection, FramedSession
from onelog.wire.stomp.frame import VERSIONS, Frame, StompFrameReader, encode_frame

if TYPE_CHECKING:
    from onelog.core.queues.queue import WorkQueue
    from onelog.gateways.stomp.subscriptions import Subscription
    from onelog.gateways.stomp.transactions import Transaction

log = logging.getLogger(__name__)

PENDING_MAX = 1_000
"""Messages of one client that may wait for the disk; more stay unread."""
DEFAULT_VHOST = "/"
HEARTBEAT_MIN_MS = 200
"""More often no client is promised a heart-beat."""
SILENCE_FACTOR = 2
"""Heart-beats of clients may be late, by as much again."""

ERROR_TEXTS: dict[type[errors.OnelogError], str] = {
    errors.OnelogError: "internal error",
    errors.WireError: "malformed frame",
    errors.InvalidRequestError: "bad request",
    errors.FilterSyntaxError: "bad selector",
    errors.ExchangeNotFoundError: "not found",
    errors.QueueNotFoundError: "not found",
    errors.TransactionNotFoundError: "no such transaction",
    errors.NotPermittedError: "access refused",
    errors.NotAuthenticatedError: "wrong login",
    errors.ResourceLockedError: "resource locked",
    errors.PreconditionFailedError: "precondition failed",
    errors.QueueFullError: "queue full",
    errors.MessageError: "bad message",
    errors.MessageTooLargeError: "message too large",
    errors.StoreError: "store failed",
    errors.BrokerBusyError: "broker busy",
    errors.NotMasterError: "not the master",
}
"""Kinds of errors, as ERROR frames name them; others are named like their nearest parent."""

Handler = Callable[["StompSession", Frame], None]


class Gateway:
    """What all sessions of one broker share."""

    def __init__(self, context: GatewayContext, handlers: Mapping[str, Handler]) -> None:
        self.context = context
        self.broker = context.broker
        self.clock = context.clock
        self.handlers = handlers
        self.sessions: set[StompSession] = set()
        self.declared: set[tuple[str, str]] = set()
        """Queues that are known to be there: virtual host and name."""
        self.broker.queues.declared.on_deleted.append(self._queue_deleted)

    def _queue_deleted(self, queue: "WorkQueue", reason: str) -> None:
        self.declared.discard((queue.vhost, queue.name))

    def tick(self) -> None:
        """Send heart-beats that are due, and end connections whose own are missing."""
        now_ms = self.clock.now_ms()
        for session in list(self.sessions):
            session.connection.guard(session.beat, now_ms)


class StompSession(FramedSession):
    """One client. It is also the owner that the core knows its queues and consumers by."""

    _reader: StompFrameReader

    def __init__(self, connection: Connection, gateway: Gateway) -> None:
        super().__init__(connection)
        self._reader = StompFrameReader(gateway.broker.admin.config.frame_bytes_max)
        connection.reads_on = True
        self.gateway = gateway
        self.broker = gateway.broker
        self.principal = Principal("", "stomp", connection.remote_address)
        self.version = ""
        """Empty, until it has connected."""
        self.session_id = f"{gateway.context.random.getrandbits(64):016x}"
        self.client_id = ""
        self.vhost = DEFAULT_VHOST
        self.subscriptions: dict[str, Subscription] = {}
        self.numbered: dict[int, Subscription] = {}
        """The same, by the numbers that are in the ids of their messages."""
        self.last_number = 0
        self.temporary: dict[str, WorkQueue] = {}
        """Queues for answers, by the names that this client has for them."""
        self.transactions: dict[str, Transaction] = {}
        self.pending = 0
        """How much waits for the disk."""
        self._is_logging_in = False
        self._leaves: str | None = None
        """The receipt of a DISCONNECT; empty, if it asks for none."""
        self._sends_ms = self._expects_ms = 0
        """How often it sends heart-beats, and gets some; 0 for never."""
        self._sent_ms = self._heard_ms = 0
        self._heard = False

    # -- frames --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._heard = True
        super().data_received(data)

    def _handle_read(self) -> None:
        connection = self.connection
        if self.pending >= PENDING_MAX or self._leaves is not None or self._is_logging_in:
            return
        try:
            for frame in self._reader.frames():
                self._handle(frame)
                if connection.closing or self._leaves is not None:
                    break
                if self.pending >= PENDING_MAX or self._is_logging_in:
                    connection.hold(True)
                    break
                if connection.turn_is_over():
                    break
        except errors.WireError as error:
            self.fail(error)

    def _handle(self, frame: Frame) -> None:
        command = frame.command
        try:
            if not self.version:
                if command not in ("CONNECT", "STOMP"):
                    raise errors.InvalidRequestError(
                        f"{command[:40]!r} before CONNECT: connect first"
                    )
                self._connect(frame)
                return
            handler = self.gateway.handlers.get(command)
            if handler is None:
                raise errors.InvalidRequestError(
                    f"{command[:40]!r} is no command of a client that is connected; there are "
                    + ", ".join(self.gateway.handlers)
                )
            handler(self, frame)
        except errors.OnelogError as error:
            self.fail(error, frame.headers.get("receipt"))

    def say(self, command: str, headers: list[tuple[str, str]], body: bytes = b"") -> None:
        """Send a frame."""
        self.connection.write(encode_frame(command, headers, body, self.version or "1.0"))

    def fail(self, error: errors.OnelogError, receipt: str | None = None, **headers: str) -> None:
        """Tell what went wrong, and close."""
        if self.connection.closing:
            return
        log.info("%s: %s", self.connection, error)
        text = str(error).encode()
        headers_of_error = [
            ("message", code_of(error, ERROR_TEXTS, "internal error")),
            *headers.items(),
        ]
        if receipt is not None:
            headers_of_error.append(("receipt-id", receipt))
        headers_of_error += [("content-type", "text/plain"), ("content-length", str(len(text)))]
        self.say("ERROR", headers_of_error, text)
        self.connection.close()

    # -- receipts ------------------------------------------------------------------------------

    def receipt(self, receipt: str | None) -> None:
        """What a frame asked for is done, and safe."""
        if receipt is not None:
            self.say("RECEIPT", [("receipt-id", receipt)])

    def stored(self, receipt: str | None, where: Any, error: errors.OnelogError | None) -> None:
        """A message is as safe as configured, or refused."""
        self.settled(receipt, error)

    def settled(self, receipt: str | None, error: errors.OnelogError | None) -> None:
        """Something that was pending is done."""
        self.pending -= 1
        if error is not None:
            self.fail(error, receipt)
            return
        if receipt is not None:
            self.say("RECEIPT", [("receipt-id", receipt)])
        if self._leaves is not None:
            self._leave()
        elif self.connection.held and self.pending < PENDING_MAX // 2:
            self._go_on()

    def disconnect(self, receipt: str | None) -> None:
        """Close when all that came before is done."""
        self._leaves = receipt or ""
        self._leave()

    def _leave(self) -> None:
        if not self.pending:
            self.receipt(self._leaves or None)
            self.connection.close()

    # -- connecting ----------------------------------------------------------------------------

    def _connect(self, frame: Frame) -> None:
        headers = frame.headers
        offered = [each.strip() for each in headers.get("accept-version", "1.0").split(",")]
        common = [each for each in VERSIONS if each in offered]
        if not common:
            error = errors.InvalidRequestError(
                f"version {', '.join(offered)[:100]} is not spoken here, but {', '.join(VERSIONS)}"
            )
            self.fail(error, version=",".join(VERSIONS))
            return
        ours = self._agree_on_heartbeats(headers.get("heart-beat", "0,0"))
        self.vhost = headers.get("host", DEFAULT_VHOST)
        self.client_id = headers.get("client-id", "")
        self._is_logging_in = True
        headers_of_error = partial(self._logged_in, common[-1], ours)
        logins, origin = self.broker.users.logins, ("stomp", self.connection.remote_address)
        certified = logins.certified(self.connection.certificate, *origin)
        if certified is not None and "login" not in headers:
            headers_of_error(certified)
        else:
            logins.log_in(
                headers.get("login", ""), headers.get("passcode", ""), *origin, headers_of_error
            )

    def _logged_in(
        self, version: str, heartbeats: str, found: Principal | errors.OnelogError
    ) -> None:
        """It is known who that is, or that it is nobody."""
        self._is_logging_in = False
        if self.connection.closing:
            return
        if isinstance(found, errors.OnelogError):
            self.fail(found)
            return
        self.principal = found
        self.connection.user = found.name
        # Clients put the name of the machine there, if they know of nothing better.
        if not self.broker.publish.routing.is_open_to(found, self.vhost):
            self.vhost = DEFAULT_VHOST
        self.version = self._reader.version = version
        # Who wants to know that the other side is alive, says so by heart-beats.
        self.connection.idle_ms = 0
        self.gateway.sessions.add(self)
        self.say(
            "CONNECTED",
            [
                ("version", self.version),
                ("session", self.session_id),
                ("server", f"OneLog/{__version__}"),
                ("heart-beat", heartbeats),
            ],
        )
        if self.connection.held:
            self._go_on()

    def _go_on(self) -> None:
        """Handle what came while the connection was held."""
        self.connection.wait_for_turn()
        self.connection.hold(False)

    def _agree_on_heartbeats(self, wanted: str) -> str:
        """What this side promises and expects, as the client asks for it."""
        names = ("can send", "wants")
        numbers = dict(zip(names, wanted.split(","), strict=False))
        if len(numbers) != len(names) or wanted.count(",") != 1:
            raise errors.InvalidRequestError(
                f"heart-beat:{wanted[:40]} is not two numbers, as in 0,10000"
            )
        expects, sends = (number(numbers, name, 1 << 31) for name in names)
        now_ms = self.gateway.clock.now_ms()
        self._expects_ms = max(expects, HEARTBEAT_MIN_MS) if expects else 0
        self._sends_ms = max(sends, HEARTBEAT_MIN_MS) if sends else 0
        self._sent_ms = self._heard_ms = now_ms
        return f"{self._sends_ms},{self._expects_ms}"

    def beat(self, now_ms: int) -> None:
        """Send a heart-beat if one is due; end the connection if none came for too long."""
        if self._sends_ms and now_ms - self._sent_ms >= self._sends_ms * 4 // 5:
            self._sent_ms = now_ms
            if not self.connection.congested:
                self.connection.write(b"\n")
        if not self._expects_ms:
            return
        if self._heard or self.connection.held:
            self._heard = False
            self._heard_ms = now_ms
        elif now_ms - self._heard_ms > self._expects_ms * SILENCE_FACTOR:
            log.info("%s sent no heart-beat for %d ms", self.connection, now_ms - self._heard_ms)
            self.connection.abort()

    # -- the connection ------------------------------------------------------------------------

    def writable(self) -> None:
        """The peer reads again: go on with deliveries."""
        for subscription in self.subscriptions.values():
            subscription.resume()
        super().writable()

    def connection_lost(self) -> Iterator[None]:
        """The connection is gone: what it did not acknowledge is for others."""
        self.gateway.sessions.discard(self)
        return self._leave_behind()

    def _leave_behind(self) -> Iterator[None]:
        for subscription in list(self.subscriptions.values()):
            yield from subscription.ending(counted=False)
        self.subscriptions.clear()
        self.numbered.clear()
        self.transactions.clear()
        self.broker.groups.channel_closed(self)


def disconnect(session: StompSession, frame: Frame) -> None:
    """DISCONNECT: goodbye, once everything is done."""
    session.disconnect(frame.headers.get("receipt"))


def required(frame: Frame, name: str) -> str:
    """A header that a frame must have."""
    value = frame.headers.get(name)
    if value is None:
        raise errors.InvalidRequestError(f"{frame.command} needs the header {name!r}")
    return value

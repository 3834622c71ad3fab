"""One connection of gRPC clients: calls in, answers out.

A handler takes the call and its request. It returns the answer, or None if that comes later, or is
a stream. What goes wrong is raised, and becomes the status in an answer, as the proxy's would be
(`answers`). What is no request gets a status of gRPC itself.
"""

import asyncio
import base64
import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from onelog.config import GrpcConfig
from onelog.config_sources import Loaded
from onelog.core.access import Principal
from onelog.errors import FlushTimeoutError, NotAuthenticatedError, OnelogError
from onelog.gateways import GatewayContext, RefusedError
from onelog.gateways.grpc.answers import OK, status_of
from onelog.gateways.grpc.clients import Clients, GrpcClient
from onelog.gateways.grpc.endpoints import Endpoints
from onelog.gateways.grpc.renewal import Renewal
from onelog.jobs import Job
from onelog.message import encode_host
from onelog.net.connection import Connection, FramedSession
from onelog.rocketmq.profile import added_properties
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code
from onelog.wire.grpc.http2 import ServerConnection, Status, Stream

log = logging.getLogger(__name__)

CALL_SECONDS_MAX = 30.0
"""Within which a request must be whole."""


class Method(NamedTuple):
    """What a path stands for."""

    name: str
    request: Any
    answer: Any
    handle: "Handler"
    streams_requests: bool = False
    answers_by: "Callable[[Call, Any], None] | None" = None
    """How a status is answered, where that is not just the answer's field."""


class Call:
    """One call: who makes it, and how it is answered. It owns what is held for it."""

    __slots__ = "_headers client_id ended gateway method principal request session stream".split()

    def __init__(
        self, session: "GrpcSession", stream: Stream, method: Method, headers: dict[bytes, bytes]
    ) -> None:
        self.session = session
        self.gateway = session.gateway
        self.stream = stream
        self.method = method
        self._headers = headers
        self.client_id = headers.get(b"x-mq-client-id", b"").decode("utf-8", "replace")
        self.principal = session.principal
        self.request: bytes | None = None
        self.ended: Callable[[], None] | None = None
        """Called when the call is over, beside the core."""

    def header(self, name: bytes) -> str:
        """Some of its metadata; empty if there is none."""
        return self._headers.get(name, b"").decode("utf-8", "replace")

    @property
    def remaining_ms(self) -> int | None:
        """How long the client waits for the answer, from when it asked; None if it does not say."""
        return _timeout_ms(self._headers.get(b"grpc-timeout", b""))

    @property
    def is_over(self) -> bool:
        """Whether nobody listens any more."""
        return self.stream.is_done

    def answer(self, answer: Any) -> None:
        self.stream.answer(answer.SerializeToString())

    def send(self, answer: Any) -> None:
        self.stream.send(answer.SerializeToString())

    def fail(self, error: OnelogError) -> None:
        """Answer with the status of an error."""
        self.answer_status(status_of(error))

    def refused(self, error: Principal | OnelogError) -> None:
        """Answer that the signature is wrong, if that may be said."""
        if isinstance(error, OnelogError) and not self.is_over:
            self.guard(self.fail, error)

    def answer_status(self, status: Any) -> None:
        """Answer with nothing but a status."""
        if self.method.answers_by is not None:
            self.method.answers_by(self, status)
        else:
            self.answer(self.method.answer(status=status))

    def conclude(self, error: OnelogError | None) -> None:
        """Answer a request whose change was recorded, or was not; a slow disk undoes nothing."""
        if error is None or type(error) is FlushTimeoutError:
            self.answer_status(OK)
        else:
            self.fail(error)

    def guard(self, act: Callable[..., Any], *arguments: Any) -> None:
        """Answer with what comes of an act, if anything does."""
        try:
            answer = act(*arguments)
        except OnelogError as error:
            self.fail(error)
        except Exception as error:
            log.exception("%s of %s failed", self.method.name, self.session.connection)
            text = type(error).__name__
            self.answer_status(messages.Status(code=Code.INTERNAL_SERVER_ERROR, message=text))
        else:
            if answer is not None:
                self.answer(answer)

    def look_up(self, find: Callable[[], Any], then: Callable[[Any], Any]) -> None:
        """Answer with what `then` makes of what `find` finds in a worker."""
        self.gateway.context.look_up(find, lambda found: self.guard(lambda: then(found())))


Handler = Callable[[Call, Any], Any]

_SIGNED = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=([^,/ ]+)[^,]*, *SignedHeaders=x-mq-date-time, *"
    r"Signature=([0-9a-fA-F]{40})"
)
"""How a call is signed: the HMAC of its time, by the secret of a user."""

_UNITS_MS = {b"H": 3_600_000, b"M": 60_000, b"S": 1_000, b"m": 1, b"u": 0.001, b"n": 0.000_001}


@lru_cache(256)
def _timeout_ms(text: bytes) -> int | None:
    number, unit = text[:-1], _UNITS_MS.get(text[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        return None
    return int(int(number) * unit)


class Gateway:
    """What all sessions of one broker share."""

    def __init__(
        self, context: GatewayContext, handlers: dict[str, tuple[Any, ...]], endpoints: Endpoints
    ) -> None:
        self.context = context
        self.endpoints = endpoints
        self.broker = context.broker
        self.clock = context.clock
        self.pop = context.pop
        self.clients = Clients(self)
        self.renewal = Renewal(context)
        self.sessions: set[GrpcSession] = set()
        self.methods = {
            path.encode(): Method(name := path.rpartition("/")[2], *kinds, *handlers[name])
            for path, kinds in messages.methods().items()
        }
        self.refresh(context.loaded)
        self._is_closed = False
        self._sweeping = Job("looking for gRPC clients that are gone")
        self._sweep()

    def refresh(self, loaded: Loaded) -> None:
        """Take over what follows from the configuration."""
        self.settings: GrpcConfig = loaded.config.grpc
        self.added_properties = added_properties(loaded.config.broker)

    def _sweep(self) -> None:
        """Now and then, end what nobody will ever end."""
        if not self._is_closed:
            for session in list(self.sessions):
                session.connection.guard(session.sweep)
            with self._sweeping:
                self.clients.sweep()
            asyncio.get_running_loop().call_later(CALL_SECONDS_MAX, self._sweep)

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, act)

    def close(self) -> None:
        """Take no more calls."""
        self._is_closed = True
        self.renewal.close()
        for session in self.sessions:
            session.leave()


class GrpcSession(FramedSession):
    """One connection."""

    def __init__(self, connection: Connection, gateway: Gateway) -> None:
        super().__init__(connection)
        self.gateway = gateway
        self._reader = self._http = ServerConnection(connection.write, self, self._is_over)
        host, port = connection.remote
        origin = "grpc", connection.remote_address
        certified = gateway.broker.users.logins.certified(connection.certificate, *origin)
        self.principal = self._signed = certified or Principal("", *origin)
        self.born_host = encode_host(host.partition("%")[0] or "127.0.0.1", port)
        self._late: set[Stream] = set()
        """Calls that were there at the last sweep, and were not whole."""
        self.clients: set[GrpcClient] = set()
        """Those that were last heard here."""
        gateway.sessions.add(self)

    def _handle_read(self) -> None:
        """The reader has told of calls as it was fed."""

    def _is_over(self) -> bool:
        connection = self.connection
        return connection.congested or connection.closing or connection.turn_is_over()

    def writable(self) -> None:
        """The peer reads again: go on with what was left unread."""
        self._http.feed(b"")
        super().writable()

    def opened(self, stream: Stream) -> None:
        """A call begins."""
        headers = stream.headers
        method = self.gateway.methods.get(headers.get(b":path", b""))
        if method is None:
            stream.finish(Status.UNIMPLEMENTED, "there is no such method here")
        elif not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            stream.finish(Status.INTERNAL, "the content-type is not application/grpc")
        else:
            stream.token = Call(self, stream, method, headers)

    def received(self, stream: Stream, message: bytes) -> None:
        call: Call = stream.token
        if call.method.streams_requests:
            self._handle(call, message)
        elif call.request is not None:
            stream.finish(Status.INTERNAL, "a second request in one call")
        else:
            call.request = message

    def half_closed(self, stream: Stream) -> None:
        """The client has said everything."""
        call: Call | None = stream.token
        if call is None or call.is_over:
            return
        if call.method.streams_requests:
            stream.finish()
        elif call.request is None:
            stream.finish(Status.INTERNAL, "a call without a request")
        else:
            self._handle(call, call.request)

    def _handle(self, call: Call, message: bytes) -> None:
        method = call.method
        try:
            request = method.request.FromString(message)
        except DecodeError:
            call.stream.finish(Status.INTERNAL, f"that is no {method.request.DESCRIPTOR.name}")
            return
        if not call.client_id:
            call.fail(RefusedError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty"))
            return
        if not self.gateway.broker.users.is_open:
            try:
                principal = self._signer(call)
                if principal is None:
                    return
                call.principal = principal
                self.connection.user = principal.name
            except NotAuthenticatedError as error:
                call.fail(error)
                return
        call.guard(method.handle, call, request)

    def _signer(self, call: Call) -> Principal | None:
        """Who has signed the call; None if it was not they, which is answered later.

        `NotAuthenticatedError` if requests must be signed, and this one is not.
        """
        logins = self.gateway.broker.users.logins
        signed = _SIGNED.fullmatch(call.header(b"authorization"))
        if signed is None:
            if logins.is_needed and not self.principal.name:
                raise NotAuthenticatedError("requests have to be signed by a user")
            return self.principal
        given = base64.b64encode(bytes.fromhex(signed[2])).decode()
        content = call.header(b"x-mq-date-time").encode()
        principal = logins.signed(signed[1], given, content, self._signed, call.refused)
        self._signed = principal or self._signed
        return principal

    def ended(self, stream: Stream) -> None:
        """A call is over, however."""
        call: Call | None = stream.token
        if call is not None:
            if call.ended is not None:
                call.ended()
            self._late.discard(stream)
            stream.token = None  # Each knows the other: nothing else would free them soon.

    def sweep(self) -> None:
        """End calls whose request does not come."""
        streams = list(self._http.streams.values())
        unfinished = {each for each in streams if _is_unfinished(each)}
        for stream in unfinished & self._late:
            stream.finish(Status.DEADLINE_EXCEEDED, "the request did not arrive in time")
        self._late = unfinished - self._late

    def leave(self) -> None:
        """The broker stops: clients should not begin anything new here."""
        self._http.leave()

    def connection_lost(self) -> None:
        """The connection is gone, and with it all its calls."""
        self.gateway.sessions.discard(self)
        self._http.lost()
        self.gateway.clients.session_lost(self.clients, self)


def _is_unfinished(stream: Stream) -> bool:
    call: Call | None = stream.token
    # On a stream that stays open, a client introduces itself.
    return stream.is_open and (
        call is None
        or not call.method.streams_requests
        or call.ended is None
        or bool(stream.unread)
    )

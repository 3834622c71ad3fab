"""The remoting protocol on a connection: requests and answers in both directions.

A `RemotingSession` reads commands and calls `handle` for each request, as a plain call; the answer
is given there and then with `reply`, or later, or never (one-way requests want none). It can ask
its peer too: requests of either side have their own numbers (`opaque`), and an answer is known by
its flag.

Invariants: requests are handled in the order they came; every `request` ends in exactly one call
of its callback, with the answer or with the reason why there is none; while the peer is behind
with reading, or has had its turn, its further requests stay unread.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, NoReturn, TypeVar

from onelog.errors import NotPermittedError, OnelogError, PeerClosedError, PeerTimeoutError
from onelog.net.connection import Buffer, Connection, FramedSession
from onelog.wire.remoting.administration import refusal
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    INT32_MAX,
    REFUSED,
    Command,
)
from onelog.wire.remoting.frame import (
    FRAME_BYTES_MAX,
    CompactHeaders,
    RemotingFrameReader,
    encode_request,
    encode_response,
)

Answered = Callable[[Command | OnelogError], None]

log = logging.getLogger(__name__)


class Unanswered:
    """A request that waits for its answer, until `deadline` by the loop's clock."""

    __slots__ = ("code", "deadline", "timeout_ms")

    code: int
    deadline: float
    timeout_ms: int

    def answered(self, answer: Command | OnelogError) -> None:
        """The answer came, or will not come any more. Called once."""
        raise NotImplementedError


class _PendingRequest(Unanswered):
    """A request whose answer goes to a function."""

    __slots__ = ("_tell",)

    def __init__(self, tell: Answered) -> None:
        self._tell = tell

    def answered(self, answer: Command | OnelogError) -> None:
        self._tell(answer)


class RemotingSession(FramedSession):
    """One peer that speaks remoting."""

    _reader: RemotingFrameReader
    language = "JAVA"
    """What our requests say that we are written in."""
    unanswered_max = 4_096
    """Requests to one peer that may wait for an answer at a time."""

    def __init__(
        self,
        connection: Connection,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = FRAME_BYTES_MAX,
        headers: CompactHeaders | None = None,
    ) -> None:
        super().__init__(connection)
        self._reader = RemotingFrameReader(frame_bytes_max, header_bytes_max, headers)
        self._unanswered: dict[int, Unanswered] = {}
        self._opaque = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at = 0.0

    @abstractmethod
    def handle(self, command: Command) -> None:
        """Handle a request."""

    def closed(self) -> None:
        """The connection is gone. For sessions that must clean up."""
        return

    def reply(
        self,
        request: Command,
        code: int = ResponseCode.SUCCESS,
        ext: dict[str, str] | None = None,
        remark: str | None = None,
        body: Buffer | tuple[Buffer, ...] | list[memoryview] = b"",
    ) -> None:
        """Answer a request in the form it came in; does nothing if it wants no answer."""
        if not request.flag & (FLAG_ONEWAY | FLAG_RESPONSE):
            self.connection.send(
                encode_response(code, request.opaque, ext, remark, body, request.serialize)
            )

    def refuse_unknown(self, request: Command) -> None:
        """Answer a request whose code has no handler, or whose fields are too long."""
        if request.code == REFUSED:
            self.reply(request, ResponseCode.SYSTEM_ERROR, remark=request.remark)
            return
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        self.reply(request, code, remark=f" request type {request.code} not supported")

    def request(
        self,
        code: RequestCode,
        ext: dict[str, str] | None,
        body: Buffer,
        timeout_ms: int,
        answered: Answered,
    ) -> None:
        """Ask the peer; `answered` gets its answer, a `PeerTimeoutError` or a `PeerClosedError`."""
        loop = asyncio.get_running_loop()
        if self.connection.closing:
            loop.call_soon(answered, PeerClosedError(f"{self.connection} is closed"))
            return
        if len(self._unanswered) >= self.unanswered_max:
            reason = f"{self.connection} owes {self.unanswered_max} answers already"
            loop.call_soon(answered, PeerTimeoutError(reason))
            return
        opaque = self.expect(_PendingRequest(answered), code, timeout_ms, loop)
        self.connection.send(encode_request(code, opaque, ext, body, language=self.language))

    def expect(
        self, request: Unanswered, code: int, timeout_ms: int, loop: asyncio.AbstractEventLoop
    ) -> int:
        """The number for a request that the caller writes himself, and whose answer he wants.

        The connection must be open, and the caller sees to it that the peer does not owe too many
        answers.
        """
        self._opaque = opaque = self._opaque % INT32_MAX + 1
        request.code = code
        request.timeout_ms = timeout_ms
        request.deadline = deadline = loop.time() + timeout_ms / 1000
        self._unanswered[opaque] = request
        # One timer for all, at the time of the first deadline when it was set: mostly that
        # request has its answer by then, and the timer moves on.
        if self._sweep is None:
            self._sweep_at = deadline
            self._sweep = loop.call_at(deadline, self._expire, loop)
        elif deadline < self._sweep_at:
            self._sweep.cancel()
            self._sweep_at = deadline
            self._sweep = loop.call_at(deadline, self._expire, loop)
        return opaque

    def owes_since(self) -> float | None:
        """Since when the peer owes an answer, by the loop's clock; None if it owes none."""
        first = next(iter(self._unanswered.values()), None)
        return None if first is None else first.deadline - first.timeout_ms / 1000

    def oneway(
        self, code: RequestCode, ext: dict[str, str] | None = None, body: Buffer = b""
    ) -> None:
        """Tell the peer something that needs no answer."""
        opaque = self._next_opaque()
        frame = encode_request(code, opaque, ext, body, oneway=True, language=self.language)
        self.connection.send(frame)

    # Called by the connection.

    def connection_lost(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        unanswered, self._unanswered = self._unanswered, {}
        for waiting in unanswered.values():
            waiting.answered(PeerClosedError(f"{self.connection} was closed before it answered"))
        self.closed()

    def _handle_read(self) -> None:
        connection = self.connection
        for command in self._reader.commands():
            try:
                if command.flag & FLAG_RESPONSE:
                    self._take_answer(command)
                else:
                    self.handle(command)
            except Exception as error:
                # A bug of ours; the peer's other requests should not suffer from it.
                log.exception("request %d of %s failed", command.code, connection)
                self.reply(command, ResponseCode.SYSTEM_ERROR, remark=type(error).__name__)
            if connection.congested or connection.closing or connection.turn_is_over():
                return

    def _take_answer(self, command: Command) -> None:
        waiting = self._unanswered.pop(command.opaque, None)
        if waiting is None:
            log.debug("%s answered %d, which nobody asked", self.connection, command.opaque)
            return
        waiting.answered(command)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        late = [opaque for opaque, each in self._unanswered.items() if each.deadline <= now]
        expired = [self._unanswered.pop(opaque) for opaque in late]
        self._sweep = None
        if self._unanswered:
            self._sweep_at = min(each.deadline for each in self._unanswered.values())
            self._sweep = loop.call_at(self._sweep_at, self._expire, loop)
        for each in expired:
            what = f"request {each.code} within {each.timeout_ms} ms"
            each.answered(PeerTimeoutError(f"{self.connection} did not answer {what}"))

    def _next_opaque(self) -> int:
        self._opaque = self._opaque % INT32_MAX + 1
        return self._opaque


_Answer = TypeVar("_Answer")


class ServerSession(RemotingSession, Generic[_Answer]):
    """One peer of a server, which has a handler for each kind of request.

    A handler takes the session and the command. It returns the answer, or None if that comes later
    or never; what it raises is for `fail` to tell.
    """

    handlers: Mapping[int, Callable[[Any, Command], _Answer | None]]
    _is_warned = False

    def handle(self, command: Command) -> None:
        """Answer a request."""
        handler = self.handlers.get(command.code)
        if handler is None:
            self.refuse_unknown(command)
            return
        try:
            answer = handler(self, command)
        except OnelogError as error:
            self.fail(command, error)
        else:
            if answer is not None:
                self.answer(command, answer)

    @abstractmethod
    def answer(self, command: Command, answer: _Answer) -> None:
        """Send a successful answer."""

    @abstractmethod
    def fail(self, command: Command, error: OnelogError) -> None:
        """Answer a request that went wrong."""

    def refuse(self, reason: str) -> NoReturn:
        """Do not do what this peer may not want; the log has the first refusal of a connection."""
        if not self._is_warned:
            self._is_warned = True
            log.warning("%s: %s", self.connection, reason)
        raise NotPermittedError(reason)

    def refuse_remote(self, command: Command) -> NoReturn:
        """In the place of handlers that administer."""
        self.refuse(refusal(command.code, self.connection.remote[0]))

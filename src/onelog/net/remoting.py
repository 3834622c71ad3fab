"""The remoting protocol on a connection: requests and answers in both directions.

A `RemotingSession` reads commands and calls `handle` for each request, as a plain call; the answer
is given there and then with `reply`, or later, or never (one-way requests want none). It can ask
its peer too: requests of either side have their own numbers (`opaque`), and an answer is known by
its flag.

Invariants: requests are handled in the order they came; every `request` ends in exactly one call
of its callback, with the answer or with the reason why there is none; while the peer is behind
with reading, its further requests stay unread.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from onelog.errors import OnelogError, PeerClosedError, PeerTimeoutError
from onelog.net.connection import Buffer, Connection
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, INT32_MAX, Command
from onelog.wire.remoting.frame import (
    FRAME_BYTES_MAX,
    FrameReader,
    encode_request,
    encode_response,
)

UNANSWERED_MAX = 4096
"""Requests to one peer that may wait for an answer at a time."""

Answered = Callable[[Command | OnelogError], None]

log = logging.getLogger(__name__)


class _Unanswered(NamedTuple):
    answered: Answered
    timer: asyncio.TimerHandle


class RemotingSession(ABC):
    """One peer that speaks remoting."""

    def __init__(self, connection: Connection, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.connection = connection
        self._reader = FrameReader(frame_bytes_max)
        self._unanswered: dict[int, _Unanswered] = {}
        self._opaque = 0

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
        """Answer a request whose code has no handler."""
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
        if len(self._unanswered) >= UNANSWERED_MAX:
            reason = f"{self.connection} owes {UNANSWERED_MAX} answers already"
            loop.call_soon(answered, PeerTimeoutError(reason))
            return
        opaque = self._next_opaque()
        timer = loop.call_later(timeout_ms / 1000, self._expire, opaque, code, timeout_ms)
        self._unanswered[opaque] = _Unanswered(answered, timer)
        self.connection.send(encode_request(code, opaque, ext, body))

    def oneway(
        self, code: RequestCode, ext: dict[str, str] | None = None, body: Buffer = b""
    ) -> None:
        """Tell the peer something that needs no answer."""
        self.connection.send(encode_request(code, self._next_opaque(), ext, body, oneway=True))

    # Called by the connection.

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._reader.feed(data)
        self._handle_read()

    def writable(self) -> None:
        """The peer reads again: go on with the requests that were put off."""
        self._handle_read()

    def connection_lost(self) -> None:
        """The connection is gone."""
        unanswered, self._unanswered = self._unanswered, {}
        for answered, timer in unanswered.values():
            timer.cancel()
            answered(PeerClosedError(f"{self.connection} was closed before it answered"))
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
            if connection.congested or connection.closing:
                return

    def _take_answer(self, command: Command) -> None:
        waiting = self._unanswered.pop(command.opaque, None)
        if waiting is None:
            log.debug("%s answered %d, which nobody asked", self.connection, command.opaque)
            return
        waiting.timer.cancel()
        waiting.answered(command)

    def _expire(self, opaque: int, code: RequestCode, timeout_ms: int) -> None:
        reason = f"{self.connection} did not answer request {code} within {timeout_ms} ms"
        self._unanswered.pop(opaque).answered(PeerTimeoutError(reason))

    def _next_opaque(self) -> int:
        self._opaque = self._opaque % INT32_MAX + 1
        return self._opaque

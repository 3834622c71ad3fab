"""One connection: bytes in, bytes out, and what keeps a bad peer from hurting the others.

A `Session` is the protocol's side of it: it is called with the bytes that arrive, as a plain call,
and answers with `write` and `send`. What all sessions of a loop write in one tick leaves at its
end, with one write per connection (`Outbox`).

Work for peers is bounded by time. After `BUSY_SECONDS` of a tick, what else arrives waits. A
session with several requests at hand asks between them whether its `turn_is_over`, and leaves the
rest for its next turn; it is not read from until then. Turns are taken in order, at the end of each
tick, and the more connections wait for theirs, the shorter they are. So the loop looks at its
sockets and timers again after some milliseconds, whatever peers send, and who asks little does not
wait for those who ask much.

Invariants: a peer that does not read is not read from either (`congested`), and is cut off when
more than `write_bytes_max` wait for it beside what has put it behind, which may be one large
answer; what waits here, either way, is told to the listeners'
`Capacity`; an error in a session closes its own connection and no other, with one line in the log.
"""

import asyncio
import ipaddress
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Protocol, cast

from onelog.errors import WireError
from onelog.net.capacity import Capacity
from onelog.net.line import Line

Buffer = bytes | bytearray | memoryview

FLUSH_BYTES = 256 << 10
"""Bytes of one connection that are not held back until the end of the tick."""
JOIN_BYTES_MAX, SMALL_BYTES = 64 << 10, 1 << 10
"""Up to here, buffers are copied into one: that costs less than handing each to the kernel. So it
does for any number of small ones."""
FLUSHED_AT_ONCE = 100
"""Connections that are flushed before the clock is looked at."""
BUSY_SECONDS = 0.005
TURN_SECONDS_MIN = 0.0005
"""What a connection with work left has at least, however many others wait for their turn."""
ROUNDS = 2
"""Of calls at the end of a tick: those that were asked for (an append), and those that they ask for
in turn (queues deliver what was appended). What these ask for waits for the next tick."""
REST_SECONDS, RESTS_MAX = 0.001, 32
LATE_BYTES_MAX = 16 << 20
"""What all connections of a loop may have read and put off; more is handled at once."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a listener lets each of its peers take, and with others all of them."""

    idle_ms: int = 120_000
    write_pause_bytes: int = 1 << 20
    write_bytes_max: int = 16 << 20
    capacity: Capacity | None = None
    proxied: bool = False
    """Whether a connection may begin with the prefix of a load balancer."""


class Session(Protocol):
    """What a protocol does with one connection. Its constructor is given the `Connection`."""

    def data_received(self, data: bytes) -> None:
        """Bytes arrived; none, if it is its turn to go on with those before. A `WireError` from
        here closes the connection."""

    def writable(self) -> None:
        """The peer reads again, after the connection was `congested`."""

    def connection_lost(self) -> Iterator[None] | None:
        """The connection is gone, for whatever reason. Called once.

        What may take long is left to an iterator, which is gone through some steps at a time.
        """


class Frames(Protocol):
    """Cuts what arrives into frames."""

    @property
    def unread_bytes(self) -> int:
        """What was not handled yet."""

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""


class FramedSession(ABC):
    """A session whose requests are frames; it tells how much of one waits for the rest."""

    _reader: Frames

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self._unread = 0
        self._work: deque[Iterator[object]] = deque()
        """What is done a step at a time; what follows on the connection waits for it."""

    def work(self, steps: Iterator[object]) -> None:
        """Do what may take long, a step at a time, in as many turns as that needs."""
        self._work.append(steps)
        if len(self._work) == 1:
            self._is_done()

    def _is_done(self) -> bool:
        """Go on with what was begun; False if the turn was over before its end."""
        work, connection = self._work, self.connection
        while work:
            for _ in work[0]:
                if connection.closing:
                    break
                if connection.turn_is_over():
                    return False
            work.popleft()
        return True

    def drop_work(self) -> None:
        """Nobody is there any more for whom it is done."""
        self._work.clear()

    @abstractmethod
    def _handle_read(self) -> None:
        """Handle the frames that are whole, as far as the connection lets it."""

    def data_received(self, data: bytes) -> None:
        """Bytes arrived, or it is its turn again."""
        self._reader.feed(data)
        if not self._work or self._is_done():
            self._handle_read()
        unread = self._reader.unread_bytes
        if unread or self._unread:
            self._keep(unread, unread != self._unread + len(data))

    def writable(self) -> None:
        """The peer reads again: go on with the requests that were put off."""
        if not self._work or self._is_done():
            self._handle_read()
        self._keep(self._reader.unread_bytes, True)

    def _keep(self, unread: int, anew: bool) -> None:
        """So many bytes wait for the rest of their frame; `anew`: it is another than before."""
        self._unread = unread
        backlog = self.connection.unread
        if backlog is not None:
            backlog.keep(self.connection, unread, anew)


class _Gone:
    """In place of the session of a connection that is lost."""

    def data_received(self, data: bytes) -> None: ...
    def writable(self) -> None: ...
    def connection_lost(self) -> None: ...


_GONE = _Gone()
_NONE_YET = _Gone()


class Outbox:
    """What is done at the end of each tick of the loop: turns, calls, and then all writes.

    All of that in one turn of the loop: were each a turn of its own, what arrives meanwhile would
    be read, and handled, before the answers to what came first are written.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_due = False
        self._busy_since = 0.0
        self.is_crowded = False
        """Whether more has come in this tick than there is time for."""
        self.turn_ends = 0.0
        """Until when whoever works now may go on."""
        self._late: deque[tuple[Connection, bytes]] = deque()
        """Whose turn it is next, and what has arrived for them since; nothing, if they have more
        to do of what had arrived before."""
        self._late_bytes = 0
        self._left: deque[Iterator[None]] = deque()
        """What is to be done of what connections have left behind."""
        self._calls: list[Callable[[], None]] = []
        self._waiting: list[Connection] = []

    def is_over(self) -> bool:
        """Whether sessions have worked for long enough, and what arrives now is to wait."""
        if not self._is_due:
            self._expect()
            return False
        busy_seconds = monotonic() - self._busy_since
        return busy_seconds > BUSY_SECONDS and self._late_bytes < LATE_BYTES_MAX

    def put_off(self, connection: "Connection", data: bytes) -> None:
        """Have this connection handle these bytes in its next turn."""
        self._late.append((connection, data))
        self._late_bytes += len(data)
        if not self._is_due:
            self._expect()

    def soon(self, call: Callable[[], None]) -> None:
        """Have something done at the end of the tick, before all is written."""
        self._calls.append(call)
        if not self._is_due:
            self._expect()

    def add(self, connection: "Connection") -> None:
        """Flush this connection at the end of the tick."""
        self._waiting.append(connection)
        if not self._is_due:
            self._expect()

    def finish(self, steps: Iterator[None]) -> None:
        """Go through what a connection leaves behind: the first step now, the others in order,
        behind those of others, some in each tick."""
        if self._is_finished(steps, 0):
            return
        self._left.append(steps)
        if len(self._left) == 1:
            self.after(self._finish_some)

    def _finish_some(self) -> None:
        ends = monotonic() + BUSY_SECONDS
        while self._left and self._is_finished(self._left[0], ends):
            self._left.popleft()
        if self._left:
            self.after(self._finish_some)

    def _is_finished(self, steps: Iterator[None], ends: float) -> bool:
        try:
            for _ in steps:
                if monotonic() > ends:
                    return False
        except Exception:
            log.exception("the end of a connection was not handled")
        return True

    def after(self, call: Callable[[], None], seconds: float = 0) -> None:
        """Have something done in the next tick, or after a while."""
        self._loop.call_later(seconds, call) if seconds else self._loop.call_soon(call)

    def _expect(self) -> None:
        self._is_due = True
        self._busy_since = now = monotonic()
        self.turn_ends = now + BUSY_SECONDS
        self.is_crowded = False
        self._loop.call_soon(self._end_tick)

    def _end_tick(self) -> None:
        try:
            if self._late:
                self._take_turns()
            if self._calls:
                self.turn_ends = monotonic() + BUSY_SECONDS
            for _ in range(ROUNDS):
                if not self._calls:
                    break
                calls, self._calls = self._calls, []
                for call in calls:
                    try:
                        call()
                    except Exception as error:
                        name = getattr(call, "__qualname__", call)
                        context = {"message": f"{name} failed at the end of a tick"}
                        self._loop.call_exception_handler({**context, "exception": error})
            if self._waiting:
                self.flush()
        finally:
            self._is_due = False
            if self._late or self._calls or self._waiting:
                self._expect()

    def _take_turns(self) -> None:
        """Give a turn to those who wait for it; who then has more to do is the last in line."""
        late, began = self._late, monotonic()
        seconds, now = max(BUSY_SECONDS / len(late), TURN_SECONDS_MIN), began
        for _ in range(len(late)):
            connection, data = late[0]
            self.turn_ends = now + seconds
            connection.guard(connection.take_turn, data)
            late.popleft()
            self._late_bytes -= len(data)
            now = monotonic()
            if now - began >= BUSY_SECONDS:
                break

    def flush(self) -> None:
        """Write out what waits; of very many connections some, and the others in the next tick."""
        waiting, self._waiting = self._waiting, []
        ends = monotonic() + BUSY_SECONDS if len(waiting) > FLUSHED_AT_ONCE else 0.0
        for at in range(0, len(waiting), FLUSHED_AT_ONCE):
            if at and monotonic() > ends:
                self._waiting[:0] = waiting[at:]
                return
            for connection in waiting[at : at + FLUSHED_AT_ONCE]:
                connection.flush()


class Room(asyncio.BufferedProtocol):
    """In a connection's place at its socket while a large request is read to where it stays."""

    def __init__(self, connection: "Connection", filled: Callable[[int], None]) -> None:
        self._connection = connection
        self._filled = filled
        self.view = memoryview(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes are there."""
        self._filled(nbytes)

    def eof_received(self) -> None:
        """The peer will send no more."""
        self._connection.eof_received()

    def pause_writing(self) -> None:
        """The peer is behind."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._connection.connection_lost(exc)


class Connection(asyncio.Protocol):
    """A connected socket and its session."""

    flush_bytes = FLUSH_BYTES
    """What `write` does not hold back until the end of the tick."""
    reads_on = False
    """Whether it is read from though it is behind: its session sends it little meanwhile."""

    def __init__(
        self,
        make_session: Callable[["Connection"], Session],
        outbox: Outbox,
        limits: Limits,
        lost: Callable[["Connection"], None] | None = None,
    ) -> None:
        self._make_session = make_session
        self._session: Session = _NONE_YET
        self._outbox = outbox
        self._limits = limits
        self._lost = lost
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._active = True
        self._idle_since_ms = -1
        self.congested = False
        """Whether the peer is behind with reading; nothing new is read from it meanwhile."""
        self._behind_bytes = 0
        """What waited for the peer when it fell behind."""
        self._unsent_bytes = self._kept_back_bytes = 0
        """What waits for the peer to read; and in its session, for an answer before it."""
        self.held = False
        """Whether nothing is to be read from it, for a reason of its session's."""
        self.idle_ms = limits.idle_ms
        """After that time in which nothing moved it is closed; never, if that is 0."""
        self.closing = False
        self._late = 0
        """How many turns it waits for; it is not read from before the last of them."""
        self.unread = None if limits.capacity is None else limits.capacity.unread
        """Whom a session tells that bytes wait for the rest of their frame."""
        self.origin: tuple[str, int] | None = None
        """Where it comes from, if somebody passes it on."""
        self.remote: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.secure = False
        self.certificate: Mapping[str, Any] = {}
        """The peer's own, if it was asked for one and its authority has signed it."""
        self.user = ""
        """Who has logged in; it is cut when they may not log in any more."""
        self._room: Room | None = None
        self.line: Line | None = None
        """A shorter way to the other side, if that is on the same event loop."""

    def __repr__(self) -> str:
        return f"<Connection from {self.remote[0]}:{self.remote[1]}>"

    @property
    def remote_address(self) -> str:
        """The peer's address as people write it."""
        host, port = self.remote
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    # Called by sessions.

    def read_to(self, view: memoryview | None, filled: Callable[[int], None]) -> None:
        """Read what comes next to there, and tell how much came; None for `data_received` again.

        So that large requests are not copied once they are here.
        """
        if view is None:
            if self._room is not None:
                self._room = None
                self._read_by(self)
        elif self._room is not None:
            self._room.view = view
        elif self._transport.get_extra_info("socket") is not None:
            self._room = Room(self, filled)
            self._room.view = view
            self._read_by(self._room)

    def _read_by(self, protocol: asyncio.BaseProtocol) -> None:
        transport = self._transport
        if not transport.is_closing():
            is_reading = transport.is_reading()
            transport.pause_reading()
            transport.set_protocol(protocol)
            if is_reading:
                transport.resume_reading()

    def write(self, data: Buffer) -> None:
        """Send one buffer at the end of this tick. It must not change until it is sent."""
        if self.closing:
            return
        if not self._out:
            self._outbox.add(self)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= self.flush_bytes:
            self.flush()

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send buffers, one after the other, at the end of this tick."""
        if self.closing:
            return
        if not self._out:
            self._outbox.add(self)
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if self._out_bytes >= FLUSH_BYTES:
            self.flush()

    def soon(self, call: Callable[[], None]) -> None:
        """Have something done at the end of this tick, before what was written is sent."""
        self._outbox.soon(call)

    def hold(self, held: bool = True) -> None:
        """Read nothing until told otherwise."""
        self.held = held
        if not held:
            self._read_on()
        elif not self._transport.is_closing():
            self._set_reading(False)

    def read_on(self) -> None:
        """Read again, after `hold`."""
        self.hold(False)

    def turn_is_over(self) -> bool:
        """Whether others are to have their turn; to be asked between requests.

        If it is, `data_received` is called with nothing when this connection has its next one, and
        nothing more is read from it before.
        """
        if monotonic() < self._outbox.turn_ends:
            return False
        self.wait_for_turn()
        return True

    def wait_for_turn(self) -> None:
        """Leave the rest for the next turn."""
        if not self._late and not self.closing:
            self._put_off(b"")

    def _put_off(self, data: bytes) -> None:
        self._late += 1
        self._set_reading(False)
        self._outbox.put_off(self, data)

    def rest(self, is_too_early: Callable[[], bool]) -> None:
        """Read nothing for a moment: of who sends much, in small pieces, more at a time comes then.

        Each look at a socket costs both sides more than what a few small messages do. It lasts
        longer while it is too early to read on, but not for ever.
        """
        if not self._transport.is_closing():
            self._set_reading(False)
            self._outbox.after(partial(self._rested, is_too_early, RESTS_MAX), REST_SECONDS)

    def _rested(self, is_too_early: Callable[[], bool], rests: int) -> None:
        if rests and is_too_early():
            self._outbox.after(partial(self._rested, is_too_early, rests - 1), REST_SECONDS)
        else:
            self._read_on()

    def close(self) -> None:
        """Close once everything that was written so far is sent."""
        if not self.closing:
            self.flush()
            self.closing = True
            self._transport.close()

    def end(self) -> None:
        """Send what was written, and that no more comes; what the peer sends until it closes is
        ignored. Were the socket closed instead, what it sends could cost it our last words."""
        if not self.closing:
            self.flush()
            self.closing = True
            try:
                if self._transport.can_write_eof():
                    self._transport.write_eof()
                    # Whatever it waited for: else nobody would see when the peer closes.
                    self._transport.resume_reading()
                else:
                    self._transport.close()
            except RuntimeError as error:
                self._find_gone(error)

    def abort(self) -> None:
        self.closing = True
        self._out.clear()
        self._transport.abort()

    def flush(self) -> None:
        """Write out now what waits for the end of the tick."""
        if not self._out or self.closing:
            return
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        try:
            if len(out) == 1:
                self._transport.write(out[0])
            elif size <= JOIN_BYTES_MAX or size < len(out) * SMALL_BYTES:
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)
        except RuntimeError as error:
            self._find_gone(error)
            return
        if not self.congested:
            self._active = True
        elif (waiting := self._transport.get_write_buffer_size()) > self._unsent_max:
            log.warning("%s does not read: cut off with %d bytes unsent", self, waiting)
            self.abort()
        else:
            self._keep_unsent(waiting)

    @property
    def _unsent_max(self) -> int:
        return self._limits.write_bytes_max + self._behind_bytes

    def _find_gone(self, error: RuntimeError) -> None:
        """uvloop's word for a socket that it has closed, of which it may tell later, or never.

        Whoever meets it may have others to look after: it must not be raised.
        """
        log.info("%s is gone: %s", self, error)
        self.closing = True
        self._outbox.after(lambda: self.connection_lost(None))

    def _set_reading(self, reads: bool) -> None:
        try:
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        except RuntimeError as error:
            self._find_gone(error)

    def keep_back(self, size: int) -> None:
        """So many bytes of answers wait for one before them: they count as unsent."""
        self._kept_back_bytes = size
        self._keep_unsent(self._unsent_bytes)

    def _keep_unsent(self, size: int) -> None:
        self._unsent_bytes = size
        if self._limits.capacity is not None:
            self._limits.capacity.unsent.keep(self, size + self._kept_back_bytes)

    # Called by the listener.

    def sweep(self, now_ms: int) -> None:
        """Close if nothing moved for the idle time; to be called every now and then."""
        if self._active or self._idle_since_ms < 0:
            self._active = False
            self._idle_since_ms = now_ms
        elif 0 < self.idle_ms <= now_ms - self._idle_since_ms:
            log.info("%s was idle for %d ms: closed", self, now_ms - self._idle_since_ms)
            # What it did not read so far, it will not read now.
            self.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ready, TLS included."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_pause_bytes)
        self.remote = self.origin or (transport.get_extra_info("peername") or ("", 0))[:2]
        self.local = (transport.get_extra_info("sockname") or ("", 0))[:2]
        self.secure = transport.get_extra_info("ssl_object") is not None
        self.certificate = transport.get_extra_info("peercert") or {}
        try:
            self._session = self._make_session(self)
        except Exception:
            log.exception("%s is closed: it cannot be served", self)
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._active = True
        if self.closing:
            return
        if self._late or self._outbox.is_over():
            self._put_off(data)
            if not self._outbox.is_crowded and self.unread is not None:
                # What others send of large requests is read in the next tick: to read it takes
                # time, too, and there may be very many of them.
                self._outbox.is_crowded = True
                for peer in self.unread.peers():
                    peer.wait_for_turn()
            return
        self.guard(self._session.data_received, data)

    def take_turn(self, data: bytes) -> None:
        """Go on with what arrived before, and with these bytes."""
        self._late -= 1
        if not self.closing:
            self.guard(self._session.data_received, data)
            self._read_on()

    def _read_on(self) -> None:
        is_behind = self.congested and not self.reads_on
        if not (is_behind or self.held or self._late or self._transport.is_closing()):
            self._set_reading(True)

    def eof_received(self) -> None:
        """The peer will send no more; the loop closes the socket after what we still write here."""
        self.flush()
        self.closing = True

    def pause_writing(self) -> None:
        """The peer is behind."""
        self.congested = True
        if not self._transport.is_closing():
            if not self.reads_on:
                self._set_reading(False)
            self._behind_bytes = self._transport.get_write_buffer_size()
            self._keep_unsent(self._behind_bytes)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.congested = False
        self._active = True
        self._keep_unsent(0)
        if self.closing:
            return
        self._outbox.is_over()  # Its turn begins, if nobody else's has.
        self.guard(self._session.writable)
        self._read_on()  # Unless what the session had put off has congested the connection again.

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        self.closing = True
        if self._session is _GONE:
            return
        self._out.clear()
        self.keep_back(0)
        self._keep_unsent(0)
        if self.unread is not None:
            self.unread.keep(self, 0)
        try:
            left = self._session.connection_lost()
        except Exception:
            log.exception("the end of %s was not handled", self)
        else:
            if left is not None:
                self._outbox.finish(left)
        if isinstance(self._session, FramedSession):
            self._session.drop_work()
        if self.line is not None:
            self.line.close()
        # Breaks the cycle, so that both are freed now: the collector may not look for hours.
        self._session, self._room = _GONE, None
        if self._lost is not None:
            self._lost(self)

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning about the peer; of many in a short time, the first ones."""
        capacity = self._limits.capacity
        (log.warning if capacity is None else capacity.warnings.about)(text, *arguments)

    def guard(self, call: Callable[..., None], *arguments: object) -> None:
        """Call what may fail: if it does, this connection ends, and nobody else notices."""
        try:
            call(*arguments)
        except WireError as error:
            self.warn("%s sent what is no request: %s", self, error)
            self.close()
        except Exception:
            log.exception("%s is closed: its session failed", self)
            self.abort()


def is_here(remote: str, local: str) -> bool:
    """Whether the peer at `remote`, who called our address `local`, is on this machine.

    A peer on this machine that calls one of the machine's addresses has that same address, unless
    it chose another one on purpose; then it counts as another machine. What comes through a tunnel
    or a proxy on this machine counts as being on it.
    """
    address = _parsed(remote)
    return address is not None and (address.is_loopback or address == _parsed(local))


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    # What an IPv4 peer looks like to a socket for both.
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address

import asyncio
import gc
import itertools
import logging
import os
import struct
import weakref
import zlib
from typing import Any

import pytest

from onelog.clock import ManualClock
from onelog.config import TlsConfig
from onelog.errors import WireError
from onelog.net import connection as net_connection
from onelog.net.bulk import READ_BYTES, BulkConnection, dial_bulk
from onelog.net.capacity import WARNINGS_MAX, Capacity
from onelog.net.connection import FLUSH_BYTES, Connection, FramedSession, Limits, Outbox
from onelog.net.tls import Tls, client_context
from onelog.wire.kafka.frame import KafkaFrameReader
from tests.net.conftest import Listen
from tests.net.sessions import Client, Echo
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that hesitates does not make a session look busy."""
    monkeypatch.setattr(net_connection, "BUSY_SECONDS", 60.0)


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.7", 1234), "sockname": ("192.0.2.1", 9876)})
        self.writes: list[bytes] = []
        self.unsent = 0
        self.ended: list[str] = []
        self._reading = True

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended.append("closed")

    def abort(self) -> None:
        self.ended.append("aborted")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.writes.append(b"")

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading


class Scripted(Echo):
    """Does what the test says."""

    lost = 0
    drained = 0
    fail: Exception | None = None

    def data_received(self, data: bytes) -> None:
        if self.fail is not None:
            raise self.fail
        super().data_received(data)

    def writable(self) -> None:
        self.drained += 1

    def connection_lost(self) -> None:
        self.lost += 1


def connected(limits: Limits | None = None) -> tuple[Connection, Wire, Scripted]:
    sessions: list[Scripted] = []

    def make(connection: Connection) -> Scripted:
        sessions.append(Scripted(connection))
        return sessions[0]

    connection = Connection(make, Outbox(asyncio.get_running_loop()), limits or Limits())
    wire = Wire()
    connection.connection_made(wire)
    return connection, wire, sessions[0]


async def test_what_is_written_in_one_tick_leaves_in_one_write() -> None:
    connection, wire, _ = connected()
    connection.data_received(b"one")
    connection.data_received(b"two")
    connection.send([b"three", memoryview(b"four")])
    assert wire.writes == []
    await asyncio.sleep(0)
    assert wire.writes == [b"onetwothreefour"]


async def test_a_tick_ends_in_one_turn_of_the_loop_with_all_that_follows_from_it() -> None:
    """What arrived is appended, and delivered, and written before anything else is read."""
    connection, wire, _ = connected()
    outbox = connection._outbox
    done: list[str] = []

    def append() -> None:
        done.append("append")
        connection.soon(deliver)

    def deliver() -> None:
        done.append("deliver")
        connection.write(b"delivered")
        connection.soon(deliver_more)

    def deliver_more() -> None:
        done.append("more")
        connection.write(b"more")

    connection.data_received(b"one")
    connection.soon(append)
    asyncio.get_running_loop().call_soon(lambda: done.append(f"others {outbox.is_over()}"))
    assert done == []
    await asyncio.sleep(0)
    # What asks for another turn has it after everybody else.
    assert (done, wire.writes) == (["append", "deliver", "others False"], [b"onedelivered"])
    await asyncio.sleep(0)
    assert (done[3:], wire.writes[1:]) == (["more"], [b"more"])


async def test_ticks_that_follow_each_other_are_not_one_long_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(net_connection, "BUSY_SECONDS", 5.0)
    monkeypatch.setattr(net_connection, "monotonic", lambda: now)
    connection, wire, _ = connected()

    def again() -> None:
        connection.soon(again)

    connection.soon(again)
    for _ in range(3):
        now += 4.0
        await asyncio.sleep(0)
        connection.data_received(b"x")
        assert wire.is_reading()
    now = 18.0
    connection.data_received(b"late")
    assert not wire.is_reading()


async def test_a_call_that_fails_at_the_end_of_a_tick_costs_the_others_nothing() -> None:
    connection, wire, _ = connected()
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))

    def fail() -> None:
        raise ValueError("on purpose")

    connection.soon(fail)
    connection.soon(lambda: connection.write(b"written"))
    await asyncio.sleep(0)
    assert wire.writes == [b"written"]
    assert str(told[0]["exception"]) == "on purpose"


async def test_what_arrives_after_long_work_waits_for_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_connection, "BUSY_SECONDS", 0.0)
    outbox = Outbox(asyncio.get_running_loop())
    handled: list[bytes] = []

    class Noting(Echo):
        def data_received(self, data: bytes) -> None:
            handled.append(data)

    wires = [Wire(), Wire()]
    first, second = (Connection(Noting, outbox, Limits()) for _ in wires)
    for connection, wire in zip((first, second), wires, strict=True):
        connection.connection_made(wire)
    first.data_received(b"a0")
    first.data_received(b"a1")
    first.data_received(b"a2")  # As TLS may give it, although reading is paused.
    second.data_received(b"b1")
    asyncio.get_running_loop().call_soon(handled.append, b"others")
    assert (handled, wires[0].is_reading(), wires[1].is_reading()) == ([b"a0"], False, False)
    seen = []
    while len(handled) < 5:
        await asyncio.sleep(0)
        seen.append((list(handled), wires[0].is_reading()))
    assert handled == [b"a0", b"a1", b"others", b"a2", b"b1"]
    assert wires[0].is_reading()
    assert wires[1].is_reading()
    assert seen[0] == ([b"a0", b"a1", b"others"], False)


async def test_late_bytes_are_bounded_and_those_of_a_closed_connection_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_connection, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(net_connection, "LATE_BYTES_MAX", 1)
    outbox = Outbox(asyncio.get_running_loop())
    wires = [Wire(), Wire()]
    first, second = (Connection(Echo, outbox, Limits()) for _ in wires)
    for connection, wire in zip((first, second), wires, strict=True):
        connection.connection_made(wire)
    second.data_received(b"the first of a tick, ")
    first.data_received(b"late")
    second.data_received(b"at once")
    first.abort()
    outbox.flush()
    assert wires[1].writes == [b"the first of a tick, at once"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wires[0].writes == []
    second.data_received(b"the first of a tick")
    assert wires[1].is_reading()
    second.data_received(b"late")
    assert not wires[1].is_reading()


async def test_who_rests_is_read_again_when_it_is_time_or_after_a_while() -> None:
    connection, wire, _ = connected()
    asked: list[bool] = []
    is_early = True

    def is_too_early() -> bool:
        asked.append(is_early)
        return is_early

    connection.rest(is_too_early)
    assert not wire.is_reading()
    await eventually(lambda: len(asked) > 2)
    assert not wire.is_reading()
    is_early = False
    await eventually(wire.is_reading)
    asked.clear()
    is_early = True
    connection.rest(is_too_early)
    await eventually(wire.is_reading)
    assert asked == [True] * net_connection.RESTS_MAX


async def test_very_many_connections_are_flushed_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_connection, "BUSY_SECONDS", -1.0)
    monkeypatch.setattr(net_connection, "FLUSHED_AT_ONCE", 2)
    outbox = Outbox(asyncio.get_running_loop())
    wires = [Wire() for _ in range(5)]
    made = [Connection(Echo, outbox, Limits()) for _ in wires]
    for connection, wire in zip(made, wires, strict=True):
        connection.connection_made(wire)
        connection.write(b"x")
    await asyncio.sleep(0)
    assert [bool(wire.writes) for wire in wires] == [True, True, False, False, False]
    made[0].write(b"y")
    made[4].write(b"y")
    for _ in range(3):
        await asyncio.sleep(0)
    assert [wire.writes for wire in wires] == [[b"x", b"y"], *[[b"x"]] * 3, [b"xy"]]


async def test_all_connections_are_flushed_by_one_call_or_by_hand() -> None:
    outbox = Outbox(asyncio.get_running_loop())
    wires = []
    for _ in range(3):
        connection = Connection(Echo, outbox, Limits())
        wires.append(Wire())
        connection.connection_made(wires[-1])
        connection.write(b"x")
    outbox.flush()
    assert [wire.writes for wire in wires] == [[b"x"]] * 3
    await asyncio.sleep(0)
    assert [wire.writes for wire in wires] == [[b"x"]] * 3


async def test_a_socket_that_is_gone_keeps_nobody_else_from_being_flushed() -> None:
    """uvloop raises for a socket that it has closed, of which it does not always tell."""

    class Gone(Wire):
        def write(self, data: Any) -> None:
            raise RuntimeError("unable to perform operation on it; the handler is closed")

    outbox = Outbox(asyncio.get_running_loop())
    wires = [Wire(), Gone(), Wire()]
    lost: list[Connection] = []
    connections = [Connection(Echo, outbox, Limits(), lost.append) for _ in wires]
    for connection, wire in zip(connections, wires, strict=True):
        connection.connection_made(wire)
        connection.write(b"x")
    outbox.flush()
    assert [wire.writes for wire in wires] == [[b"x"], [], [b"x"]]
    await asyncio.sleep(0)
    assert lost == [connections[1]]
    connections[1].connection_lost(None)
    assert lost == [connections[1]]


async def test_a_socket_that_is_gone_keeps_nobody_elses_late_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whose bytes wait for the next tick is not read from meanwhile: that must have an end."""

    class Gone(Wire):
        def resume_reading(self) -> None:
            raise RuntimeError("unable to perform operation on it; the handler is closed")

    monkeypatch.setattr(net_connection, "BUSY_SECONDS", 0.0)
    outbox = Outbox(asyncio.get_running_loop())
    wires = [Gone(), Wire()]
    lost: list[Connection] = []
    connections = [Connection(Echo, outbox, Limits(), lost.append) for _ in wires]
    for connection, wire in zip(connections, wires, strict=True):
        connection.connection_made(wire)
    assert not outbox.is_over()  # From here on it is.
    for connection in connections:
        connection.data_received(b"late")
    await eventually(lambda: wires[1].writes == [b"late"] and wires[1].is_reading())
    await eventually(lambda: lost == [connections[0]])


async def test_a_socket_that_is_gone_is_ended_and_sent_to_without_a_word() -> None:
    class Gone(Wire):
        def write(self, data: Any) -> None:
            raise RuntimeError("unable to perform operation on it; the handler is closed")

        def can_write_eof(self) -> bool:
            return True

        def write_eof(self) -> None:
            self.write(b"")

    lost: list[Connection] = []
    outbox = Outbox(asyncio.get_running_loop())
    ended = Connection(Echo, outbox, Limits(), lost.append)
    ended.connection_made(Gone())
    ended.end()
    sent = BulkConnection(Echo, outbox, Limits(), lost.append)
    sent.connection_made(Gone())
    sent.send([b"one", b"two"])
    assert sent.closing
    await asyncio.sleep(0)
    assert lost == [ended, sent]


async def test_much_is_not_held_back_until_the_tick_ends() -> None:
    connection, wire, _ = connected()
    connection.write(bytes(FLUSH_BYTES))
    connection.send([bytes(FLUSH_BYTES), b"x"])
    assert [len(data) for data in wire.writes] == [FLUSH_BYTES, FLUSH_BYTES + 1]


async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    connection, wire, session = connected()
    connection.pause_writing()
    assert connection.congested
    assert not wire.is_reading()
    connection.resume_writing()
    assert wire.is_reading()
    assert session.drained == 1


async def test_a_peer_that_never_reads_is_cut_off_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection, wire, _ = connected(Limits(write_bytes_max=1000))
    wire.unsent = 0
    connection.pause_writing()
    wire.unsent = 1000
    connection.write(b"fits")
    connection.flush()
    assert not wire.ended
    wire.unsent = 1001
    for _ in range(3):
        connection.write(b"one too many")
        connection.flush()
    assert wire.ended == ["aborted"]
    (record,) = caplog.records
    assert "does not read: cut off with 1001 bytes unsent" in record.getMessage()


async def test_one_large_answer_does_not_cut_off_who_reads_it_slowly() -> None:
    connection, wire, _ = connected(Limits(write_bytes_max=1000))
    wire.unsent = 40_000
    connection.pause_writing()
    connection.write(b"a heart-beat")
    connection.flush()
    assert not wire.ended
    wire.unsent = 41_001
    connection.write(b"too many of them")
    connection.flush()
    assert wire.ended == ["aborted"]


async def test_a_wire_error_closes_after_what_was_written_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection, wire, session = connected()
    connection.data_received(b"answer")
    session.fail = WireError("a frame of 2 GiB")
    connection.data_received(b"garbage")
    connection.data_received(b"more of it")
    assert (wire.writes, wire.ended) == ([b"answer"], ["closed"])
    (record,) = caplog.records
    said = record.getMessage()
    assert said.endswith("192.0.2.7:1234> sent what is no request: a frame of 2 GiB")


async def test_peers_that_send_garbage_cannot_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    capacity = Capacity()
    for _ in range(3 * WARNINGS_MAX):
        connection, _, session = connected(Limits(capacity=capacity))
        session.fail = WireError("a frame of 2 GiB")
        connection.data_received(b"garbage")
    assert len(caplog.messages) == WARNINGS_MAX
    capacity.sweep()
    assert caplog.messages[WARNINGS_MAX:] == ["40 more warnings about connections, not shown"]


async def test_a_bug_ends_only_its_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    connection, wire, session = connected()
    session.fail = ZeroDivisionError("bug")
    connection.data_received(b"x")
    assert wire.ended == ["aborted"]
    assert "its session failed" in caplog.text


async def test_nothing_is_written_after_the_end() -> None:
    connection, wire, session = connected()
    connection.close()
    connection.write(b"x")
    connection.send([b"y"])
    connection.flush()
    connection.connection_lost(None)
    assert (wire.writes, session.lost) == ([], 1)


async def test_an_idle_connection_is_closed_and_an_active_one_is_not() -> None:
    connection, wire, _ = connected(Limits(idle_ms=1000))
    connection.sweep(0)
    connection.sweep(999)
    assert not wire.ended
    connection.data_received(b"alive")
    for now in (1500, 2499):
        connection.sweep(now)
    assert not wire.ended
    await asyncio.sleep(0)
    connection.sweep(3000)
    connection.sweep(4000)
    assert wire.ended == ["aborted"]


async def test_writing_to_a_peer_that_does_not_read_is_no_sign_of_life() -> None:
    connection, wire, _ = connected(Limits(idle_ms=1000))
    connection.pause_writing()
    connection.sweep(0)
    for now in (1, 999):
        connection.write(b"x")
        connection.flush()
        connection.sweep(now)
    connection.sweep(1000)
    assert wire.ended == ["aborted"]


async def test_slow_readers_of_all_connections_have_a_limit(clock: ManualClock) -> None:
    capacity = Capacity(unsent_bytes_max=1_000, clock=clock)
    ends = [connected(Limits(capacity=capacity)) for _ in range(3)]
    for connection, wire, _ in ends[:2]:
        wire.unsent = 400
        connection.pause_writing()
    assert capacity.unsent.total == 800
    first, wire, _ = ends[0]
    wire.unsent = 500
    first.write(b"more")
    first.flush()
    assert capacity.unsent.total == 900
    first.resume_writing()
    assert capacity.unsent.total == 400
    third, wire, _ = ends[2]
    wire.unsent = 700
    third.pause_writing()
    assert wire.ended == ["aborted"]
    assert capacity.unsent.total == 400
    for connection, _, _ in ends:
        connection.connection_lost(None)
    assert capacity.unsent.total == 0


async def test_a_peer_that_stops_sending_still_gets_its_answers() -> None:
    connection, wire, _ = connected()
    connection.data_received(b"question")
    connection.eof_received()
    assert wire.writes == [b"question"]


async def test_addresses_are_known() -> None:
    connection, _, _ = connected()
    assert connection.remote_address == "192.0.2.7:1234"
    assert connection.local == ("192.0.2.1", 9876)
    connection.remote = ("::1", 5)
    assert connection.remote_address == "[::1]:5"


async def test_a_slow_reader_gets_everything_in_order(listen: Listen) -> None:
    listener = await listen(Echo, limits=Limits(write_pause_bytes=64 << 10))
    client = await Client.connect(listener)
    sent = bytes(range(256)) * 4096 * 8
    sending = asyncio.create_task(client.send(sent))
    (connection,) = await connections(listener)
    await eventually(lambda: connection.congested)
    assert await client.receive(len(sent)) == sent
    await sending
    client.close()


async def test_a_real_peer_that_never_reads_is_cut_off_and_others_are_served(
    listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    class Flood(Echo):
        def data_received(self, data: bytes) -> None:
            for _ in range(64):
                self.connection.write(bytes(1 << 20))

    limits = Limits(write_pause_bytes=64 << 10, write_bytes_max=8 << 20)
    flooding = await listen(Flood, limits=limits)
    serving = await listen(Echo, limits=limits)
    deaf = await Client.connect(flooding)
    await deaf.send(b"go")
    await eventually(lambda: "does not read" in caplog.text)
    await eventually(lambda: not flooding.connections)
    healthy = await Client.connect(serving)
    await healthy.send(b"ping")
    assert await healthy.receive(4) == b"ping"
    assert caplog.text.count("does not read") == 1
    deaf.close()
    healthy.close()


async def test_a_closed_connection_is_freed_at_once_without_the_cycle_collector(
    listen: Listen,
) -> None:
    freed: list[str] = []

    class Ending(Echo):
        def __init__(self, connection: Connection) -> None:
            super().__init__(connection)
            weakref.finalize(connection, freed.append, "connection")
            weakref.finalize(self, freed.append, "session")

    listener = await listen(Ending)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            client = await Client.connect(listener)
            await client.send(b"ping")
            assert await client.receive(4) == b"ping"
            client.close()
        await eventually(lambda: len(freed) == 40)
    finally:
        gc.enable()


async def connections(listener: Any) -> set[Connection]:
    await eventually(lambda: listener.connections)
    found: set[Connection] = listener.connections
    return found


class Taker:
    """Keeps what it is given, and how often others had a turn until then."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.taken = bytearray()
        self.pieces: list[int] = []
        self.at_turn: list[int] = []
        self._turns = itertools.count()
        self._turn = 0
        self._take_turn()

    def _take_turn(self) -> None:
        self._turn = next(self._turns)
        if not self.connection.closing:
            asyncio.get_running_loop().call_soon(self._take_turn)

    def data_received(self, data: bytes) -> None:
        self.taken += data
        self.pieces.append(len(data))
        self.at_turn.append(self._turn)

    def writable(self) -> None:
        pass

    def connection_lost(self) -> None:
        pass


async def test_what_comes_in_bulk_is_read_in_large_pieces_between_which_others_have_a_turn() -> (
    None
):
    sent = os.urandom(8 * READ_BYTES)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    takers: list[Taker] = []

    def make(connection: Connection) -> Taker:
        takers.append(Taker(connection))
        connection.congested = True  # It is read from all the same.
        return takers[0]

    await dial_bulk("127.0.0.1", server.sockets[0].getsockname()[1], make, 5_000)
    (taker,) = takers
    await eventually(lambda: len(taker.taken) == len(sent))
    assert taker.taken == sent
    assert max(taker.pieces) <= READ_BYTES
    in_turn = [
        sum(size for _, size in mine)
        for _, mine in itertools.groupby(
            zip(taker.at_turn, taker.pieces, strict=True), lambda each: each[0]
        )
    ]
    assert max(in_turn) < 2 * READ_BYTES
    taker.connection.close()
    server.close()


class Bulk(FramedSession):
    """Sends back the sizes and sums of Kafka's frames; large ones are read to where they stay."""

    _reader: KafkaFrameReader

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._reader = KafkaFrameReader(8 << 20)
        self.filled = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.connection.read_to(self._reader.room, self._filled)

    def _filled(self, count: int) -> None:
        self.filled += count
        self._reader.fill(count)
        self.connection.read_to(self._reader.room, self._filled)
        if self._reader.room is None:
            self.connection.data_received(b"")

    def _handle_read(self) -> None:
        for frame in self._reader.frames():
            self.connection.write(struct.pack(">ii", len(frame), zlib.crc32(frame) >> 1))

    def connection_lost(self) -> None:
        self.filled = -1


@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.parametrize("is_busy", [False, True])
async def test_large_frames_are_read_to_where_they_stay(
    listen: Listen, monkeypatch: pytest.MonkeyPatch, is_secure: bool, is_busy: bool
) -> None:
    if is_busy:  # All that arrives is put off to the next tick.
        monkeypatch.setattr(net_connection, "BUSY_SECONDS", -1.0)
    sessions: list[Bulk] = []

    def make(connection: Connection) -> Bulk:
        sessions.append(Bulk(connection))
        return sessions[-1]

    tls = Tls(TlsConfig()) if is_secure else None
    listener = await listen(make, tls=tls)
    context = client_context() if is_secure else None
    client = await Client.connect(listener, context)
    bodies = [bytes((size % 251,)) * size for size in (10, 3_000_000, 70_000, 20, 1_500_000, 12)]
    bodies *= 1 if is_busy else 3  # Put off piece by piece, they take a second each.
    sent = b"".join(len(each).to_bytes(4, "big") + each for each in bodies)
    sending = asyncio.create_task(client.send(sent))
    for body in bodies:
        assert await client.receive(8) == struct.pack(">ii", len(body), zlib.crc32(body) >> 1)
    await sending
    assert sessions[0].filled > len(sent) // 3 * 2
    client.writer.write(sent[:1_000_000])
    client.close()
    await eventually(lambda: sessions[0].filled == -1)

"""Work for peers is bounded by time: who has had its turn goes on after the others."""

import asyncio
from typing import Any

import pytest

from onelog.net import connection as net_connection
from onelog.net.capacity import Capacity
from onelog.net.connection import Connection, FramedSession, Limits, Outbox
from tests.net.sessions import Echo
from tests.net.test_connection import Wire
from tests.waiting import eventually


class Laborious(FramedSession):
    """Each byte is a request, which takes a millisecond of a clock that the test sets."""

    def __init__(self, connection: Connection, told: list[str], clock: list[float]) -> None:
        super().__init__(connection)
        self._reader = self
        self.told, self.clock = told, clock
        self.name = ""
        self.left = b""

    @property
    def unread_bytes(self) -> int:
        return len(self.left)

    def feed(self, data: bytes) -> None:
        self.left += data

    def _handle_read(self) -> None:
        while self.left and not self.connection.closing:
            self.told.append(self.name + chr(self.left[0]))
            self.left = self.left[1:]
            self.clock[0] += 0.001
            if self.connection.turn_is_over():
                return

    def connection_lost(self) -> None:
        self.told.append(f"{self.name} lost")


def laborious(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> tuple[list[str], list[Connection], list[Wire], list[Laborious]]:
    told: list[str] = []
    clock = [0.0]
    monkeypatch.setattr(net_connection, "BUSY_SECONDS", 0.0045)
    monkeypatch.setattr(net_connection, "monotonic", lambda: clock[0])
    outbox = Outbox(asyncio.get_running_loop())
    sessions: list[Laborious] = []

    def make(connection: Connection) -> Laborious:
        sessions.append(Laborious(connection, told, clock))
        sessions[-1].name = "abcdefgh"[len(sessions) - 1]
        return sessions[-1]

    wires = [Wire() for _ in range(count)]
    connections = [Connection(make, outbox, Limits()) for _ in wires]
    for connection, wire in zip(connections, wires, strict=True):
        connection.connection_made(wire)
    return told, connections, wires, sessions


async def test_who_asks_much_goes_on_after_the_others_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, connections, wires, _ = laborious(monkeypatch, 3)
    connections[0].data_received(b"0123456789")
    connections[1].data_received(b"0123")
    connections[2].data_received(b"01")
    assert told == ["a0", "a1", "a2", "a3", "a4"]
    assert [wire.is_reading() for wire in wires] == [False, False, False]
    await eventually(lambda: all(wire.is_reading() for wire in wires))
    # Three wait: each has a third of the time, and who is not done is last in line again.
    assert told[5:11] == ["a5", "a6", "b0", "b1", "c0", "c1"]
    assert sorted(told) == sorted(
        [f"a{each}" for each in range(10)] + ["b0", "b1", "b2", "b3", "c0", "c1"]
    )


async def test_who_asks_little_is_served_between_the_turns_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, connections, _, _ = laborious(monkeypatch, 2)
    connections[0].data_received(b"x" * 100)
    await asyncio.sleep(0)
    before = len(told)
    connections[1].data_received(b"0")
    for _ in range(3):
        await asyncio.sleep(0)
    assert "b0" in told[before : before + 11]


async def test_of_a_connection_that_is_lost_nothing_more_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, connections, wires, _ = laborious(monkeypatch, 1)
    connections[0].data_received(b"x" * 100)
    await asyncio.sleep(0)
    count = len(told)
    assert count < 20
    wires[0].abort()
    connections[0].connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert told[count:] == ["a lost"]


async def test_one_long_request_is_done_in_steps_and_what_follows_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, connections, wires, sessions = laborious(monkeypatch, 2)
    session = sessions[0]

    def steps() -> Any:
        for number in range(12):
            session.told.append(f"step {number}")
            session.clock[0] += 0.001
            yield

    connections[0].data_received(b"0")
    session.work(steps())
    assert told == ["a0", "step 0", "step 1", "step 2", "step 3"]
    connections[0].data_received(b"1")
    connections[1].data_received(b"0")
    await eventually(lambda: all(wire.is_reading() for wire in wires))
    assert told.index("b0") < told.index("step 11") < told.index("a1")


async def test_when_there_is_too_much_unfinished_requests_are_not_read_on_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(net_connection, "BUSY_SECONDS", 5.0)
    monkeypatch.setattr(net_connection, "monotonic", lambda: now)
    capacity = Capacity()
    limits, outbox = Limits(capacity=capacity), Outbox(asyncio.get_running_loop())
    wires = [Wire() for _ in range(3)]
    connections = [Connection(Echo, outbox, limits) for _ in wires]
    for connection, wire in zip(connections, wires, strict=True):
        connection.connection_made(wire)
    capacity.unread.keep(connections[1], 1_000)
    connections[0].data_received(b"first")
    now = 6.0
    connections[0].data_received(b"too late")
    assert [wire.is_reading() for wire in wires] == [False, False, True]
    await eventually(lambda: all(wire.is_reading() for wire in wires))


async def test_a_connection_that_ends_while_it_waits_for_its_turn_sees_when_its_peer_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, connections, wires, _ = laborious(monkeypatch, 1)
    connections[0].data_received(b"x" * 100)
    assert not wires[0].is_reading()
    connections[0].end()
    assert wires[0].is_reading()


async def test_what_is_left_behind_is_gone_through_in_order_in_a_bounded_part_of_each_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(net_connection, "BUSY_SECONDS", 0.0045)
    monkeypatch.setattr(net_connection, "monotonic", lambda: clock[0])
    done: list[str] = []
    outbox = Outbox(asyncio.get_running_loop())

    def steps(name: str) -> Any:
        for number in range(4):
            done.append(f"{name}{number}")
            clock[0] += 0.001
            yield

    for name in "abcdefghij":
        outbox.finish(steps(name))
    assert done == [f"{name}0" for name in "abcdefghij"]
    longest = 0
    while len(done) < 40:
        before = len(done)
        await asyncio.sleep(0)
        longest = max(longest, len(done) - before)
    assert longest <= 6
    assert done[10:16] == ["a1", "a2", "a3", "b1", "b2", "b3"]

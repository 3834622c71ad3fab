"""Share sessions: epochs that count up, and connections that go."""

import pytest

from onelog.gateways.kafka import share_sessions
from onelog.gateways.kafka.share_sessions import FINAL, NEW, ShareSession, ShareSessions
from onelog.wire.kafka.codes import ErrorCode

ANN, BOB = ("g", "ann"), ("g", "bob")


class Room:
    def __init__(self) -> None:
        self.gone: list[tuple[str, str]] = []
        self.sessions = ShareSessions(lambda group, member: self.gone.append((group, member)))


@pytest.fixture
def room() -> Room:
    return Room()


def test_epochs_count_up_and_begin_anew(room: Room) -> None:
    first = room.sessions.of(ANN, NEW, "c1")
    assert isinstance(first, ShareSession)
    assert room.sessions.of(ANN, 1, "c1") is first
    assert room.sessions.of(ANN, 1, "c1") is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert room.sessions.of(ANN, 2, "c1") is first
    first.epoch = (1 << 31) - 1
    assert room.sessions.of(ANN, (1 << 31) - 1, "c1") is first
    assert first.epoch == 1
    assert room.sessions.of(ANN, NEW, "c1") is not first
    assert room.sessions.of(BOB, 1, "c1") is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert room.sessions.of(BOB, FINAL, "c1") is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert isinstance(room.sessions.of(ANN, FINAL, "c1"), ShareSession)
    assert len(room.sessions) == 0
    room.sessions.channel_closed("c1")
    assert room.gone == []


def test_a_connection_takes_its_sessions_with_it(room: Room) -> None:
    room.sessions.of(ANN, NEW, "c1")
    room.sessions.of(BOB, NEW, "c1")
    room.sessions.of(ANN, NEW, "c2")
    room.sessions.channel_closed("c1")
    assert room.gone == [BOB]
    assert isinstance(room.sessions.of(ANN, 1, "c2"), ShareSession)


def test_there_are_only_so_many(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "SESSIONS_MAX", 1)
    room.sessions.of(ANN, NEW, "c1")
    assert room.sessions.of(BOB, NEW, "c1") is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert isinstance(room.sessions.of(ANN, NEW, "c1"), ShareSession)


def test_another_partition_is_the_first_each_time() -> None:
    session = ShareSession("c1")
    assert session.in_turn() == []
    session.partitions = dict.fromkeys([(b"t", 0), (b"t", 1), (b"t", 2)])
    assert [number for _, number in session.in_turn()] == [1, 2, 0]
    session.epoch = 2
    assert [number for _, number in session.in_turn()] == [2, 0, 1]

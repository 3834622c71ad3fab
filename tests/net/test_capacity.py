import logging
import resource
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.net.capacity import Backlog, Capacity, file_limit

_numbers = count(1)


@dataclass(eq=False)
class Peer:
    """A connection that can only be closed."""

    congested: bool = False
    ended: list[str] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def remote_address(self) -> str:
        return f"192.0.2.1:{self.number}"

    def abort(self) -> None:
        self.ended.append("aborted")

    def wait_for_turn(self) -> None:
        """Nothing is read of it anyway."""


@dataclass
class Port:
    """A listener with so many connections."""

    open_count: int = 0


def unread(clock: ManualClock, bytes_max: int = 1000) -> Backlog:
    return Backlog("unread", "net.unread_bytes_max", bytes_max, clock)


def test_what_peers_keep_is_added_up(clock: ManualClock) -> None:
    backlog, one, other = unread(clock), Peer(), Peer()
    backlog.keep(one, 300)
    backlog.keep(other, 500)
    backlog.keep(one, 400)
    assert (backlog.total, len(backlog)) == (900, 2)
    backlog.keep(one, 0)
    backlog.keep(one, 0)
    assert (backlog.total, len(backlog)) == (500, 1)


def test_over_the_limit_those_are_closed_that_keep_the_most_for_the_longest(
    clock: ManualClock,
) -> None:
    backlog, old, small, fresh = unread(clock), Peer(), Peer(), Peer()
    backlog.keep(old, 400)
    backlog.keep(small, 10)
    clock.advance(1_000)
    backlog.keep(fresh, 580)
    assert not old.ended
    backlog.keep(fresh, 600)
    assert old.ended
    assert not small.ended
    assert not fresh.ended
    assert backlog.total == 610


def test_one_peer_alone_is_closed_if_it_keeps_too_much(clock: ManualClock) -> None:
    backlog, peer = unread(clock), Peer()
    backlog.keep(peer, 1_001)
    assert peer.ended
    assert (backlog.total, len(backlog)) == (0, 0)
    backlog.keep(peer, 0)
    assert backlog.total == 0


def test_of_very_many_no_more_are_closed_than_have_to_be(clock: ManualClock) -> None:
    """To close thousands at once would hold everybody."""
    backlog, peers = unread(clock), [Peer() for _ in range(200)]
    for peer in peers[:100]:
        backlog.keep(peer, 10)
    clock.advance(1_000)
    for number, peer in enumerate(peers[100:], 1):
        backlog.keep(peer, 10)
        assert sum(map(len, (each.ended for each in peers))) == number
    assert all(each.ended for each in peers[:100])


def test_a_burst_is_told_by_its_first_and_then_by_number(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    backlog = unread(clock)
    first = Peer()
    for peer in (first, Peer(), Peer()):
        backlog.keep(peer, 1_001)
    assert caplog.messages == [
        f"192.0.2.1:{first.number} closed: 1001 of 1001 unread bytes of all connections are its, "
        "for 0 ms; net.unread_bytes_max = 1000 allows no more"
    ]
    for _ in range(3):
        backlog.sweep()
    assert caplog.messages[1:] == ["2 more connections closed for their unread bytes"]
    backlog.keep(Peer(), 1_001)
    assert len(caplog.messages) == 3


def test_a_frame_that_takes_too_long_is_not_kept_alive_by_more_of_it(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    backlog, slow = unread(clock), Peer()
    for size in range(1, 60):
        backlog.keep(slow, size)
        clock.advance(1_000)
        backlog.expire(60_000)
    assert not slow.ended
    clock.advance(1_000)
    backlog.expire(60_000)
    assert slow.ended
    assert "59 bytes of a request came in 60000 ms, and the rest did not" in caplog.text
    assert "net.frame_timeout_ms" in caplog.text


def test_the_next_frame_has_its_own_time(clock: ManualClock) -> None:
    backlog, peer = unread(clock), Peer()
    backlog.keep(peer, 10)
    clock.advance(59_999)
    backlog.keep(peer, 10, anew=True)
    clock.advance(59_999)
    backlog.expire(60_000)
    assert not peer.ended


def test_a_peer_that_we_do_not_read_from_is_not_blamed_for_its_frame(clock: ManualClock) -> None:
    backlog, peer = unread(clock), Peer(congested=True)
    backlog.keep(peer, 10)
    clock.advance(60_000)
    backlog.expire(60_000)
    assert not peer.ended


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 600), st.booleans(), st.integers(0, 50)),
        max_size=60,
    )
)
def test_whatever_peers_do_the_total_is_right_and_within_the_limit(
    steps: list[tuple[int, int, bool, int]],
) -> None:
    clock = ManualClock()
    backlog = unread(clock)
    peers: dict[int, Peer] = {}
    kept: dict[Peer, int] = {}
    for number, size, anew, passed_ms in steps:
        peer = peers.get(number)
        if peer is None or peer.ended:
            peer = peers[number] = Peer()
        kept[peer] = size
        backlog.keep(peer, size, anew)
        clock.advance(passed_ms)
        assert backlog.total <= 1000
        assert backlog.total == sum(size for peer, size in kept.items() if not peer.ended)


def test_connections_of_all_ports_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    capacity = Capacity(connections_max=10, files_max=1_000)
    capacity.listeners += [Port(6), Port(3)]
    assert capacity.admits(20)
    capacity.listeners.append(Port(1))
    assert not capacity.admits(21)
    assert not capacity.admits()
    assert caplog.messages == [
        "a connection refused: 10 are open already; net.connections_max allows no more"
    ]


def test_connections_leave_a_quarter_of_the_files_to_the_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    capacity = Capacity(files_max=1_000)
    capacity.listeners.append(Port(5))
    assert capacity.admits(749)
    assert not capacity.admits(750)
    assert capacity.admits()
    assert "750 of 1000 files are open, 5 connections among them" in caplog.text
    assert "ulimit -n" in caplog.text


def test_the_limit_of_open_files_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Capacity().files_max == file_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert file_limit() == 1 << 20


def test_a_sweep_looks_after_everything(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    capacity = Capacity(0, 1_000, 1_000, 5_000, clock, 100)
    slow = Peer()
    capacity.unread.keep(slow, 10)
    for _ in range(2):
        capacity.unsent.keep(Peer(), 2_000)
        assert not capacity.admits()
    clock.advance(5_000)
    capacity.sweep()
    assert slow.ended
    assert "1 more connections closed for their unsent bytes" in caplog.text
    assert "1 more connections refused" in caplog.text

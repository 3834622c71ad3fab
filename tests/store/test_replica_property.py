"""However a master's log is split, confirmed, cut and crashed over: the replica knows what it knew.

The master's queues and keys are remembered after every record. A replica that has confirmed so much
must have just these, and the same bytes.
"""

import bisect
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog.clock import ManualClock
from onelog.message import NewMessage
from onelog.store.message_store import MessageStore
from onelog.store.queue_files import FOLDER
from onelog.store.verify import verify
from tests.store.replicas import TINY, Known, keys_of, log_bytes, open_gated, queues_of
from tests.store.samples import sample_messages


class History:
    """A master's log, and what its queues and its index had after each record."""

    def __init__(self) -> None:
        self.log = b""
        self.ends: list[int] = []
        self.known: list[Known] = []
        self.keys: list[list[tuple[int, int]]] = []

    def note(self, store: MessageStore) -> None:
        self.ends.append(int(store.log_end))
        self.known.append(queues_of(store))
        self.keys.append(keys_of(store))

    def __repr__(self) -> str:
        return f"a log of {len(self.log)} bytes"

    def at(self, log_offset: int) -> tuple[Known, list[tuple[int, int]]]:
        number = bisect.bisect_right(self.ends, log_offset) - 1
        return self.known[number], self.keys[number]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    clock, history = ManualClock(), History()
    with MessageStore.open(tmp_path_factory.mktemp("master"), TINY, clock) as store:
        history.note(store)
        for number, message in enumerate(sample_messages(110)):
            if number % 40 == 39:
                store.delete_topic("Orders")
            else:
                store.append([message])
            clock.advance(300)
            history.note(store)
        history.log = log_bytes(store)
    return history


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 9_000)),
        st.tuples(st.just("confirm"), st.integers(0, 9_000)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 3_000)),
        st.tuples(st.just("cut"), st.integers(0, 12_000)),
    ),
    min_size=1,
    max_size=14,
)


class Replica:
    """A store that is given a master's log."""

    def __init__(self, folder: Path, history: History) -> None:
        self.folder = folder
        self.history = history
        self.store = open_gated(folder / "0")
        self.asked = 0

    def send(self, size: int) -> None:
        at = self.store.tail.raw_end
        self.store.tail.append_raw(at, self.history.log[at : at + size])

    def confirm(self, step: int) -> None:
        before = self.store.confirmed
        self.store.tail.confirm(before + step)
        assert before <= self.store.confirmed <= before + step

    def flush(self, _: int) -> None:
        self.store.flush()

    def reopen(self, _: int) -> None:
        confirmed = self.store.confirmed
        self.store.close()
        found = verify(self.store.folder, index_slots=64, index_entries=200)
        assert found.clean, found.problems
        self.store = open_gated(self.store.folder)
        assert self.store.confirmed == confirmed

    def crash(self, torn: int) -> None:
        """Die, and lose some of what was not flushed; what is behind it stays."""
        safe, end = self.store.checkpoints.safe_offset, self.store.tail.raw_end
        copy = self.folder / str(int(self.store.folder.name) + 1)
        aside = shutil.ignore_patterns(FOLDER)  # A thread is taking that away.
        shutil.copytree(self.store.folder, copy, ignore=aside)
        self.store.close()
        # Whole from a record's start on: what has no checksum, nobody can miss in the middle.
        lost = min(at for at in (*self.history.ends, end) if at >= max(safe, end - torn))
        segment = lost // TINY.segment_bytes * TINY.segment_bytes
        path = copy / "commitlog" / f"{segment:020d}"
        if lost < end and path.exists():
            with open(path, "r+b") as raw:
                raw.seek(lost - segment)
                raw.write(bytes(min(torn // 2 + 8, segment + TINY.segment_bytes - lost)))
        self.store = open_gated(copy)
        assert self.store.confirmed == safe
        assert not self.store.damage

    def cut(self, back: int) -> None:
        confirmed = self.store.confirmed
        at = max(0, self.store.tail.raw_end - back)
        cut = self.store.tail.cut(at, "test")
        assert cut.rewound is (self.store.confirmed < confirmed)
        if back:
            assert self.store.tail.raw_end == self.store.log_end == cut.log_offset <= at
        assert self.store.confirmed == min(confirmed, cut.log_offset)

    def check(self) -> None:
        store = self.store
        known, keys = self.history.at(store.confirmed)
        assert store.confirmed <= store.log_end <= store.tail.raw_end
        assert log_bytes(store) == self.history.log[: store.tail.raw_end]
        assert queues_of(store) == known
        assert keys_of(store) == keys


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=ACTIONS)
def test_a_replica_knows_what_its_master_knew(
    history: History, actions: list[tuple[str, int]]
) -> None:
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        replica = Replica(Path(folder), history)
        try:
            for name, amount in actions:
                getattr(replica, name)(amount)
                replica.check()
            replica.send(len(history.log))
            replica.confirm(len(history.log))
            replica.check()
            store = replica.store
            assert store.confirmed == store.log_end == len(history.log)
            store.tail.set_gated(False)
            (place,) = store.append([NewMessage("Orders", 0, b"goes on")])
            assert place.queue_offset == len(history.known[-1].get(("Orders", 0), ()))
        finally:
            replica.store.close()
        found = verify(replica.store.folder, index_slots=64, index_entries=200)
        assert found.clean, found.problems

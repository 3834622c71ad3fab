"""What replicas cost, and how fast they follow: pairs of OneLog beside pairs of RocketMQ 5.5.0.

- Synchronous replication: RocketMQ's Java benchmark client, 64 threads, against a master whose
  sends wait for a slave: OneLog's `replication.ack = one`, RocketMQ's SYNC_MASTER.
- Asynchronous replication: OneLog's master with a follower and without, in turns. All processes
  share the cores of one machine here, so what the follower takes is missing for the sends. What the
  master itself pays is its CPU time for a send, and what is lost of the sends while the follower
  has the lowest priority, as if it were on another machine.
- Catching up: a slave that comes to a master with all its log still to get; and what the disk takes
  when a file is written to it in the same pieces.

Pairs take turns; a row shows medians, and its note all rounds.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from benchmarks.rocketmq_peer import (
    SECONDS,
    SECONDS_QUICK,
    SENDS,
    Load,
    Peer,
    drive,
    rate_row,
)
from benchmarks.rounds import told, turns
from benchmarks.table import Options, Row, at_least
from tests.e2e.faults.filler import fill
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError, wait_until
from tests.e2e.remoting_probe import accepts_message, call
from tests.e2e.rocketmq_peer import PEER_BROKER_HEAP, RocketmqPeer

ROUNDS = 3
TOPIC = "Sends"
GET_BROKER_RUNTIME_INFO = 28
CATCH_UP_BYTES = 4 << 30
CATCH_UP_BYTES_QUICK = 256 << 20
CATCH_UP_MB_S_MIN = 300.0
KEPT_MIN = 0.9
PIECE_BYTES = 1 << 20


class Pair:
    """A master and, when it is started, its slave; each a process with a store of its own."""

    def __init__(self, master: Peer, make_slave: Callable[[str], Peer]) -> None:
        self.master = master
        self._make_slave = make_slave
        self.slave: Peer | None = None

    def start_slave(self) -> None:
        """Start the slave; it is not in sync yet when this returns."""
        self.slave = self._make_slave(self.master.nameservers)
        self.slave.launch()

    def put_slave_aside(self) -> None:
        """Let the slave have what others leave of the cores."""
        assert self.slave is not None
        for pid in self.slave.broker_pids:
            with contextlib.suppress(OSError):  # Each session is a group, and has its own priority.
                Path(f"/proc/{pid}/autogroup").write_text("19")
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)

    def wait_until_in_sync(self) -> None:
        """Return when a send is acknowledged, which waits for the slave, and both have as much."""
        wait_until(lambda: accepts_message(self.master.broker_address, "Probe"), "the slave", 120)
        wait_until(self.is_level, "a slave that has everything", 120)

    def is_level(self) -> bool:
        """Whether both logs end at the same place."""
        return log_end(self.slave) == log_end(self.master) > 0

    def __enter__(self) -> Self:
        self.master.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for peer in (self.slave, self.master):
            if peer is not None:
                peer.close()


def log_end(peer: Peer | None) -> int:
    """How long its log is, as it says; 0 if it says nothing yet."""
    if peer is None:
        return 0
    try:
        answer = call(peer.broker_address, GET_BROKER_RUNTIME_INFO)
    except OSError:
        return 0
    return int(json.loads(answer.body)["table"]["commitLogMaxOffset"]) if answer.code == 0 else 0


def onelog_pair(folder: Path, ack: str) -> Pair:
    """OneLog with static roles."""
    replication = {"ONELOG_REPLICATION_ACK": ack, "ONELOG_REPLICATION_REPLICAS": "2"}
    return Pair(
        OnelogPeer(folder / "master", settings=replication, may_stall=True),
        lambda nameservers: OnelogPeer(
            folder / "slave",
            nameservers=nameservers,
            may_stall=True,
            settings={**replication, "ONELOG_BROKER_BROKER_ID": "1", "ONELOG_KAFKA_PORT": "0"},
        ),
    )


def rocketmq_pair(folder: Path, role: str) -> Pair:
    """RocketMQ with its defaults, save for the role."""
    return Pair(
        RocketmqPeer(folder / "master", heap=PEER_BROKER_HEAP, settings={"brokerRole": role}),
        lambda nameservers: RocketmqPeer(
            folder / "slave",
            heap=PEER_BROKER_HEAP,
            nameservers=nameservers,
            settings={"brokerRole": "SLAVE", "brokerId": 1},
        ),
    )


def run(options: Options) -> list[Row]:
    """The suite; its parts are sync, async and catch-up."""
    seconds = options.seconds or (SECONDS_QUICK if options.quick else SECONDS)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    size = CATCH_UP_BYTES_QUICK if options.quick else CATCH_UP_BYTES
    if options.seconds:
        size = int(options.seconds * CATCH_UP_MB_S_MIN * 1e6)  # It lasts so long, if all is well.
    parts: dict[str, Callable[[], list[Row]]] = {
        "sync": lambda: [synchronous(options, seconds, rounds)],
        "async": lambda: asynchronous(options, seconds, rounds),
        "catch-up": lambda: catching_up(options, size, rounds),
    }
    return [row for part in options.chosen(*parts) for row in parts[part]()]


def synchronous(options: Options, seconds: int, rounds: int) -> Row:
    """Sends that wait for a slave."""
    makers: dict[str, Callable[[Path], Pair]] = {
        "rocketmq": lambda folder: rocketmq_pair(folder, "SYNC_MASTER"),
        "onelog": lambda folder: onelog_pair(folder, "one"),
    }
    found: dict[str, list[Load]] = {name: [] for name in makers}
    for number, name in turns(rounds, list(makers)):
        options.announce(f"synchronous replication: round {number} of {rounds}, {name}")
        with makers[name](options.folder / f"sync-{name}-{number}") as pair:
            pair.start_slave()
            pair.wait_until_in_sync()
            found[name].append(_sends(pair, seconds))
            # Sends that did not wait would be fast, too.
            if not accepts_message(pair.master.broker_address, "Probe"):
                raise ChildError(f"the slave of {name} was lost under load")
    return rate_row(
        "sync sends that wait for a slave, 64 threads",
        "sends/s",
        1.0,
        found["onelog"],
        found["rocketmq"],
        note="cores are those of the master",
    )


def asynchronous(options: Options, seconds: int, rounds: int) -> list[Row]:
    """What a follower that nobody waits for costs the master."""
    found: dict[str, list[Load]] = {"without": [], "with": [], "with, aside,": []}
    for number, name in turns(rounds, list(found)):
        options.announce(f"asynchronous replication: round {number} of {rounds}, {name} a follower")
        with onelog_pair(options.folder / f"async-{name}-{number}", "local") as pair:
            if name != "without":
                pair.start_slave()
                wait_until(partial(_is_fed, pair), "a slave that follows", 60)
            if name == "with, aside,":
                pair.put_slave_aside()
            found[name].append(_sends(pair, seconds))
            if name != "without":
                wait_until(pair.is_level, "a slave that has everything", 120)
    rates = {name: [load.rate for load in loads] for name, loads in found.items()}
    costs = {name: [load.broker_cpu_us for load in loads] for name, loads in found.items()}
    alone = "without a follower"
    return [
        Row(
            "sends with a follower of the lowest priority, 64 threads",
            median(rates["with, aside,"]),
            "sends/s",
            median(rates["without"]),
            alone,
            KEPT_MIN,
            cpu_us=median(costs["with, aside,"]),
            note=told(rates["with, aside,"], rates["without"]),
        ),
        Row(
            "sends with a follower that shares the cores, 64 threads",
            median(rates["with"]),
            "sends/s",
            median(rates["without"]),
            alone,
            cpu_us=median(costs["with"]),
            note=told(rates["with"], rates["without"]),
        ),
        Row(
            "master's CPU for a million sends, with a follower",
            median(costs["with"]),
            "s",
            median(costs["without"]),
            alone,
            KEPT_MIN,
            less_is_better=True,
            note=told(costs["with"], costs["without"], less_is_better=True),
        ),
    ]


def _sends(pair: Pair, seconds: int) -> Load:
    return drive(pair.master, "Producer", TOPIC, SENDS, seconds, ("-w", "64"))


def _is_fed(pair: Pair) -> bool:
    """Whether a message that is sent now reaches the slave soon."""
    accepts_message(pair.master.broker_address, "Probe")
    time.sleep(0.2)
    return pair.is_level()


def catching_up(options: Options, size: int, rounds: int) -> list[Row]:
    """How fast a slave gets a log of this size, that the master has in memory or on disk."""
    makers: dict[str, Callable[[Path], Pair]] = {
        "rocketmq": lambda folder: rocketmq_pair(folder, "ASYNC_MASTER"),
        "onelog": lambda folder: onelog_pair(folder, "local"),
    }
    found: dict[str, list[float]] = {"rocketmq": [], "onelog": [], "disk": []}
    for number, name in turns(rounds, list(makers)):
        options.announce(f"catching up: round {number} of {rounds}, {name}")
        own = options.folder / f"behind-{name}-{number}"
        with makers[name](own) as pair:
            fill(pair.master.nameservers, "Filled", size >> 20)
            found[name].append(_catch_up_mb_s(pair))
        shutil.rmtree(own, ignore_errors=True)
        if name == "onelog":
            found["disk"].append(_disk_mb_s(options.folder, size))
    reached, disk = median(found["onelog"]), median(found["disk"])
    limit = min(CATCH_UP_MB_S_MIN, disk)
    rounds_told = told(found["onelog"], found["rocketmq"])
    return [
        at_least(
            f"catching up {size / 2**30:.2f} GiB",
            reached,
            "MB/s",
            limit,
            None,
            f"the disk takes {disk:,.0f} MB/s from one writer of a file, without a flush",
        ),
        Row(
            "catching up, beside RocketMQ's slave",
            reached,
            "MB/s",
            median(found["rocketmq"]),
            "RocketMQ",
            note=rounds_told,
        ),
    ]


def _catch_up_mb_s(pair: Pair) -> float:
    """From when the slave's log begins to grow until it is the master's."""
    size = log_end(pair.master)
    pair.start_slave()
    wait_until(lambda: log_end(pair.slave) > 0, "a slave that follows", 120)
    begin, had = time.perf_counter(), log_end(pair.slave)
    wait_until(lambda: log_end(pair.slave) >= size, "a slave that has everything", 600)
    return (size - had) / (time.perf_counter() - begin) / 1e6


def _disk_mb_s(folder: Path, size: int) -> float:
    piece, path = bytes(PIECE_BYTES), folder / "written"
    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // PIECE_BYTES):
            file.write(piece)
    elapsed_s = time.perf_counter() - begin
    path.unlink()
    return size / elapsed_s / 1e6

"""Side by side with the real RocketMQ 5.5.0: its own Java benchmark client drives both brokers.

The servers take turns on the same machine, each turn with a server and a store of its own: RocketMQ
as it comes (4 GiB heap), OneLog as `onelog up` starts it. The client is Java too, and has to warm
up: of each run only the last nine seconds count (the window of the client's own report). A row
shows the medians of the rounds, and its note all of them.

`python -m benchmarks rocketmq` runs it like every suite; `python -m benchmarks.rocketmq_peer
--seconds 25 --rounds 2` sets how long each part takes and how often, `--server` measures one of the
two and prints that.
"""

import argparse
import compileall
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console

import onelog
from benchmarks.process_usage import anonymous_bytes, cpu_seconds
from benchmarks.rounds import told, turns
from benchmarks.table import Options, Row, show
from tests.e2e.java_clients import PEER_VERSION, QUIET, Scenario, jvm, peer_classpath
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError, log_tail, spawn, stop, wait_until
from tests.e2e.remoting_probe import accepts_message, create_topic, has_route, is_answering
from tests.e2e.rocketmq_peer import PEER_BROKER_HEAP, RocketmqPeer

Peer = OnelogPeer | RocketmqPeer

# Java needs its half minute to become fast, client and broker alike: shorter runs flatter OneLog.
SECONDS = 60
SECONDS_QUICK = 16
ROUNDS = 3
START_ROUNDS = 4
# The client reports the mean over its last ten one-second snapshots.
WINDOW_S = 9
QUEUES = 16
BODY_BYTES = 128
PACED_RATE = 10_000
CLIENT_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
COMPACT_HEADERS = ("-Drocketmq.serialize.type=ROCKETMQ",)
SENDS = re.compile(r"Send TPS: (\d+).*Send Failed: (\d+)")
BATCHED = re.compile(r"Send MPS: (\d+).*Send Failed: (\d+)")
CONSUMED = re.compile(r"Consume TPS: (\d+).*Consume Fail: (\d+)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a run: what client and broker have used, and the client's last report."""

    at_s: float
    broker_cpu_s: float
    client_cpu_s: float
    rate: float
    failed: int


@dataclass(frozen=True, slots=True)
class Load:
    """What a run reached within its window, and who was busy meanwhile."""

    rate: float
    broker_cores: float
    client_cores: float
    failed: int

    @property
    def broker_cpu_us(self) -> float:
        """CPU time of the broker for one message."""
        return self.broker_cores / self.rate * 1e6 if self.rate else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that was measured of one server, each a list with a value per round."""

    loads: dict[str, list[Load]] = field(default_factory=lambda: defaultdict(list))
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class Run:
    """One of RocketMQ's benchmark programs, and the pattern of its reports."""

    name: str
    program: str
    topic: str
    pattern: re.Pattern[str]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What is measured during one life of a server: what belongs together, and no more."""

    name: str
    runs: tuple[Run, ...]
    paced: bool = False
    sync_flush: bool = False


SENDING = Run("sends", "Producer", "Sends", SENDS, ("-w", "64"))
BATCHING = Run("batches", "BatchProducer", "Batches", BATCHED, ("-w", "16", "-b", "16"))
CONSUMING = Run("consumption", "Consumer", "Batches", CONSUMED, ("-g", "readers"))
FLUSHING = Run("flushed sends", "Producer", "Sends", SENDS, ("-w", "64"))
PARTS = (
    Part(f"synchronous sends, then {PACED_RATE:,} a second", (SENDING,), paced=True),
    Part("batches, then their consumption", (BATCHING, CONSUMING)),
    Part("synchronous sends with synchronous flush", (FLUSHING,), sync_flush=True),
)

Make = Callable[[Path, bool], Peer]
"""Makes a server, not started yet, in a folder; with or without synchronous flush."""
SERVERS: dict[str, Make] = {
    "rocketmq": lambda folder, sync: RocketmqPeer(folder, heap=PEER_BROKER_HEAP, sync_flush=sync),
    "onelog": lambda folder, sync: OnelogPeer(folder, sync_flush=sync, may_stall=True),
}


def run(options: Options) -> list[Row]:
    """The suite: RocketMQ and OneLog in turns."""
    seconds, rounds = (SECONDS_QUICK, 1) if options.quick else (SECONDS, ROUNDS)
    return compare(options.folder, seconds, rounds, options.announce)


def compare(folder: Path, seconds: int, rounds: int, announce: Callable[[str], None]) -> list[Row]:
    """Measure both and hold one against the other."""
    found = measure(SERVERS, PARTS, folder, seconds, rounds, announce)
    for number, name in turns(START_ROUNDS, list(SERVERS)):
        announce(f"start to first acknowledged message: round {number} of {START_ROUNDS}, {name}")
        peer = SERVERS[name](folder / f"{name}-start-{number}", False)
        found[name].figures["start_s"].append(first_message_s(peer))
    return rows(found["onelog"], found["rocketmq"])


def make(server: str, folder: Path) -> Peer:
    """One of the two servers, not started yet."""
    return SERVERS[server](folder, False)


def measure(
    servers: Mapping[str, Make],
    parts: Sequence[Part],
    folder: Path,
    seconds: int,
    rounds: int,
    announce: Callable[[str], None],
) -> dict[str, Measured]:
    """All parts of all servers, which take turns."""
    # As it is installed: pip compiles what it installs, and RocketMQ's classes are compiled too.
    compileall.compile_dir(Path(onelog.__file__).parent, quiet=1)
    found = {name: Measured() for name in servers}
    for part in parts:
        for number, name in turns(rounds, list(servers)):
            announce(f"{part.name}: round {number} of {rounds}, {name}")
            own = folder / f"{name}-{part.runs[0].name.replace(' ', '-')}-{number}"
            with servers[name](own, part.sync_flush) as peer:
                look(peer, part, seconds, found[name])
    return found


def look(peer: Peer, part: Part, seconds: int, found: Measured) -> None:
    """One turn of a server that runs."""
    for each in part.runs:
        load = drive(peer, each.program, each.topic, each.pattern, seconds, each.arguments)
        found.loads[each.name].append(load)
    found.figures[f"bytes after {part.runs[-1].name}"].append(anonymous_bytes(peer.broker_pids))
    if part.paced:
        for name, value in paced_sends(peer, seconds).items():
            found.figures[name].append(value)


def first_message_s(peer: Peer) -> float:
    """From the start of the process to the first acknowledged message.

    In RocketMQ's favour its name server runs already; OneLog starts both.
    """
    try:
        if isinstance(peer, RocketmqPeer):
            peer.start_nameserver()
            wait_until(lambda: is_answering(peer.nameservers), "the name server")
        begin = time.perf_counter()
        peer.launch()
        while not accepts_message(peer.broker_address, "FirstMessage"):
            if time.perf_counter() - begin > 60:
                raise ChildError(f"{peer.name} acknowledged nothing within 60 s")
            time.sleep(0.005)
        return time.perf_counter() - begin
    finally:
        peer.close()


def drive(
    peer: Peer,
    program: str,
    topic: str,
    pattern: re.Pattern[str],
    seconds: int,
    arguments: tuple[str, ...],
) -> Load:
    """Run one of RocketMQ's benchmark programs for a while and watch."""
    if not has_route(peer.nameservers, topic):
        create_topic(peer.broker_address, topic, QUEUES)
        wait_until(lambda: has_route(peer.nameservers, topic), f"the route of {topic}")
    log = peer.folder / f"{program}.log"
    size = () if program == "Consumer" or "-s" in arguments else ("-s", str(BODY_BYTES))
    command = jvm(
        peer.folder / "client",
        f"{QUIET}:{peer_classpath()}",
        f"org.apache.rocketmq.example.benchmark.{program}",
        *("-n", peer.nameservers, "-t", topic, "-ri", "1000", *size, *arguments),
        options=CLIENT_JVM,
    )
    child = spawn(command, log)
    samples: list[Sample] = []
    try:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds and child.poll() is None:
            time.sleep(1)
            reports = pattern.findall(log.read_text())
            rate, failed = reports[-1] if reports else (0, 0)
            broker, client = cpu_seconds(peer.broker_pids), cpu_seconds([child.pid])
            samples.append(Sample(time.perf_counter(), broker, client, float(rate), int(failed)))
    finally:
        stop(child, timeout_s=5)
    load = window(samples, best=program == "Consumer")
    if not load.rate:
        raise ChildError(f"{program} against {peer.name} reported nothing\n{log_tail(log)}")
    return load


def window(samples: list[Sample], *, best: bool) -> Load:
    """The last window of a run; or its best one, for a consumer that may run out of messages."""
    ends = range(WINDOW_S, len(samples))
    end = max(ends, key=lambda i: samples[i].rate if best else i, default=0)
    last, first = samples[end], samples[max(0, end - WINDOW_S)]
    elapsed_s = max(last.at_s - first.at_s, 1e-9)
    return Load(
        last.rate,
        (last.broker_cpu_s - first.broker_cpu_s) / elapsed_s,
        (last.client_cpu_s - first.client_cpu_s) / elapsed_s,
        last.failed,
    )


def paced_sends(peer: Peer, seconds: int) -> dict[str, int]:
    """Latencies at a fixed rate, in microseconds."""
    with Scenario(
        peer.folder / "client",
        PEER_VERSION,
        "paced",
        peer.nameservers,
        (*CLIENT_JVM, *COMPACT_HEADERS),
        topic="Sends",
        rate=PACED_RATE,
        size=BODY_BYTES,
        seconds=seconds // 2,
        warm_up_seconds=seconds // 2,
    ) as scenario:
        done = scenario.wait_for("done", 4 * seconds + 30)
    return {name: value for name, value in done.items() if isinstance(value, int)}


def rows(ours: Measured, theirs: Measured) -> list[Row]:
    """What issue and people want to know, with the ratio that is required."""
    paced = f"{PACED_RATE:,} sends/s"

    def load_row(what: str, unit: str, ratio_min: float, name: str) -> Row:
        return rate_row(what, unit, ratio_min, ours.loads[name], theirs.loads[name])

    def figure_row(
        what: str, name: str, unit: str, ratio_min: float | None, scale: float = 1, note: str = ""
    ) -> Row:
        mine, others = (
            [value / scale for value in measured.figures[name]] for measured in (ours, theirs)
        )
        return less_row(what, mine, others, unit, ratio_min, note)

    return [
        load_row("sync sends, 64 threads", "sends/s", 1.2, "sends"),
        load_row("batches of 16, 16 threads", "msg/s", 1.0, "batches"),
        load_row("push consumer", "msg/s", 1.0, "consumption"),
        load_row("sync sends, sync flush", "sends/s", 1.0, "flushed sends"),
        less_row(
            "broker CPU for a million sync sends",
            [load.broker_cpu_us for load in ours.loads["sends"]],
            [load.broker_cpu_us for load in theirs.loads["sends"]],
            "s",
            2.0,
        ),
        figure_row(
            f"p99 latency at {paced}, from when it was due",
            "due_p99.0_us",
            "us",
            1.0,
            note=f"stalls delay sends, too; reached {reached(ours)} and {reached(theirs)}",
        ),
        figure_row(f"p99 latency at {paced}, from the call", "call_p99.0_us", "us", None),
        figure_row(
            "memory of its own after the load",
            "bytes after consumption",
            "MiB",
            5.0,
            2**20,
            "RssAnon; RocketMQ's without its name server",
        ),
        figure_row(
            "start to first acknowledged message",
            "start_s",
            "s",
            5.0,
            note="RocketMQ's name server ran already",
        ),
    ]


def reached(measured: Measured) -> str:
    """The rate that paced sends really had."""
    return f"{median(measured.figures['rate']):,.0f}/s"


def rate_row(
    what: str,
    unit: str,
    ratio_min: float,
    ours: Sequence[Load],
    theirs: Sequence[Load],
    peer: str = "RocketMQ",
    note: str = "",
) -> Row:
    """A row for something of which more is better: the medians, and in the note all rounds."""
    mine, others = [load.rate for load in ours], [load.rate for load in theirs]
    our, their = middle(ours), middle(theirs)
    notes = [told(mine, others), busy("OneLog", our), busy(peer, their), limit(our), note]
    return Row(
        what,
        median(mine),
        unit,
        median(others),
        peer,
        ratio_min,
        cpu_us=median(load.broker_cpu_us for load in ours),
        note="; ".join(filter(None, notes)),
    )


def less_row(
    what: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    unit: str,
    ratio_min: float | None,
    note: str = "",
    peer: str = "RocketMQ",
) -> Row:
    """A row for something of which less is better."""
    return Row(
        what,
        median(ours),
        unit,
        median(theirs),
        peer,
        ratio_min,
        less_is_better=True,
        note="; ".join(filter(None, [told(ours, theirs, less_is_better=True), note])),
    )


def middle(loads: Sequence[Load]) -> Load:
    """The run with the median rate."""
    rate = median(load.rate for load in loads)
    return min(loads, key=lambda load: abs(load.rate - rate))


def busy(name: str, load: Load) -> str:
    """Who used the cores, which tells what limits the rate."""
    failures = f", {load.failed} failed" if load.failed else ""
    return f"{name} {load.broker_cores:.2f} cores + client {load.client_cores:.2f}{failures}"


def limit(load: Load) -> str:
    """What keeps OneLog from being faster here, as far as the cores tell."""
    used = load.broker_cores + load.client_cores
    if used >= 0.85 * (os.cpu_count() or 1):
        return f"limited by the cores, {load.client_cores / used:.0%} of which the client takes"
    if load.broker_cores >= 0.9:
        return "limited by the broker's one thread"
    return "limited by waiting: round trips, the disk, or other jobs on this machine"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rocketmq_peer")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long each part runs")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each part runs")
    parser.add_argument("--server", choices=SERVERS, help="measure only this one")
    given = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=160)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as made:
        folder, seconds, rounds = Path(made), given.seconds, given.rounds
        if given.server is not None:
            alone = {given.server: SERVERS[given.server]}
            console.print(measure(alone, PARTS, folder, seconds, rounds, console.print))
        else:
            show("rocketmq", compare(folder, seconds, rounds, console.print), console)


if __name__ == "__main__":
    main()

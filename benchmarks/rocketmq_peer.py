"""Side by side with the real RocketMQ 5.5.0: its own Java benchmark client drives both brokers.

First one server, then the other, on the same machine, each with a fresh store: RocketMQ as it comes
(4 GiB heap), OneLog as `onelog up` starts it. The client is Java too, and has to warm up: of each
run only the last nine seconds count (the window of the client's own report).

`python -m benchmarks rocketmq` runs it like every suite; `python -m benchmarks.rocketmq_peer
--seconds 25` sets how long each part takes, `--server` measures one of the two and prints that.
"""

import argparse
import compileall
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import onelog
from benchmarks.process_usage import anonymous_bytes, cpu_seconds
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
    """Everything that was measured of one server."""

    start_s: float
    sends: Load
    batches: Load
    consumption: Load
    flushed_sends: Load
    paced: dict[str, int]
    anonymous_bytes: int


def run(options: Options) -> list[Row]:
    """The suite: RocketMQ, then OneLog."""
    seconds = SECONDS_QUICK if options.quick else SECONDS
    return compare(options.folder, seconds, options.announce)


def compare(folder: Path, seconds: int, announce: Callable[[str], None]) -> list[Row]:
    """Measure both and hold one against the other."""
    theirs = measure("rocketmq", folder, seconds, announce)
    ours = measure("onelog", folder, seconds, announce)
    return rows(ours, theirs)


def make(server: str, folder: Path, *, sync_flush: bool = False) -> Peer:
    """A server that is not started yet."""
    if server == "onelog":
        return OnelogPeer(folder, sync_flush=sync_flush, may_stall=True)
    return RocketmqPeer(folder, heap=PEER_BROKER_HEAP, sync_flush=sync_flush)


def measure(server: str, folder: Path, seconds: int, announce: Callable[[str], None]) -> Measured:
    """All measurements of one server."""
    announce(f"{server}: start to first acknowledged message")
    # As it is installed: pip compiles what it installs, and RocketMQ's classes are compiled too.
    compileall.compile_dir(Path(onelog.__file__).parent, quiet=1)
    start_s = sorted(first_message_s(make(server, folder / f"{server}-{i}")) for i in range(3))[1]
    with make(server, folder / server) as peer:
        announce(f"{server}: synchronous sends")
        sends = drive(peer, "Producer", "Sends", SENDS, seconds, ("-w", "64"))
        announce(f"{server}: {PACED_RATE:,} sends/s")
        paced = paced_sends(peer, seconds)
        announce(f"{server}: batches")
        batches = drive(
            peer, "BatchProducer", "Batches", BATCHED, seconds, ("-w", "16", "-b", "16")
        )
        announce(f"{server}: consumption")
        consumption = drive(peer, "Consumer", "Batches", CONSUMED, seconds, ("-g", "readers"))
        memory = anonymous_bytes(peer.broker_pids)
    with make(server, folder / f"{server}-sync", sync_flush=True) as peer:
        announce(f"{server}: synchronous sends with synchronous flush")
        flushed = drive(peer, "Producer", "Sends", SENDS, seconds, ("-w", "64"))
    return Measured(start_s, sends, batches, consumption, flushed, paced, memory)


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
    p99, p99_due = "call_p99.0_us", "due_p99.0_us"
    return [
        rate_row("sync sends, 64 threads", "sends/s", 1.2, ours.sends, theirs.sends),
        rate_row("batches of 16, 16 threads", "msg/s", 1.0, ours.batches, theirs.batches),
        rate_row("push consumer", "msg/s", 1.0, ours.consumption, theirs.consumption),
        rate_row(
            "sync sends, sync flush", "sends/s", 1.0, ours.flushed_sends, theirs.flushed_sends
        ),
        less_row(
            "broker CPU for a million sync sends",
            (ours.sends.broker_cpu_us, theirs.sends.broker_cpu_us),
            "s",
            2.0,
        ),
        less_row(
            f"p99 latency at {paced}, from when it was due",
            (ours.paced[p99_due], theirs.paced[p99_due]),
            "us",
            1.0,
            f"counts sends that a stall delayed; {paced_note(ours, theirs)}",
        ),
        less_row(
            f"p99 latency at {paced}, from the call",
            (ours.paced[p99], theirs.paced[p99]),
            "us",
            None,
        ),
        less_row(
            "memory of its own after the load",
            (ours.anonymous_bytes / 2**20, theirs.anonymous_bytes / 2**20),
            "MiB",
            5.0,
            "RssAnon; RocketMQ's without its name server",
        ),
        less_row(
            "start to first acknowledged message",
            (ours.start_s, theirs.start_s),
            "s",
            5.0,
            "median of 3; RocketMQ's name server ran already",
        ),
    ]


def rate_row(what: str, unit: str, ratio_min: float, ours: Load, theirs: Load) -> Row:
    """A row for something of which more is better."""
    return Row(
        what,
        ours.rate,
        unit,
        theirs.rate,
        "RocketMQ",
        ratio_min,
        cpu_us=ours.broker_cpu_us,
        note=f"{busy('OneLog', ours)}; {busy('RocketMQ', theirs)}; {limit(ours)}",
    )


def less_row(
    what: str, values: tuple[float, float], unit: str, ratio_min: float | None, note: str = ""
) -> Row:
    """A row for something of which less is better."""
    ours, theirs = values
    return Row(what, ours, unit, theirs, "RocketMQ", ratio_min, less_is_better=True, note=note)


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


def paced_note(ours: Measured, theirs: Measured) -> str:
    """The rates that were really reached."""
    return f"reached {ours.paced['rate']:,}/s and {theirs.paced['rate']:,}/s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rocketmq_peer")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long each part runs")
    parser.add_argument("--server", choices=("onelog", "rocketmq"), help="measure only this one")
    given = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=160)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        if given.server is not None:
            console.print(measure(given.server, Path(folder), given.seconds, console.print))
        else:
            show("rocketmq", compare(Path(folder), given.seconds, console.print), console)


if __name__ == "__main__":
    main()

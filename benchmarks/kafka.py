"""Side by side with a real Kafka 4.3.1 in KRaft mode: one C client on librdkafka drives both.

The servers take turns, each turn with a server and a store of its own: Kafka as it comes (1 GiB
heap), OneLog as `onelog up` starts it. A turn warms the server up, then fills one topic after
another and reads it again: 1 and 4 partitions, 100 bytes and 1 KiB, acks=1. Rows show the medians
of the rounds, and their notes all of them.

In a virtual machine, memory that was not used for a while is not there: its host has to find some
when a page is first written to. That takes ten times as long as the write, and counts as CPU time
of who writes. So before a topic is filled, as much memory as it will take is used once, and freed.

`python -m benchmarks kafka` runs it like every suite; `--quick` takes a
tenth of the messages, once. The client is compiled when it is needed, which takes gcc and the
librdkafka-dev of Debian or Ubuntu.
"""

import compileall
import json
import shutil
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import onelog as onelog_package
from benchmarks.kafka_peer import KafkaPeer, producer_performance
from benchmarks.process_usage import anonymous_bytes, cpu_seconds
from benchmarks.rounds import told, turns
from benchmarks.table import Options, Row, not_run
from tests.e2e.java_toolchain import JavaFailedError, JavaMissingError
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError, wait_until

SOURCE = Path(__file__).with_name("kafka_client.c")
ROUNDS, START_ROUNDS = 2, 4
CELLS = ((1, 100), (4, 100), (1, 1024), (4, 1024))
MESSAGES = {100: 6_000_000, 1024: 1_200_000}
FLUSHED_MESSAGES, PERF_MESSAGES = 60_000, 4_000_000
RATE, LATENCY_S = 20_000, 10
CLIENT_TIMEOUT_S = 300
LINGER = "linger.ms=5"
PRODUCER = ("acks=1", LINGER, "queue.buffering.max.messages=1000000", "batch.num.messages=10000")
CONSUMER = ("queued.min.messages=1000000", "fetch.message.max.bytes=8388608")
HASTY = (
    "reconnect.backoff.ms=5",
    "reconnect.backoff.max.ms=10",
    "retry.backoff.ms=5",
    "topic.metadata.refresh.fast.interval.ms=5",
    "message.timeout.ms=60000",
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker that runs."""

    bootstrap: str
    pids: list[int]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run of the client saw."""

    rate: float
    broker_cpu_s: float
    """For a million messages."""
    client_cores: float
    broker_cores: float
    told: dict[str, float]


@contextmanager
def kafka(folder: Path, flush: bool) -> Iterator[Peer]:
    """Kafka, alone."""
    settings = {"log.flush.interval.messages": "1"} if flush else {}
    with KafkaPeer(folder, settings=settings) as peer:
        yield Peer(peer.bootstrap, peer.pids)


@contextmanager
def onelog(folder: Path, flush: bool) -> Iterator[Peer]:
    """`onelog up`."""
    with OnelogPeer(folder, sync_flush=flush, may_stall=True, kafka=True) as peer:
        yield Peer(peer.bootstrap, peer.broker_pids)


SERVERS = {"kafka": kafka, "onelog": onelog}
Measured = dict[str, list[Figures]]


def run(options: Options) -> list[Row]:
    """The suite."""
    try:
        return _rows(*_measure(options, compiled(options.folder)))
    except (ChildError, JavaFailedError, JavaMissingError) as error:
        return [not_run("Kafka", str(error))]


def compiled(folder: Path) -> Path:
    """The client."""
    if shutil.which("gcc") is None or not Path("/usr/include/librdkafka/rdkafka.h").exists():
        raise ChildError("the client needs gcc and librdkafka-dev: apt-get install them")
    client = folder / "kafka_client"
    flags = ("-O2", "-o", str(client), str(SOURCE), "-lrdkafka", "-lpthread")
    subprocess.run(["gcc", *flags], check=True, timeout=120)
    return client


def _measure(
    options: Options, client: Path
) -> tuple[dict[str, Measured], dict[str, dict[str, list[float]]]]:
    # As it is installed: pip compiles what it installs.
    compileall.compile_dir(Path(onelog_package.__file__).parent, quiet=1)
    rounds, share = (1, 10) if options.quick else (ROUNDS, 1)
    found: dict[str, Measured] = {name: defaultdict(list) for name in SERVERS}
    single: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in SERVERS}
    # Before anything else: what the rounds wrote keeps the disk busy for a while.
    for number, name in turns(1 if options.quick else START_ROUNDS, list(SERVERS)):
        options.announce(f"start to first acknowledged message: round {number}, {name}")
        single[name]["start"].append(_first_message_s(name, options.folder / f"s{number}", client))
    for number, name in turns(rounds, list(SERVERS)):
        options.announce(f"round {number} of {rounds}, {name}")
        with SERVERS[name](options.folder / f"{name}-{number}", False) as peer:
            _turn(peer, client, found[name], single[name], share)
        with SERVERS[name](options.folder / f"{name}-flush-{number}", True) as peer:
            create(peer, "flushed", 1)
            drive(client, peer, "produce", "flushed", 1024, FLUSHED_MESSAGES // 10, 0, *PRODUCER)
            run = drive(
                client,
                peer,
                "produce",
                "flushed",
                1024,
                FLUSHED_MESSAGES // share,
                0,
                *PRODUCER[1:],
                "acks=-1",
            )
            found[name]["flushed"].append(run)
    return found, single


def _turn(
    peer: Peer, client: Path, found: Measured, single: dict[str, list[float]], share: int
) -> None:
    """One life of a server."""
    create(peer, "warm", 4)
    drive(client, peer, "produce", "warm", 100, 4_000_000 // share, 0, *PRODUCER)
    drive(client, peer, "consume", "warm", 4, 4_000_000 // share, 0, *CONSUMER)
    for partitions, size in CELLS:
        topic, messages = f"t{partitions}x{size}", MESSAGES[size] // share
        touch_memory(messages * size * 3 // 2)
        create(peer, topic, partitions)
        run = drive(client, peer, "produce", topic, size, messages, 0, *PRODUCER)
        found[f"produce {partitions} {size}"].append(run)
        run = drive(client, peer, "consume", topic, partitions, messages, messages // 20, *CONSUMER)
        found[f"consume {partitions} {size}"].append(run)
    single["memory"].append(anonymous_bytes(peer.pids) / 2**20)
    create(peer, "latency", 1)
    seen = drive(client, peer, "latency", "latency", RATE, LATENCY_S, 3, "acks=1", "linger.ms=1")
    for name in ("p50_us", "p99_us"):
        single[name].append(seen.told[name])
    create(peer, "perf", 1)
    rate = producer_performance(peer.bootstrap, "perf", PERF_MESSAGES // share, 100)
    single["perf"].append(rate)


def touch_memory(size: int) -> None:
    """Have the machine's host give it memory, which the next who asks for some gets."""
    use = (
        f"import mmap; m = mmap.mmap(-1, {size})\n"
        f"for at in range(0, {size}, mmap.PAGESIZE): m[at] = 1"
    )
    subprocess.run([sys.executable, "-c", use], check=True, timeout=CLIENT_TIMEOUT_S)


def create(peer: Peer, topic: str, partitions: int) -> None:
    """Make a topic."""
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def drive(client: Path, peer: Peer, mode: str, topic: str, *words: float | str) -> Figures:
    """Run the client once, and look at the broker while it counts."""
    command = [str(client), mode, peer.bootstrap, topic, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            if child.stdout.readline() != "begin\n":
                raise ChildError(f"the client saw nothing: {' '.join(command[1:])}")
            before = cpu_seconds(peer.pids)
            line = child.stdout.readline()
            used = cpu_seconds(peer.pids) - before
        finally:
            child.kill()
    if not line.startswith("end "):
        raise ChildError(f"the client did not end well: {' '.join(command[1:])}")
    seen: dict[str, float] = json.loads(line[4:])
    messages, seconds = seen["messages"], seen["seconds"]
    if seen["failed"]:
        raise ChildError(f"{seen['failed']:.0f} messages failed: {' '.join(command[1:])}")
    return Figures(
        messages / seconds,
        used / messages * 1e6,
        seen.get("cpu_s", 0) / seconds,
        used / seconds,
        seen,
    )


def _first_message_s(name: str, folder: Path, client: Path) -> float:
    """From the start of the process to the first acknowledged message, of a topic made by it."""
    peer = KafkaPeer(folder) if name == "kafka" else OnelogPeer(folder, may_stall=True, kafka=True)
    try:
        if isinstance(peer, KafkaPeer):
            peer.prepare()
        begin = time.perf_counter()
        peer.launch()
        # A client that comes before looks again after a second at the soonest.
        wait_until(lambda: _listens(peer.bootstrap), "a port", CLIENT_TIMEOUT_S)
        words = ("produce", peer.bootstrap, "first", "100", "1", "0", "linger.ms=0", *HASTY)
        subprocess.run([client, *words], check=True, capture_output=True, timeout=CLIENT_TIMEOUT_S)
        return time.perf_counter() - begin
    finally:
        peer.close()


def _listens(bootstrap: str) -> bool:
    host, _, port = bootstrap.rpartition(":")
    with socket.socket() as attempt:
        return attempt.connect_ex((host, int(port))) == 0


def _rows(found: dict[str, Measured], single: dict[str, dict[str, list[float]]]) -> list[Row]:
    ours, theirs = found["onelog"], found["kafka"]
    rows = [
        _rate(f"{mode}, {_of(partitions)}, {size} bytes", ours[key], theirs[key])
        for mode in ("produce", "consume")
        for partitions, size in CELLS
        if (key := f"{mode} {partitions} {size}")
    ]
    rows.append(_rate("produce, acks=all, fsync, 1 KiB", ours["flushed"], theirs["flushed"]))
    mine, others = single["onelog"], single["kafka"]
    rows.append(
        Row(
            "kafka-producer-perf-test, 100 bytes",
            median(mine["perf"]),
            "msg/s",
            median(others["perf"]),
            "Kafka",
            1.0,
            note=told(mine["perf"], others["perf"]),
        )
    )
    for mode in ("produce", "consume"):
        keys = [key for key in ours if key.startswith(mode)]
        mine_cpu, others_cpu = _cpu(ours, keys), _cpu(theirs, keys)
        what = f"broker CPU, {mode}: a million messages of each cell"
        rows.append(_less(what, mine_cpu, others_cpu, "s", 2.0))
    for what, key, unit, ratio in (
        ("memory of its own after the load", "memory", "MiB", 10.0),
        (f"p99 end to end at {RATE:,} msg/s", "p99_us", "us", 1.0),
        (f"p50 end to end at {RATE:,} msg/s", "p50_us", "us", None),
        ("start to first acknowledged message", "start", "s", 5.0),
    ):
        rows.append(_less(what, mine[key], others[key], unit, ratio))
    return rows


def _cpu(found: Measured, keys: list[str]) -> list[float]:
    """Of each round, over the cells."""
    rounds = zip(*(found[key] for key in keys), strict=True)
    return [sum(run.broker_cpu_s for run in each) for each in rounds]


def _of(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _rate(what: str, ours: list[Figures], theirs: list[Figures]) -> Row:
    mine, others = [run.rate for run in ours], [run.rate for run in theirs]
    cores = "; ".join(
        f"{name} {median(run.broker_cores for run in runs):.2f} cores + client "
        f"{median(run.client_cores for run in runs):.2f}"
        for name, runs in (("OneLog", ours), ("Kafka", theirs))
    )
    return Row(
        what,
        median(mine),
        "msg/s",
        median(others),
        "Kafka",
        1.0,
        cpu_us=median(run.broker_cpu_s for run in ours),
        note=f"{told(mine, others)}; {cores}",
    )


def _less(
    what: str, ours: list[float], theirs: list[float], unit: str, ratio_min: float | None
) -> Row:
    return Row(
        what,
        median(ours),
        unit,
        median(theirs),
        "Kafka",
        ratio_min,
        True,
        note=told(ours, theirs, less_is_better=True),
    )

"""Side by side with a real RabbitMQ 3.10.8 of Debian: one C client on rabbitmq-c drives both.

The servers take turns, each turn with a server and a store of its own: RabbitMQ as it comes, OneLog
as `onelog up` starts it, and once more with every confirm behind an fsync, which is what
RabbitMQ's confirms of persistent messages in durable queues are. A turn warms the server up, then
goes through the cells; the backlog is filled and drained last. Rows show the medians of the rounds,
and their notes all of them.

`python -m benchmarks amqp` runs it like every suite; `--quick` takes a tenth of the messages, once,
and AMQP_BACKLOG in the environment is another size of the backlog. `python -m benchmarks
amqp-backlog` is the backlog only, of five million messages, once. The client is
compiled when it is needed, which takes gcc and the librabbitmq-dev of Debian or Ubuntu.
"""

import compileall
import json
import os
import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import onelog as onelog_package
from benchmarks.process_usage import anonymous_bytes, cpu_seconds
from benchmarks.rounds import told, turns
from benchmarks.table import Options, Row, not_run
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError
from tests.e2e.rabbitmq_peer import MISSING, RabbitmqPeer

SOURCE = Path(__file__).with_name("amqp_client.c")
ROUNDS = 2
BACKLOG = int(os.environ.get("AMQP_BACKLOG", "300000"))
BACKLOG_ALONE = int(os.environ.get("AMQP_BACKLOG", "5000000"))
RATE, LATENCY_S, WARM_UP_S = 10_000, 5, 2
SMALL = 16
CLIENT_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: how the client is to run, and what is wanted of it."""

    name: str
    messages: int
    words: str
    ratio_min: float | None


CONFIRMED = "bytes=1024 persistent=1 confirm=1000 prefetch=500 ack=100"
CELLS = {
    "confirms": Cell("persistent, confirms (1,000 at most), acks, 1 KiB", 150_000, CONFIRMED, 3.0),
    "transient": Cell("transient, autoack, 16 bytes", 500_000, f"bytes={SMALL} durable=0", 1.5),
    "durable": Cell(
        "transient in a durable queue, autoack, 16 bytes", 300_000, f"bytes={SMALL}", None
    ),
    "fan-out": Cell(
        "fan-out to 10 queues, 16 bytes, deliveries",
        600_000,
        f"bytes={SMALL} durable=0 fanout=1 queues=10",
        1.5,
    ),
    "many": Cell(
        "1,000 durable queues in turn, autoack, 16 bytes",
        150_000,
        f"bytes={SMALL} queues=1000",
        1.5,
    ),
}
FILL = f"bytes={SMALL} persistent=1 confirm=1000"
DRAIN = f"bytes={SMALL} prefetch=500 ack=100"


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker that runs."""

    port: int
    pids: list[int]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run of the client saw."""

    rate: float
    broker_cpu_us: float
    """For a message."""
    client_cores: float
    broker_cores: float
    told: dict[str, float]


@contextmanager
def rabbitmq(folder: Path) -> Iterator[Peer]:
    """RabbitMQ, alone."""
    if MISSING:
        raise ChildError(f"{MISSING}: apt-get install rabbitmq-server")
    with RabbitmqPeer(folder) as peer:
        yield Peer(peer.port, [peer.process_id])


@contextmanager
def onelog(folder: Path, *, flush: bool = False) -> Iterator[Peer]:
    """`onelog up`."""
    with OnelogPeer(folder, sync_flush=flush, may_stall=True, amqp=True) as peer:
        yield Peer(peer.amqp_port, peer.broker_pids)


SERVERS = {"rabbitmq": rabbitmq, "onelog": onelog}
Measured = dict[str, list[Figures]]
Single = dict[str, list[float]]


def run(options: Options) -> list[Row]:
    """The suite."""
    try:
        return _rows(*_measure(options, compiled(options.folder)))
    except ChildError as error:
        return [not_run("RabbitMQ", str(error))]


def run_backlog(options: Options) -> list[Row]:
    """Only the backlog, once; the servers take it in turns."""
    backlog = min(BACKLOG_ALONE, 200_000) if options.quick else BACKLOG_ALONE
    found: dict[str, Measured] = {name: defaultdict(list) for name in SERVERS}
    single: dict[str, Single] = {name: defaultdict(list) for name in SERVERS}
    try:
        client = compiled(options.folder)
        for name, server in SERVERS.items():
            options.announce(f"{name}: {backlog:,} messages")
            with server(options.folder / name) as peer:
                _backlog(peer, client, found[name], single[name], backlog)
            shutil.rmtree(options.folder / name, ignore_errors=True)
    except ChildError as error:
        return [not_run("RabbitMQ", str(error))]
    return _backlog_rows(found, single, backlog)


def compiled(folder: Path) -> Path:
    """The client."""
    if shutil.which("gcc") is None or not Path("/usr/include/amqp.h").exists():
        raise ChildError("the client needs gcc and librabbitmq-dev: apt-get install them")
    client = folder / "amqp_client"
    flags = ("-O2", "-o", str(client), str(SOURCE), "-lrabbitmq", "-lpthread")
    subprocess.run(["gcc", *flags], check=True, timeout=120)
    return client


def _measure(options: Options, client: Path) -> tuple[dict[str, Measured], dict[str, Single], int]:
    # As it is installed: pip compiles what it installs.
    compileall.compile_dir(Path(onelog_package.__file__).parent, quiet=1)
    rounds, share = (1, 10) if options.quick else (ROUNDS, 1)
    backlog = min(BACKLOG, 200_000) if options.quick else BACKLOG
    found: dict[str, Measured] = {name: defaultdict(list) for name in SERVERS}
    single: dict[str, Single] = {name: defaultdict(list) for name in SERVERS}
    for number, name in turns(rounds, list(SERVERS)):
        folder = options.folder / f"{name}-{number}"
        with SERVERS[name](folder) as peer:
            for key, cell in CELLS.items():
                options.announce(f"round {number} of {rounds}, {name}: {cell.name}")
                found[name][key].append(_cell(peer, client, key, cell.messages // share))
            single[name]["memory"].append(anonymous_bytes(peer.pids) / 2**20)
            options.announce(f"round {number} of {rounds}, {name}: latency")
            _latency(peer, client, single[name], LATENCY_S // share or 1)
            options.announce(f"round {number} of {rounds}, {name}: {backlog:,} messages")
            _backlog(peer, client, found[name], single[name], backlog)
        shutil.rmtree(folder, ignore_errors=True)
        if name == "onelog":
            with onelog(folder, flush=True) as peer:
                messages = CELLS["confirms"].messages // share
                found[name]["flushed"].append(_cell(peer, client, "confirms", messages))
    return found, single, backlog


def _cell(peer: Peer, client: Path, key: str, messages: int) -> Figures:
    words = f"name={key} {CELLS[key].words}"
    drive(client, peer, "flow", f"{words} messages={messages // 5}")
    return drive(client, peer, "flow", f"{words} messages={messages}")


def _latency(peer: Peer, client: Path, single: Single, seconds: int) -> None:
    words = f"name=latency bytes=100 persistent=1 rate={RATE} seconds={seconds}"
    seen = drive(client, peer, "latency", f"{words} warm_up={WARM_UP_S}").told
    for name in ("p50_us", "p99_us"):
        single[name].append(seen[name])


def _backlog(peer: Peer, client: Path, found: Measured, single: Single, backlog: int) -> None:
    filled = drive(client, peer, "fill", f"name=backlog messages={backlog} {FILL}")
    found["fill"].append(filled)
    single["backlog memory"].append(anonymous_bytes(peer.pids) / 2**20)
    skip = backlog // 20
    words = f"name=backlog messages={backlog - skip} skip={skip} {DRAIN}"
    found["drain"].append(drive(client, peer, "drain", words))
    single["drained memory"].append(anonymous_bytes(peer.pids) / 2**20)


def drive(client: Path, peer: Peer, mode: str, words: str) -> Figures:
    """Run the client once, and look at the broker while it counts."""
    command = [str(client), mode, str(peer.port), *words.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        limit = threading.Timer(CLIENT_TIMEOUT_S, child.kill)
        limit.start()
        try:
            if child.stdout.readline() != "begin\n":
                raise ChildError(f"the client saw nothing: {' '.join(command[1:])}")
            before = cpu_seconds(peer.pids)
            line = child.stdout.readline()
            used = cpu_seconds(peer.pids) - before
        finally:
            limit.cancel()
            child.kill()
    if not line.startswith("end "):
        raise ChildError(f"the client did not end well: {' '.join(command[1:])}")
    seen: dict[str, float] = json.loads(line[4:])
    messages, seconds = seen["messages"], seen["seconds"]
    return Figures(
        messages / seconds, used / messages * 1e6, seen["cpu_s"] / seconds, used / seconds, seen
    )


def _rows(found: dict[str, Measured], single: dict[str, Single], backlog: int) -> list[Row]:
    ours, theirs = found["onelog"], found["rabbitmq"]
    rows = [_rate(cell.name, ours[key], theirs[key], cell.ratio_min) for key, cell in CELLS.items()]
    flushed = f"the same, OneLog with fsync before each confirm: {CELLS['confirms'].name}"
    rows.insert(1, _rate(flushed, ours["flushed"], theirs["confirms"], 3.0))
    rows += _backlog_rows(found, single, backlog)
    for what, key, unit, ratio in (
        ("memory of its own after the other cells", "memory", "MiB", 4.0),
        (f"p99, publish to deliver, at {RATE:,} msg/s", "p99_us", "us", 1.0),
        (f"p50, publish to deliver, at {RATE:,} msg/s", "p50_us", "us", None),
    ):
        rows.append(_least(what, key, unit, ratio, single))
    return rows


def _backlog_rows(found: dict[str, Measured], single: dict[str, Single], backlog: int) -> list[Row]:
    ours, theirs = found["onelog"], found["rabbitmq"]
    filled, drained = (f"a backlog of {backlog:,} messages {how}" for how in ("made", "consumed"))
    memory = f"memory of its own with {backlog:,} messages"
    return [
        _rate(filled, ours["fill"], theirs["fill"], None),
        _rate(drained, ours["drain"], theirs["drain"], 1.5),
        _least(memory, "backlog memory", "MiB", 4.0, single),
        _least(f"{memory}, consumed", "drained memory", "MiB", None, single),
    ]


def _least(
    what: str, key: str, unit: str, ratio_min: float | None, single: dict[str, Single]
) -> Row:
    """A row of what had better be little."""
    mine, others = single["onelog"][key], single["rabbitmq"][key]
    return Row(
        what,
        median(mine),
        unit,
        median(others),
        "RabbitMQ",
        ratio_min,
        True,
        note=told(mine, others, less_is_better=True),
    )


def _rate(what: str, ours: list[Figures], theirs: list[Figures], ratio_min: float | None) -> Row:
    mine, others = [run.rate for run in ours], [run.rate for run in theirs]
    cores = "; ".join(
        f"{name} {median(run.broker_cores for run in runs):.2f} cores + client "
        f"{median(run.client_cores for run in runs):.2f}, "
        f"{median(run.broker_cpu_us for run in runs):.1f} us each"
        for name, runs in (("OneLog", ours), ("RabbitMQ", theirs))
    )
    return Row(
        what,
        median(mine),
        "msg/s",
        median(others),
        "RabbitMQ",
        ratio_min,
        cpu_us=median(run.broker_cpu_us for run in ours),
        note=f"{told(mine, others)}; {cores}",
    )

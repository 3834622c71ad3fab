"""OneLog beside itself at another commit: is it slower than it was?

`python -m benchmarks compare REV` checks REV out into a folder that is gone afterwards and measures
both in turns: what sends, batches, pulls and POPs cost a broker in one process (`in_process`), and
what RocketMQ's Java benchmark client reaches over sockets (`rocketmq_peer`). Both run on the
packages of today's environment.

On a machine that is shared the rates differ from run to run by more than what is asked for here;
CPU times do much less. So look at those first, and take more rounds before believing 2 %.
"""

import argparse
import compileall
import contextlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks import in_process
from benchmarks.rocketmq_peer import BATCHING, CONSUMING, SENDING, Part, less_row, rate_row
from benchmarks.rocketmq_peer import measure as measure_over_sockets
from benchmarks.rounds import told, turns
from benchmarks.table import Row, keep, machine_facts, show
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError, log_tail, spawn, stop

ROOT = Path(__file__).resolve().parent.parent
NOW = "now"
RATIO_MIN = 0.98
ROUNDS = 5
IN_PROCESS_ROUNDS = 6
SLICES = 20
# Long enough for the batches to leave more than the consumer takes in its warm window.
SECONDS = 40
PARTS = (
    Part("sends", (SENDING,)),
    Part("batches, then their consumption", (BATCHING, CONSUMING)),
)

Trees = Mapping[str, Path]
"""The folders of sources by name; the first is the older one."""


class RevisionPeer(OnelogPeer):
    """`onelog up` of certain sources."""

    def __init__(self, source: Path, folder: Path, sync_flush: bool) -> None:
        super().__init__(folder, sync_flush=sync_flush, may_stall=True)
        self._environment["PYTHONPATH"] = str(source)
        # A server that does not know a protocol refuses the setting of its port.
        for protocol in ("amqp", "grpc", "kafka"):
            if not (source / "onelog" / "gateways" / protocol).is_dir():
                del self._environment[f"ONELOG_{protocol.upper()}_PORT"]

    def _spawn(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "onelog", *arguments]
        self._children.append(spawn(command, self._log, self._environment))


def extracted(revision: str, folder: Path) -> tuple[str, Path]:
    """The short name of a commit, and its sources in the folder, compiled."""
    name = git("rev-parse", "--short", f"{revision}^{{commit}}").decode().strip()
    with tarfile.open(fileobj=io.BytesIO(git("archive", name, "src"))) as archive:
        archive.extractall(folder / name, filter="data")
    compileall.compile_dir(folder / name / "src", quiet=1)
    return name, folder / name / "src"


def git(*arguments: str) -> bytes:
    """What git says; where it fails, it says why by itself."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def in_one_process(
    trees: Trees, folder: Path, rounds: int, announce: Callable[[str], None]
) -> list[Row]:
    """Brokers with their only clients, which live side by side and work in turns.

    A round is a life of both; the value of a round is the median of its slices.
    """
    found: dict[str, dict[str, list[in_process.Cost]]] = {name: defaultdict(list) for name in trees}
    for number in range(rounds):
        announce(f"in one process: round {number + 1} of {rounds}")
        with contextlib.ExitStack() as stack:
            ask = {
                name: stack.enter_context(asked(trees[name], folder / f"{name}-alone", number))
                for name in sorted(trees, reverse=number % 2 == 1)
            }
            for kind in in_process.SLICE:
                slices: dict[str, list[in_process.Cost]] = {name: [] for name in trees}
                # The first turn of each only warms up.
                for turn, name in turns(SLICES + 1, list(trees)):
                    cost = ask[name](kind)
                    if turn > 1:
                        slices[name].append(cost)
                for name, costs in slices.items():
                    middle = {key: median(cost[key] for cost in costs) for key in costs[0]}
                    found[name][kind].append(middle)
    before, after = (found[name] for name in trees)
    return [
        row
        for kind in in_process.SLICE
        for row in _cost_rows(kind, after[kind], before[kind], next(iter(trees)))
    ]


def _cost_rows(
    kind: str, ours: list[in_process.Cost], theirs: list[in_process.Cost], before: str
) -> list[Row]:
    our_cpu, their_cpu = ([cost["cpu_us"] for cost in side] for side in (ours, theirs))
    our_rates, their_rates = ([cost["rate"] for cost in side] for side in (ours, theirs))
    what = f"in one process: {kind}"
    return [
        less_row(f"{what}, CPU", our_cpu, their_cpu, "us", RATIO_MIN, peer=before),
        Row(
            what,
            median(our_rates),
            "msg/s",
            median(their_rates),
            before,
            note=told(our_rates, their_rates),
        ),
    ]


@contextlib.contextmanager
def asked(source: Path, folder: Path, seed: int) -> Iterator[Callable[[str], in_process.Cost]]:
    """A process of `in_process` with these sources: name a kind of work, get what it cost."""
    # The same seed for both: how names fall into dicts is then no difference between them.
    environment = {"PYTHONPATH": str(source), "PYTHONHASHSEED": str(seed)}
    log = folder.with_suffix(".log")
    child = spawn([sys.executable, in_process.__file__, str(folder)], log, environment, pipes=True)

    def ask(kind: str) -> in_process.Cost:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{kind}\n".encode())
        child.stdin.flush()
        line = child.stdout.readline()
        if not line:
            raise ChildError(f"the broker of {source.parent.name} ended\n{log_tail(log)}")
        cost: in_process.Cost = json.loads(line)
        return cost

    try:
        yield ask
    finally:
        stop(child, timeout_s=5)
        shutil.rmtree(folder, ignore_errors=True)


def over_sockets(
    trees: Trees, folder: Path, seconds: int, rounds: int, announce: Callable[[str], None]
) -> list[Row]:
    """The Java benchmark client against `onelog up`."""
    servers = {name: partial(RevisionPeer, source) for name, source in trees.items()}
    found = measure_over_sockets(servers, PARTS, folder, seconds, rounds, announce)
    before, after = trees
    rows = []
    for name, ours in found[after].loads.items():
        theirs = found[before].loads[name]
        rows.append(rate_row(f"over sockets: {name}", "msg/s", RATIO_MIN, ours, theirs, before))
        rows.append(
            less_row(
                f"over sockets: {name}, broker CPU",
                [load.broker_cpu_us for load in ours],
                [load.broker_cpu_us for load in theirs],
                "us",
                RATIO_MIN,
                peer=before,
            )
        )
    return rows


def main(arguments: list[str], folder: Path) -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__)
    parser.add_argument("revision", help="what to compare with: a commit, a tag, a branch")
    parser.add_argument("--only", choices=("in-process", "sockets"), help="a half of it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="over sockets")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of a run over sockets")
    parser.add_argument("--in-process-rounds", type=int, default=IN_PROCESS_ROUNDS)
    parser.add_argument("--keep", action="store_true", help="in benchmarks/results")
    given = parser.parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    facts = machine_facts()
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(
        prefix="bench-", dir=folder, ignore_cleanup_errors=True
    ) as made:
        own = Path(made)
        name, source = extracted(given.revision, own)
        trees = {name: source, NOW: ROOT / "src"}
        if given.only != "sockets":
            rows += in_one_process(trees, own, given.in_process_rounds, console.print)
        if given.only != "in-process":
            rows += over_sockets(trees, own, given.seconds, given.rounds, console.print)
    title = f"{git('describe', '--always', '--dirty').decode().strip()} beside {name}"
    show(title, rows, console)
    for row in rows:
        console.print(f"{row.measurement}: {row.ratio or 0:.3f}", highlight=False)
    if given.keep:
        date = datetime.now(UTC).date().isoformat()
        for path in keep("compare", date, {**facts, "compared": title}, rows):
            console.print(f"kept benchmarks/results/{path.name}")
    return 0

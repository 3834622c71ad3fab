"""Rounds of faults against one cluster under load, from a seed; then the checker is asked.

    python -m tests.e2e.faults --seed 7 --rounds 20 [--only "kill -9"] [--without java]

The load goes on through all rounds: RocketMQ's Java client, the Python SDK in order and by POP, and
librdkafka, each with a topic of its own. After each fault the cluster must become whole by itself.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.e2e.faults import checker
from tests.e2e.faults.faults import FULL_DISK, KINDS, Choice, Fault
from tests.e2e.faults.history import History, lines, now_ns
from tests.e2e.faults.servers import CLIENTS, ONE_FILE, Cluster
from tests.e2e.java_clients import PEER_VERSION, SCENARIOS, SHORT_JVM, client_classpath, jvm
from tests.e2e.processes import ChildError, spawn, stop, wait_until

KEYS = 4
ROOT = Path(__file__).resolve().parents[3]
CLIENT_KINDS = ("java", "sdk", "sdk-pop", "kafka")
BETWEEN_S = 2.0
"""Between two rounds, in which everything must go well."""
DELIVERY_S = 90.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a campaign ended."""

    rounds: int
    is_good: bool
    said: str
    folder: Path


@dataclass(slots=True)
class Total:
    """What several campaigns came to."""

    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    outages: list[tuple[str, str, str, str, float]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Campaigns that did not come to their end, and why."""

    def add(self, outcome: Outcome) -> None:
        """One more campaign."""
        self.rounds += outcome.rounds
        for name, value in json.loads((outcome.folder / "verdict.json").read_text()).items():
            if name == "outages":
                self.outages += map(tuple, value)
            else:
                self.counts[name] += value

    @property
    def violations(self) -> dict[str, int]:
        """Of each kind that there was."""
        return {name: self.counts[name] for name in checker.VIOLATIONS if self.counts[name]}

    def fail_over_s(self, percent: float, scope: str = "any") -> float:
        """Over all campaigns."""
        times = [each[4] for each in self.outages if each[3] == scope and each[2] != "follower"]
        return checker.percentile(times, percent)

    def told(self) -> Iterator[str]:
        """For people."""
        yield f"{self.rounds} rounds; " + ", ".join(
            f"{name}: {count}" for name, count in sorted(self.counts.items())
        )
        for scope in sorted({each[3] for each in self.outages}):
            times = ", ".join(f"p{p} {self.fail_over_s(p, scope):.2f} s" for p in (50, 90, 99, 100))
            yield f"fail-over of {scope}: {times}"
        for kind in sorted({each[0] for each in self.outages}):
            own = [each[4] for each in self.outages if each[0] == kind and each[3] == "any"]
            worst = max(own)
            yield f"{kind}: {len(own)} times, longest without an acknowledgement {worst:.2f} s"
        yield from self.broken


class Load:
    """All clients, on a machine of their own."""

    def __init__(self, cluster: Cluster, kinds: Iterable[str]) -> None:
        self.folder = cluster.folder / "histories"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.kinds = tuple(kinds)
        self._cluster = cluster
        self._children: list[subprocess.Popen[bytes]] = []
        self._read_to: Counter[str] = Counter()
        self._served: Counter[str] = Counter()

    def start(self) -> None:
        """Create the topics, start the clients, and return when all of them are served."""
        for kind in self.kinds:
            self._cluster.create_topic(self.topic(kind), KEYS)
        for kind in self.kinds:
            command = self._cluster.net.command(CLIENTS, self._command(kind))
            log = self._cluster.folder / f"{kind}.log"
            # With a pipe for its input: the Java program ends when that does.
            self._children.append(spawn(command, log, {"PYTHONPATH": str(ROOT)}, pipes=True))
        for kind in self.kinds:
            self._cluster.wait_for(f"traffic of {kind}", partial(self._flows, kind), 90)

    def topic(self, kind: str) -> str:
        return f"faults-{kind}"

    def _command(self, kind: str) -> list[str]:
        topic, folder, keys = self.topic(kind), str(self.folder), str(KEYS)
        if kind == "java":
            home = self._cluster.folder / "java"
            return jvm(
                home,
                client_classpath(PEER_VERSION),
                SCENARIOS,
                "witness",
                "--nameservers",
                self._cluster.nameservers,
                "--topic",
                topic,
                "--keys",
                keys,
                "--folder",
                folder,
                options=SHORT_JVM,
            )
        module, where = "sdk_client", self._cluster.nameservers
        if kind == "kafka":
            module, where = "kafka_client", self._cluster.bootstrap
        more = ["--pop"] if kind == "sdk-pop" else []
        program = [sys.executable, "-m", f"tests.e2e.faults.{module}"]
        return [*program, where, topic, keys, folder, *more]

    def _flows(self, kind: str) -> bool:
        """Whether the client has been acknowledged something, and has received something."""
        for role, op in (("producer", "ok"), ("consumer", "receive")):
            path = self.folder / f"{kind}-{role}.jsonl"
            if not path.exists():
                return False
            if not any(op in (line["op"], line.get("result")) for line in lines(path)):
                return False
        return True

    def wait_until_served(self, since: int) -> None:
        """Return when the cluster is whole and every kind of client was acknowledged something."""
        for kind in self.kinds:
            served = partial(self._is_acknowledged, kind, since)
            self._cluster.wait_for(f"an acknowledgement for {kind}", served, 60)
        self._cluster.wait_until_whole()

    def _is_acknowledged(self, kind: str, since: int) -> bool:
        """Of a send that began after this time; a history is read on from where it was left."""
        path = self.folder / f"{kind}-producer.jsonl"
        with path.open("rb") as file:
            file.seek(self._read_to[kind])
            for line in file:
                if line.endswith(b"\n"):
                    self._read_to[kind] += len(line)
                    facts = json.loads(line)
                    if facts.get("result") == "ok":
                        self._served[kind] = max(self._served[kind], facts["begin"])
        return self._served[kind] > since

    def finish(self) -> None:
        """Let the producers end, and read everything when they have."""
        (self.folder / "enough").touch()
        for kind in self.kinds:
            sent = self.folder / f"{kind}.sent"
            self._cluster.wait_for(f"the end of {kind}'s producer", sent.exists, 90)
        topics = [
            f"{'kafka' if kind == 'kafka' else 'sdk'}:{self.topic(kind)}" for kind in self.kinds
        ]
        command = [sys.executable, "-m", "tests.e2e.faults.reader"]
        where = [self._cluster.nameservers, self._cluster.bootstrap, str(self.folder)]
        subprocess.run(
            self._cluster.net.command(CLIENTS, [*command, *where, *topics]),
            cwd=ROOT,
            check=True,
            timeout=300,
        )
        try:
            wait_until(self._is_delivered, "the rest of the messages", DELIVERY_S)
        except ChildError:
            return  # The checker says what is missing.

    def _is_delivered(self) -> bool:
        time.sleep(1)
        return not checker.judge(map(lines, self.histories())).violations["undelivered"]

    def histories(self) -> list[Path]:
        """All that were written so far."""
        return sorted(self.folder.glob("*.jsonl"))

    def stop(self) -> None:
        """End the clients."""
        for child in self._children:
            stop(child, signal.SIGKILL)


def run_all(
    folder: Path,
    seeds: Iterable[int],
    rounds: int,
    *,
    only: list[str] | None = None,
    clients: Iterable[str] = CLIENT_KINDS,
    say: Callable[[str], None] = print,
) -> Total:
    """A campaign of each seed, also after one that went wrong."""
    total = Total()
    for seed in seeds:
        say(f"-- seed {seed}")
        try:
            own = folder / f"seed-{seed}"
            outcome = run(own, seed, rounds, only=only, clients=tuple(clients), say=say)
        except (ChildError, subprocess.SubprocessError) as error:
            say(f"seed {seed}: {error}")
            total.broken.append(f"seed {seed}: {str(error).splitlines()[0]}")
        else:
            total.add(outcome)
    return total


def run(
    folder: Path,
    seed: int,
    rounds: int,
    *,
    only: list[str] | None = None,
    clients: Iterable[str] = CLIENT_KINDS,
    say: Callable[[str], None] = print,
    fail_over_s: float = checker.FAIL_OVER_S_MAX,
) -> Outcome:
    """One campaign; `ChildError` if the cluster does not become whole again."""
    shutil.rmtree(folder, ignore_errors=True)
    done = 0
    kinds = only or [kind for kind in KINDS if kind != FULL_DISK or seed % 2]
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder, ONE_FILE if FULL_DISK in kinds else None))
        load = Load(cluster, clients)
        stack.callback(load.stop)
        cluster.wait_until_whole()
        load.start()
        nemesis = stack.enter_context(
            History(
                load.folder / "nemesis.jsonl",
                name="nemesis",
                kind="nemesis",
                topic="",
                role="nemesis",
                seed=seed,
            )
        )
        choice = Choice(seed, kinds)
        for _ in range(rounds):
            _round(cluster, load, choice.next(cluster.master()), nemesis, say)
            done += 1
        load.finish()
        load.stop()
    return _verdict(load.histories(), done, fail_over_s, folder, say)


def _round(
    cluster: Cluster, load: Load, fault: Fault, nemesis: History, say: Callable[[str], None]
) -> None:
    begin = now_ns()
    with KINDS[fault.kind].hold(cluster, fault.target):
        time.sleep(fault.seconds)
        end = now_ns()
    nemesis.add(
        "fault",
        kind=fault.kind,
        target=fault.target,
        hit=fault.hit,
        alive=fault.alive,
        begin=begin,
        end=end,
        seconds=fault.seconds,
    )
    load.wait_until_served(end)
    whole_s = (now_ns() - end) / 1e9
    what = f"{fault.kind} of {fault.target} ({fault.hit}) for {fault.seconds} s"
    say(f"{what}: whole {whole_s:.1f} s later")
    time.sleep(BETWEEN_S)


def _verdict(
    histories: list[Path], rounds: int, fail_over_s: float, folder: Path, say: Callable[[str], None]
) -> Outcome:
    """What the checker says, which is a program of its own."""
    command = [sys.executable, "-m", "tests.e2e.faults.checker", "--fail-over-s", str(fail_over_s)]
    ended = subprocess.run(
        [*command, "--json", str(folder / "verdict.json"), *map(str, histories)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    say(ended.stdout + ended.stderr)
    return Outcome(rounds, ended.returncode == 0, ended.stdout + ended.stderr, folder)

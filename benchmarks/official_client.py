"""The official-client suite: our SDK beside RocketMQ's own 5.x client for Python, as a ratio.

The official client speaks gRPC to the proxy of a real RocketMQ 5.5.0; ours speaks remoting to the
very same broker (proxy and broker are one JVM), and to OneLog. The three take turns; a row shows
the medians of their rounds. Bodies have 128 bytes, each contestant is a process of its own, and
listeners do nothing but count. All have the same shapes: 16 threads that send, one thread with 256
futures on the way, 20 listener threads.

The official consumers lease messages and acknowledge each by a request of its own, so POP is what
resembles them most; our classic consumer, the default, reports positions instead.

The reference of every row is what the official client reached against RocketMQ. The CPU time is our
client's; theirs and the servers' are in the note.
"""

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.contest import BODY, Part, arguments
from benchmarks.official_environment import VERSION, OfficialClientMissingError, official_python
from benchmarks.process_usage import cpu_seconds
from benchmarks.proxy_peer import ProxyPeer
from benchmarks.rounds import told, turns
from benchmarks.table import Options, Row, not_run
from benchmarks.timing import Rate
from onelog.client import AsyncProducer, Message, Queue
from tests.e2e.java_toolchain import JavaFailedError, JavaMissingError
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError, log_tail, spawn, stop, wait_until
from tests.e2e.remoting_probe import call, create_topic, has_route

Peer = OnelogPeer | ProxyPeer

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60.0
NOTE_LENGTH_MAX = 300
SENDS, BACKLOG = "sends", "backlog"
QUEUES = 8
BATCH = 250
UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 200
UPDATE_CONSUMER_OFFSET = 15

CONTESTS = (
    ("sends, 16 threads", "threads", "threads"),
    ("sends, 256 futures", "futures", "futures"),
    ("sends, 256 on the way, asyncio", "asyncio", "futures"),
    ("push consumer, 20 threads", "push", "push"),
    ("push consumer, 20 threads, POP", "pop", "push"),
    ("push consumer, 20 threads, POP", "pop", "simple"),
)
"""What is measured, our mode, and the mode of the official client that it is held against."""
OFFICIAL = {
    "threads": "official send",
    "futures": "official send_async",
    "push": "official PushConsumer",
    "simple": "official SimpleConsumer, 16 threads",
}
OURS = tuple(dict.fromkeys(mode for _, mode, _ in CONTESTS))
CONSUMING = frozenset({"push", "pop", "simple", "java-push", "java-simple"})


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each part takes, and how much there is to consume."""

    warm_up_s: float
    seconds: float
    messages: int
    rounds: int
    java_warm_up_s: dict[str, float]
    """By mode of the official client: how long it runs before, uncounted."""


# Java becomes fast by being used, and at the pace of this client that takes long: the first way
# is that of sends, the second that of leases. What follows on the same way finds it warm.
PLAN = Plan(3, 7, 600_000, 3, {"threads": 20, "push": 15})
PLAN_QUICK = Plan(1, 2, 100_000, 1, {"threads": 4, "push": 2})
COLD = "; a quick run: Java is not warm yet, which is in our favour"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a contestant reached within its window."""

    rate: Rate
    server_cpu_us: float
    failed: int
    redelivered: int


@dataclass(slots=True)
class Results:
    """Outcomes by mode, one a round, and why there are none of the others."""

    outcomes: dict[str, list[Outcome]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A client and the server that it speaks to."""

    command: list[str]
    peer: Peer
    address: str
    modes: Sequence[str]
    results: Results


def run(options: Options) -> list[Row]:
    """Measure RocketMQ with both clients and OneLog with ours, in turns."""
    suite = ContestSuite(options)
    official, ours, ours_on_onelog = Results(), Results(), Results()
    contestants = {}
    with ExitStack() as stack:
        try:
            options.announce("starting RocketMQ")
            rocketmq = ProxyPeer(options.folder / "rocketmq")
            # Before it starts: if only a part of it does, that ends too.
            stack.callback(rocketmq.close)
            rocketmq.start()
        except (JavaMissingError, JavaFailedError, ChildError) as error:
            reason = f"no RocketMQ with a proxy: {brief(error)}"
            official.missing = dict.fromkeys(OFFICIAL, reason)
            ours.missing = dict.fromkeys(OURS, reason)
        else:
            suite.prepare(rocketmq)
            contestants["ours"] = suite.ours(rocketmq, ours)
            found = suite.official(rocketmq, official)
            if found is not None:
                contestants = {"official": found, **contestants}
        onelog = stack.enter_context(OnelogPeer(options.folder / "onelog", may_stall=True))
        suite.prepare(onelog)
        contestants["ours-on-onelog"] = suite.ours(onelog, ours_on_onelog)
        suite.contest(contestants)
    made = [*rows("RocketMQ", ours, official), *rows("OneLog", ours_on_onelog, official)]
    if options.quick:
        made = [replace(row, note=row.note + COLD) if row.reference else row for row in made]
    return made + [not_run(OFFICIAL[mode], reason) for mode, reason in official.missing.items()]


class ContestSuite:
    """The measurements of one run."""

    def __init__(self, options: Options, plan: Plan | None = None) -> None:
        self._folder = options.folder
        self._announce = options.announce
        plan = plan or (PLAN_QUICK if options.quick else PLAN)
        seconds, rounds = options.seconds or plan.seconds, options.rounds or plan.rounds
        self._plan = replace(plan, seconds=seconds, rounds=rounds)

    def prepare(self, peer: Peer) -> None:
        """Make the topics, and fill the one that is consumed."""
        self._announce(f"{peer.name}: filling the queues")
        for topic in (SENDS, BACKLOG):
            create_topic(peer.broker_address, topic, QUEUES)
        wait_until(lambda: has_route(peer.nameservers, BACKLOG), f"the route of {BACKLOG}")
        uvloop.run(_fill(peer, self._plan.messages))

    def official(self, peer: Peer, results: Results) -> Contestant | None:
        """The official client; if it cannot take part, the results say why."""
        self._announce(f"the official client {VERSION}: installing it, if it is not there")
        try:
            command = [str(official_python()), "-m", "benchmarks.contest_official"]
        except OfficialClientMissingError as error:
            reason = f"no rocketmq-python-client {VERSION}: {error}"
            results.missing = dict.fromkeys(OFFICIAL, reason)
            return None
        return Contestant(command, peer, peer.endpoints, list(OFFICIAL), results)

    def ours(self, peer: Peer, results: Results) -> Contestant:
        """Our SDK."""
        command = [sys.executable, "-m", "benchmarks.contest_onelog"]
        return Contestant(command, peer, peer.nameservers, OURS, results)

    def contest(self, contestants: dict[str, Contestant]) -> None:
        """All rounds; before the first, Java gets the time to become fast."""
        for client, seconds in self._plan.java_warm_up_s.items():
            if "official" in contestants:
                official = replace(contestants["official"], results=Results())
                self._take_part(official, client, f"warm-up-{client}", seconds)
        for number, name in turns(self._plan.rounds, list(contestants)):
            contestant = contestants[name]
            for mode in contestant.modes:
                if mode not in contestant.results.missing:
                    group = f"{name}-{mode}-{number}"
                    self._take_part(contestant, mode, group, self._plan.seconds)

    def _part(self, mode: str, address: str, group: str, seconds: float) -> Part:
        topic, messages = (BACKLOG, self._plan.messages) if mode in CONSUMING else (SENDS, 0)
        return Part(mode, address, topic, group, messages, self._plan.warm_up_s, seconds)

    def _take_part(self, contestant: Contestant, mode: str, group: str, seconds: float) -> None:
        part = self._part(mode, contestant.address, group, seconds)
        peer, results = contestant.peer, contestant.results
        self._announce(f"{peer.name}: {group}")
        log = self._folder / f"{peer.name}-{group}.log"
        try:
            if part.messages and isinstance(peer, ProxyPeer):
                _begin_at_zero(peer, group)
            outcome = contend(contestant.command, part, peer.broker_pids, log)
            results.outcomes[mode].append(outcome)
        except ChildError as error:
            results.outcomes.pop(mode, None)
            results.missing[mode] = brief(error)


def contend(command: list[str], part: Part, server_pids: list[int], log: Path) -> Outcome:
    """Run one contestant, and look at the server's CPU time when its window begins and ends."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "HOME": str(log.parent)}
    child = spawn([*command, *arguments(part)], log, environment, pipes=True)
    limit = threading.Timer(part.warm_up_s + part.seconds + PATIENCE_S, child.kill)
    limit.start()
    server_cpu_s = 0.0
    try:
        assert child.stdout is not None
        for line in child.stdout:
            facts = json.loads(line)
            used_s = cpu_seconds(server_pids)
            if facts["event"] == "begin":
                server_cpu_s = used_s
                continue
            if not facts["count"]:
                raise ChildError(
                    f"nothing in {part.seconds:.0f} s after the first\n{log_tail(log)}"
                )
            return Outcome(
                Rate(facts["count"], facts["wall_s"], facts["cpu_s"]),
                (used_s - server_cpu_s) / facts["count"] * 1e6,
                facts["failed"],
                facts["redelivered"],
            )
    finally:
        limit.cancel()
        stop(child)
    last = log_tail(log, 1) or f"ended with {child.returncode}"
    raise ChildError(f"{part.group} said nothing final: {last}")


def rows(server: str, ours: Results, official: Results) -> list[Row]:
    """Our outcomes against one server, beside the official client's against RocketMQ."""
    made = []
    for what, our_mode, their_mode in CONTESTS:
        title = f"{what}, to {server}" if our_mode not in CONSUMING else f"{what}, from {server}"
        mine, theirs = ours.outcomes.get(our_mode), official.outcomes.get(their_mode)
        if not mine:
            made.append(not_run(title, ours.missing[our_mode]))
            continue
        our_rates, their_rates = (
            [each.rate.per_second for each in side] for side in (mine, theirs or [])
        )
        note = f"ours: {costs(mine)}"
        if theirs:
            note += f"; official: {costs(theirs)}; {told(our_rates, their_rates)}"
        made.append(
            Row(
                title,
                median(our_rates),
                "msg/s",
                median(their_rates) if theirs else None,
                OFFICIAL[their_mode] if theirs else f"{OFFICIAL[their_mode]}: NOT RUN",
                cpu_us=median(each.rate.cpu_us for each in mine),
                note=note,
            )
        )
    return made


def costs(outcomes: Sequence[Outcome]) -> str:
    """What one message cost, and what went wrong, if anything did."""
    client_us = median(each.rate.cpu_us for each in outcomes)
    server_us = median(each.server_cpu_us for each in outcomes)
    text = f"{client_us:,.0f} CPU us + server {server_us:,.0f}"
    if failed := sum(each.failed for each in outcomes):
        text += f", {failed} failed"
    if redelivered := sum(each.redelivered for each in outcomes):
        text += f", {redelivered} came again"
    return text


def brief(error: Exception) -> str:
    """An error's first line, and the first one of a log in it that names a cause, for a note."""
    first, *log = str(error).splitlines() or [type(error).__name__]
    cause = next((line for line in log if "ERROR" in line or "Exception" in line), "")
    return f"{first} {cause}".strip()[:NOTE_LENGTH_MAX]


async def _fill(peer: Peer, count: int) -> None:
    async with AsyncProducer("bench", nameserver=peer.nameservers) as producer:
        for number in range(count // BATCH):
            queue = Queue(BACKLOG, peer.broker_name, number % QUEUES)
            await producer.send_batch([Message(BACKLOG, BODY) for _ in range(BATCH)], queue=queue)


def _begin_at_zero(peer: ProxyPeer, group: str) -> None:
    """Give a group its position: the proxy offers no way to say where a new one begins."""
    body = json.dumps({"groupName": group}).encode()
    made = call(peer.broker_address, UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, body)
    if made.code != 0:
        raise ChildError(f"group {group}: code {made.code}, {made.remark}")
    for queue in range(QUEUES):
        fields = {
            "consumerGroup": group,
            "topic": BACKLOG,
            "queueId": str(queue),
            "commitOffset": "0",
        }
        moved = call(peer.broker_address, UPDATE_CONSUMER_OFFSET, fields)
        if moved.code != 0:
            raise ChildError(f"offset of {group}: code {moved.code}, {moved.remark}")

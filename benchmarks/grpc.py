"""RocketMQ's own clients over gRPC: OneLog, which speaks it itself, beside RocketMQ's proxy.

The Python client and its shapes are those of the official-client suite: 16 threads that send, one
thread with 256 futures on the way, 20 listener threads, a simple consumer in 16 threads; bodies of
128 bytes. The Java client has the last three of them, and is warm before it counts. The servers
take turns; a row shows the medians of their rounds. On a machine of few cores the client has most
of them, so a second row shows the server's CPU time of one message.

`--only python` and `--only java` measure one of the two.
"""

from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.official_client import (
    OFFICIAL,
    PLAN,
    PLAN_QUICK,
    Contestant,
    ContestSuite,
    Peer,
    Plan,
    Results,
    brief,
    costs,
)
from benchmarks.proxy_peer import ProxyPeer
from benchmarks.rounds import told
from benchmarks.table import Options, Row, not_run
from tests.e2e.java_toolchain import JavaFailedError, JavaMissingError, build
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError

RATE_RATIO_MIN = 1.5
CPU_RATIO_MIN = 2.0
JAVA_CLIENT = "5.1.0"
JAVA = {
    "java-send": "Java client, sendAsync",
    "java-push": "Java client, PushConsumer",
    "java-simple": "Java client, SimpleConsumer, 16 threads",
}
TITLES = {**OFFICIAL, **JAVA}
JAVA_PLAN = Plan(8, 6, PLAN.messages, 3, {"java-send": 15, "java-push": 10})
JAVA_PLAN_QUICK = Plan(2, 2, PLAN_QUICK.messages, 1, {"java-send": 3})


def run(options: Options) -> list[Row]:
    """Measure both servers, in turns."""
    chosen = options.chosen("python", "java")
    modes = [*(OFFICIAL if "python" in chosen else ()), *(JAVA if "java" in chosen else ())]
    python = ContestSuite(options)
    java = ContestSuite(options, JAVA_PLAN_QUICK if options.quick else JAVA_PLAN)
    ours, theirs = Results(), Results()
    with ExitStack() as stack:
        try:
            options.announce("starting RocketMQ")
            rocketmq = ProxyPeer(options.folder / "rocketmq")
            stack.callback(rocketmq.close)
            rocketmq.start()
            onelog = stack.enter_context(
                OnelogPeer(options.folder / "onelog", may_stall=True, grpc=True)
            )
            peers = (("official", rocketmq, theirs), ("onelog", onelog, ours))
            for _, peer, _ in peers:
                python.prepare(peer)
            if "python" in chosen:
                found = {name: python.official(peer, results) for name, peer, results in peers}
                python.contest({name: each for name, each in found.items() if each is not None})
            if "java" in chosen:
                java.contest(
                    {name: _java(options.folder, peer, results) for name, peer, results in peers}
                )
        except (JavaMissingError, JavaFailedError, ChildError) as error:
            return [not_run(TITLES[mode], f"no RocketMQ: {brief(error)}") for mode in modes]
    return [row for mode in modes for row in _rows(mode, ours, theirs)]


def _java(folder: Path, peer: Peer, results: Results) -> Contestant:
    program = build("grpc", JAVA_CLIENT, "onelog.grpc.Contest", folder)
    return Contestant(program.command(), peer, peer.endpoints, list(JAVA), results)


def _rows(mode: str, ours: Results, theirs: Results) -> list[Row]:
    mine, others = ours.outcomes.get(mode), theirs.outcomes.get(mode)
    title = f"gRPC, {TITLES[mode]}"
    if not mine or not others:
        missing = ours.missing.get(mode) or theirs.missing.get(mode) or "no outcome"
        return [not_run(title, missing)]
    rates = [[each.rate.per_second for each in side] for side in (mine, others)]
    used = [[each.server_cpu_us for each in side] for side in (mine, others)]
    note = f"OneLog: {costs(mine)}; RocketMQ: {costs(others)}; {told(*rates)}"
    return [
        Row(
            title,
            median(rates[0]),
            "msg/s",
            median(rates[1]),
            "RocketMQ's proxy",
            ratio_min=RATE_RATIO_MIN,
            note=note,
        ),
        Row(
            f"{title}: the server's CPU time",
            median(used[0]),
            "us/msg",
            median(used[1]),
            "RocketMQ's proxy",
            ratio_min=CPU_RATIO_MIN,
            less_is_better=True,
            note=told(*used, less_is_better=True),
        ),
    ]

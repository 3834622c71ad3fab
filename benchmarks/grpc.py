"""RocketMQ's own Python client over gRPC: OneLog, which speaks it itself, beside RocketMQ's proxy.

Client and shapes are those of the official-client suite: 16 threads that send, one thread with 256
futures on the way, 20 listener threads, a simple consumer in 16 threads; bodies of 128 bytes. The
servers take turns; a row shows the medians of their rounds. On a machine of few cores the client
has most of them, so a second row shows the server's CPU time of one message.
"""

from contextlib import ExitStack
from statistics import median

from benchmarks.official_client import (
    OFFICIAL,
    Contestant,
    ContestSuite,
    Results,
    brief,
    costs,
)
from benchmarks.proxy_peer import ProxyPeer
from benchmarks.rounds import told
from benchmarks.table import Options, Row, not_run
from tests.e2e.java_toolchain import JavaFailedError, JavaMissingError
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError

RATE_RATIO_MIN = 1.5
CPU_RATIO_MIN = 2.0


def run(options: Options) -> list[Row]:
    """Measure both servers, in turns."""
    suite = ContestSuite(options)
    ours, theirs = Results(), Results()
    with ExitStack() as stack:
        try:
            options.announce("starting RocketMQ")
            rocketmq = ProxyPeer(options.folder / "rocketmq")
            stack.callback(rocketmq.close)
            rocketmq.start()
        except (JavaMissingError, JavaFailedError, ChildError) as error:
            return [not_run(what, f"no RocketMQ: {brief(error)}") for what in OFFICIAL.values()]
        onelog = stack.enter_context(
            OnelogPeer(options.folder / "onelog", may_stall=True, grpc=True)
        )
        contestants: dict[str, Contestant] = {}
        for name, peer, results in (("official", rocketmq, theirs), ("onelog", onelog, ours)):
            suite.prepare(peer)
            found = suite.official(peer, results)
            if found is None:
                return [not_run(OFFICIAL[mode], why) for mode, why in results.missing.items()]
            contestants[name] = found
        suite.contest(contestants)
    return [row for mode in OFFICIAL for row in _rows(mode, ours, theirs)]


def _rows(mode: str, ours: Results, theirs: Results) -> list[Row]:
    mine, others = ours.outcomes.get(mode), theirs.outcomes.get(mode)
    title = f"gRPC, {OFFICIAL[mode]}"
    if not mine or not others:
        missing = ours.missing.get(mode) or theirs.missing.get(mode) or "no outcome"
        return [not_run(title, missing)]
    rates = [[each.rate.per_second for each in side] for side in (mine, others)]
    used = [[each.server_cpu_us for each in side] for side in (mine, others)]
    note = f"OneLog: {costs(mine)}; RocketMQ: {costs(others)}; {told(*rates)}"
    return [
        Row(
            title, median(rates[0]), "msg/s", median(rates[1]), "RocketMQ's proxy",
            ratio_min=RATE_RATIO_MIN, note=note,
        ),
        Row(
            f"{title}: the server's CPU time", median(used[0]), "us/msg", median(used[1]),
            "RocketMQ's proxy", ratio_min=CPU_RATIO_MIN, less_is_better=True,
            note=told(*used, less_is_better=True),
        ),
    ]  # fmt: skip

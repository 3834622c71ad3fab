"""Transactions, side by side with the real RocketMQ 5.5.0: its own TransactionProducer drives both.

A transaction is a half message, which is waited for, and its end, which is not; so what counts is
half messages acknowledged in a second, and whether the ends keep up is looked at after each run.
The servers take turns, each run with a server and a store of its own: RocketMQ 5.5.0 has a thread
that spins from its first transaction on (its issue 10966), which must cost nobody else a core, and
a machine that is busy for a while should hit both.

`python -m benchmarks transactions` runs it like every suite.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.rocketmq_peer import (
    QUEUES,
    ROUNDS,
    SECONDS,
    SECONDS_QUICK,
    Load,
    Peer,
    drive,
    less_row,
    make,
    rate_row,
)
from benchmarks.rounds import turns
from benchmarks.table import Options, Row
from onelog.wire.remoting.codes import RequestCode
from tests.e2e.remoting_probe import call

TOPIC = "Transactions"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
RATIO_MIN = 1.2
SENDS = re.compile(r"Send TPS:\s*(\d+).*Send Failed: (\d+)")
ENDS_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to run the program."""

    name: str
    arguments: tuple[str, ...]


KINDS = (
    Kind("32 threads, 2 KiB, all committed", ("-w", "32", "-s", "2048")),
    Kind("64 threads, 128 bytes, all committed", ("-w", "64", "-s", "128")),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one server reached in one run, and how many of its transactions were committed."""

    load: Load
    committed: float


def run(options: Options) -> list[Row]:
    """The suite: RocketMQ and OneLog in turns."""
    seconds = SECONDS_QUICK if options.quick else SECONDS
    kinds, rounds = (KINDS[:1], 1) if options.quick else (KINDS, ROUNDS)
    rows = []
    for kind in kinds:
        outcomes: dict[str, list[Outcome]] = {"rocketmq": [], "onelog": []}
        for number, server in turns(rounds, list(outcomes)):
            options.announce(f"{kind.name}: round {number} of {rounds}, {server}")
            outcomes[server].append(measure(server, options.folder, seconds, kind))
        rows += compare(kind, outcomes["onelog"], outcomes["rocketmq"])
    return rows


def measure(server: str, folder: Path, seconds: int, kind: Kind) -> Outcome:
    """One run against a server that knows no transactions yet."""
    with make(server, folder / server) as peer:
        load = drive(peer, "TransactionProducer", TOPIC, SENDS, seconds, kind.arguments)
        return Outcome(load, committed(peer))


def committed(peer: Peer) -> float:
    """How many of the half messages became messages, once the last ends are done."""

    def ends() -> int:
        return sum(_end(peer, TOPIC, queue_id) for queue_id in range(QUEUES))

    count = settled(ends)
    halves = _end(peer, HALF_TOPIC, 0)
    return count / halves if halves else 0.0


def settled(look: Callable[[], int]) -> int:
    """A number that grows, when it has stopped to."""
    deadline = time.monotonic() + ENDS_SECONDS_MAX
    seen = -1
    while (found := look()) != seen and time.monotonic() < deadline:
        seen = found
        time.sleep(1)
    return found


def _end(peer: Peer, topic: str, queue_id: int) -> int:
    fields = {"topic": topic, "queueId": str(queue_id)}
    answer = call(peer.broker_address, RequestCode.GET_MAX_OFFSET, fields, timeout_s=30)
    return int(answer.fields["offset"])


def compare(kind: Kind, ours: list[Outcome], theirs: list[Outcome]) -> list[Row]:
    """The medians of both, and in the note what they were made of."""
    our_loads, their_loads = ([each.load for each in side] for side in (ours, theirs))
    shares = [median(each.committed for each in side) for side in (ours, theirs)]
    return [
        rate_row(
            f"transactions, {kind.name}",
            "sends/s",
            RATIO_MIN,
            our_loads,
            their_loads,
            note=f"committed {shares[0]:.1%} and {shares[1]:.1%}",
        ),
        less_row(
            f"broker CPU for a million of them, {kind.name}",
            [load.broker_cpu_us for load in our_loads],
            [load.broker_cpu_us for load in their_loads],
            "s",
            None,
        ),
    ]

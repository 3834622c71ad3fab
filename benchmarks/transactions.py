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
    SECONDS,
    SECONDS_QUICK,
    Load,
    Peer,
    busy,
    drive,
    less_row,
    limit,
    make,
)
from benchmarks.table import Options, Row
from onelog.wire.remoting.codes import RequestCode
from tests.e2e.remoting_probe import call

ROUNDS = 3
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
        for number in range(rounds):
            for server, found in outcomes.items():
                options.announce(f"{kind.name}: round {number + 1} of {rounds}, {server}")
                found.append(measure(server, options.folder, seconds, kind))
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
    our, their = middle(ours), middle(theirs)
    pairs = zip(ours, theirs, strict=True)
    ratios = [one.load.rate / other.load.rate for one, other in pairs]
    note = (
        f"ratios of the rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)}; "
        f"{busy('OneLog', our.load)}; {busy('RocketMQ', their.load)}; {limit(our.load)}; "
        f"committed {our.committed:.1%} and {their.committed:.1%}"
    )
    return [
        Row(
            f"transactions, {kind.name}",
            our.load.rate,
            "sends/s",
            their.load.rate,
            "RocketMQ",
            RATIO_MIN,
            cpu_us=our.load.broker_cpu_us,
            note=note,
        ),
        less_row(
            f"broker CPU for a million of them, {kind.name}",
            (our.load.broker_cpu_us, their.load.broker_cpu_us),
            "s",
            None,
        ),
    ]


def middle(outcomes: list[Outcome]) -> Outcome:
    """The run with the median rate."""
    rate = median(sorted(outcome.load.rate for outcome in outcomes))
    return min(outcomes, key=lambda outcome: abs(outcome.load.rate - rate))

"""The judge of a run: reads histories, and nothing else.

    python -m tests.e2e.faults.checker HISTORY...

No broker, no store and no log is asked: what counts is what clients were told and what they saw.
It ends with 1, and says which messages and where, if one of these is not so:

- lost: what was acknowledged is in the last reading;
- undelivered: what was acknowledged came to every group that consumes its topic;
- vanished: what a consumer saw is in the last reading (nobody reads what is not confirmed);
- invented: what was read had been sent;
- displaced: a place (topic, queue, offset) holds one message, whoever looks, whenever;
- disordered: the first copies of a key's messages are in the order in which they were sent, in the
  log and for each group that consumes in order;
- fail-over: of the times without an acknowledged send after a fault, 99 in 100 are under the limit.

Duplicates are counted and are no fault: who repeats a send, or dies before it committed, gets them.
"""

import argparse
import json
import math
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.e2e.faults.history import Line, lines

FAIL_OVER_S_MAX = 5.0
SETTLE_NS = 5_000_000_000
"""So long after a fault is over, its end may still be felt."""
SHOWN_MAX = 5
VIOLATIONS = ("lost", "undelivered", "vanished", "invented", "displaced", "disordered")

Place = tuple[str, int, int]


@dataclass(slots=True)
class Client:
    """One history, sorted."""

    about: Line
    sends: list[Line] = field(default_factory=list)
    received: list[Line] = field(default_factory=list)
    read: list[Line] = field(default_factory=list)
    faults: list[Line] = field(default_factory=list)

    @classmethod
    def of(cls, history: Iterable[Line]) -> "Client":
        """Whose history this is, and what it says."""
        found = iter(history)
        about = next(found, None)
        if about is None or about["op"] != "client":
            raise ValueError("a history begins with who writes it")
        client = cls(about)
        kinds = {
            "send": client.sends,
            "receive": client.received,
            "read": client.read,
            "fault": client.faults,
        }
        for line in found:
            kinds[line["op"]].append(line)
        return client


@dataclass(frozen=True, slots=True)
class Outage:
    """How long nobody (or nobody of a kind) was acknowledged anything because of a fault."""

    kind: str
    target: str
    hit: str
    scope: str
    seconds: float


@dataclass(slots=True)
class Verdict:
    """What the histories say."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    outages: list[Outage] = field(default_factory=list)

    def fail_over_s(self, percent: float = 99, scope: str = "any") -> float:
        """Of the faults that hit the master or everybody; 0 if there was none."""
        times = [
            each.seconds for each in self.outages if each.scope == scope and each.hit != "follower"
        ]
        return percentile(times, percent)

    def is_good(self, fail_over_s_max: float) -> bool:
        """Whether nothing is wrong with it."""
        return not any(self.violations.values()) and self.fail_over_s() < fail_over_s_max


def percentile(values: Iterable[float], percent: float) -> float:
    """The nearest rank: a value that was measured."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] if ranked else 0.0


def judge(histories: Iterable[Iterable[Line]]) -> Verdict:
    """Everything that is checked, of the histories of one run."""
    clients = [Client.of(history) for history in histories]
    verdict = Verdict()
    _check_messages(clients, verdict)
    _check_places(clients, verdict)
    _check_order(clients, verdict)
    verdict.outages = _outages(clients)
    return verdict


def _check_messages(clients: Sequence[Client], verdict: Verdict) -> None:
    sent, acknowledged = set[str](), dict[str, str]()
    for client in clients:
        for line in client.sends:
            sent.add(line["id"])
            verdict.counts[f"sends {line['result']}"] += 1
            if line["result"] == "ok":
                acknowledged[line["id"]] = client.about["topic"]
    read = Counter(line["id"] for client in clients for line in client.read)
    received = Counter(line["id"] for client in clients for line in client.received)
    groups: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for client in clients:
        if client.about["role"] == "consumer":
            own = groups[client.about["group"], client.about["topic"]]
            own.update(line["id"] for line in client.received)
    verdict.counts["acknowledged"] = len(acknowledged)
    verdict.counts["read"] = len(read)
    verdict.counts["duplicates in the log"] = read.total() - len(read)
    verdict.counts["duplicates delivered"] = sum(own.total() - len(own) for own in groups.values())
    wrong = verdict.violations
    wrong["lost"] = sorted(acknowledged.keys() - read.keys())
    wrong["vanished"] = sorted(received.keys() - read.keys())
    wrong["invented"] = sorted((read.keys() | received.keys()) - sent)
    for (group, topic), own in groups.items():
        due = {name for name, where in acknowledged.items() if where == topic}
        wrong["undelivered"] += [f"{name} to {group}" for name in sorted(due - own.keys())]


def _placed(client: Client) -> Iterator[tuple[Place, str]]:
    topic = client.about["topic"]
    for line in (*client.sends, *client.received, *client.read):
        if line.get("offset", -1) >= 0 and line.get("result", "ok") == "ok":
            yield (topic, line["queue"], line["offset"]), line["id"]


def _check_places(clients: Sequence[Client], verdict: Verdict) -> None:
    holds: dict[Place, str] = {}
    for client in clients:
        for place, name in _placed(client):
            other = holds.setdefault(place, name)
            if other != name:
                topic, queue, offset = place
                verdict.violations["displaced"].append(
                    f"{topic} queue {queue} offset {offset}: {other}, then {name}"
                )


def _check_order(clients: Sequence[Client], verdict: Verdict) -> None:
    in_log: dict[tuple[str, int], list[Line]] = defaultdict(list)
    groups: dict[str, list[Line]] = defaultdict(list)
    for client in clients:
        for line in client.read:
            in_log[client.about["topic"], line["queue"]].append(line)
        if client.about["role"] == "consumer" and client.about.get("ordered"):
            groups[client.about["group"]] += client.received
    for (topic, queue), seen in in_log.items():
        seen.sort(key=lambda line: int(line["offset"]))
        _check_run(f"{topic} queue {queue}", seen, verdict)
    for group, seen in groups.items():
        seen.sort(key=lambda line: int(line["end"]))
        _check_run(f"group {group}", seen, verdict)


def _check_run(where: str, seen: Iterable[Line], verdict: Verdict) -> None:
    known, last = set[str](), dict[str, int]()
    for line in seen:
        if line["id"] in known:
            continue
        known.add(line["id"])
        sender = line["id"].rpartition("/")[0]
        if line["number"] < last.get(sender, -1):
            verdict.violations["disordered"].append(
                f"{where}: {line['id']} came after number {last[sender]}"
            )
        last[sender] = max(line["number"], last.get(sender, -1))


def _outages(clients: Sequence[Client]) -> list[Outage]:
    acks: dict[str, list[int]] = defaultdict(list)
    for client in clients:
        if client.about["role"] == "producer":
            ends = [int(line["end"]) for line in client.sends if line["result"] == "ok"]
            acks[client.about["kind"]] += ends
            acks["any"] += ends
    for ends in acks.values():
        ends.sort()
    faults = sorted(
        (line for client in clients for line in client.faults), key=lambda line: int(line["begin"])
    )
    found = []
    for number, fault in enumerate(faults):
        until, following = int(fault["end"]) + SETTLE_NS, math.inf
        if number + 1 < len(faults):
            following = int(faults[number + 1]["begin"])
            until = min(until, following)
        begin = int(fault["begin"] if fault["alive"] else fault["end"])
        for scope, ends in acks.items():
            seconds = longest_gap_ns(ends, begin, int(fault["end"]), until, following) / 1e9
            found.append(Outage(fault["kind"], fault["target"], fault["hit"], scope, seconds))
    return found


def longest_gap_ns(
    ends: Sequence[int], begin: int, end: int, until: int, following: float = math.inf
) -> float:
    """The longest stretch from `begin` on without an acknowledgement, if it starts before `until`.

    What is after the beginning of the `following` fault is that one's. Infinite, if nothing was
    acknowledged any more after `end`: whoever sends goes on until then.
    """
    if not ends or ends[-1] <= end:
        return math.inf
    first, last = bisect_right(ends, begin), bisect_left(ends, until)
    marks = [begin, *ends[first : last + 1]]
    return float(max(min(after, following) - before for before, after in pairwise(marks)))


def report(verdict: Verdict, fail_over_s_max: float) -> Iterator[str]:
    """The verdict for people."""
    for name, count in sorted(verdict.counts.items()):
        yield f"{name}: {count}"
    for name in VIOLATIONS:
        found = verdict.violations.get(name, [])
        shown = "; ".join(found[:SHOWN_MAX]) + ("; ..." if len(found) > SHOWN_MAX else "")
        yield f"{name}: {len(found)}" + (f" ({shown})" if found else "")
    for scope in sorted({each.scope for each in verdict.outages}):
        worst = max(
            (each for each in verdict.outages if each.scope == scope and each.hit != "follower"),
            key=lambda each: each.seconds,
            default=None,
        )
        if worst is not None:
            yield (
                f"fail-over of {scope}: p50 {verdict.fail_over_s(50, scope):.2f} s, "
                f"p99 {verdict.fail_over_s(99, scope):.2f} s, "
                f"longest {worst.seconds:.2f} s ({worst.kind} of {worst.target})"
            )
    yield "good" if verdict.is_good(fail_over_s_max) else "BAD"


def summary(verdict: Verdict) -> dict[str, object]:
    """The verdict for programs."""
    return {
        **verdict.counts,
        **{name: len(verdict.violations.get(name, [])) for name in VIOLATIONS},
        "outages": [[e.kind, e.target, e.hit, e.scope, e.seconds] for e in verdict.outages],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the histories that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults.checker")
    parser.add_argument("histories", nargs="+", type=Path, metavar="HISTORY")
    parser.add_argument("--fail-over-s", type=float, default=FAIL_OVER_S_MAX)
    parser.add_argument("--json", type=Path, help="also write a summary there")
    given = parser.parse_args(arguments)
    verdict = judge(lines(path) for path in given.histories)
    if given.json:
        given.json.write_text(json.dumps(summary(verdict)))
    for line in report(verdict, given.fail_over_s):
        print(line)
    return 0 if verdict.is_good(given.fail_over_s) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The checker passes good histories, and finds what is wrong with one of each kind that is not."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.e2e.faults.checker import VIOLATIONS, judge, percentile
from tests.e2e.faults.history import History, Line, lines, message_id

SECOND = 1_000_000_000
Histories = dict[str, list[Line]]


def about(role: str, **more: object) -> Line:
    return {"op": "client", "name": role, "kind": "sdk", "topic": "T", "role": role, **more}


def message(op: str, number: int, end: int, *, offset: int | None = None, **more: object) -> Line:
    place = number if offset is None else offset
    return {
        "op": op,
        "id": message_id("p", "k", number),
        "key": "k",
        "number": number,
        "queue": 0,
        "begin": end - 1,
        "end": end,
        "offset": place,
        **more,
    }


def acknowledged(numbers: Iterable[int]) -> list[Line]:
    return [message("send", n, n * SECOND // 10, result="ok") for n in numbers]


def good(count: int = 100) -> Histories:
    """A producer that sends ten a second, a group in order, a last reading, and a fault."""
    numbers = range(count)
    return {
        "producer": [about("producer"), *acknowledged(numbers)],
        "consumer": [
            about("consumer", group="g", ordered=True),
            *(message("receive", n, n * SECOND // 10 + 5) for n in numbers),
        ],
        "reader": [about("reader"), *(message("read", n, 99 * SECOND) for n in numbers)],
        "nemesis": [about("nemesis"), fault(2.05, 4.05)],
    }


def fault(begin_s: float, end_s: float, *, alive: bool = True, hit: str = "master") -> Line:
    return {
        "op": "fault",
        "kind": "kill",
        "target": "n0",
        "hit": hit,
        "alive": alive,
        "begin": int(begin_s * SECOND),
        "end": int(end_s * SECOND),
    }


def found(histories: Histories) -> dict[str, int]:
    """How many violations of each kind, of those that there are."""
    verdict = judge(histories.values())
    return {name: len(said) for name, said in verdict.violations.items() if said}


def test_a_good_history_is_good() -> None:
    verdict = judge(good().values())
    assert not any(verdict.violations.values())
    assert verdict.fail_over_s() == pytest.approx(0.1)
    assert verdict.counts["acknowledged"] == 100
    assert verdict.is_good(5)


def lose(histories: Histories) -> None:
    histories["reader"] = [line for line in histories["reader"] if line.get("number") != 50]
    histories["consumer"] = [line for line in histories["consumer"] if line.get("number") != 50]


def never_deliver(histories: Histories) -> None:
    histories["consumer"] = [line for line in histories["consumer"] if line.get("number") != 50]


def show_and_cut(histories: Histories) -> None:
    """It was never acknowledged, but a consumer saw it before it was cut."""
    histories["producer"].append(message("send", 100, 10 * SECOND, result="failed", offset=-1))
    histories["consumer"].append(message("receive", 100, 10 * SECOND))


def invent(histories: Histories) -> None:
    histories["reader"].append(message("read", 777, 99 * SECOND))


def give_a_place_twice(histories: Histories) -> None:
    """A consumer saw another message where the log has this one now."""
    histories["consumer"][51]["offset"] = 49


def swap_in_the_log(histories: Histories) -> None:
    at = {line.get("number"): line for line in histories["reader"]}
    for lines_of in (histories["producer"], histories["consumer"], histories["reader"]):
        at = {line.get("number"): line for line in lines_of}
        at[50]["offset"], at[51]["offset"] = 51, 50


def overtake(histories: Histories) -> None:
    """The log is in order, but a member of an ordered group did not wait for its turn."""
    at = {line.get("number"): line for line in histories["consumer"]}
    at[50]["end"], at[51]["end"] = at[51]["end"], at[50]["end"]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lose, {"lost": 1, "undelivered": 1}),
        (never_deliver, {"undelivered": 1}),
        (show_and_cut, {"vanished": 1}),
        (invent, {"invented": 1}),
        (give_a_place_twice, {"displaced": 1}),
        (swap_in_the_log, {"disordered": 1}),
        (overtake, {"disordered": 1}),
    ],
)
def test_a_history_fails_by_what_is_wrong_with_it(
    spoil: Callable[[Histories], None], named: dict[str, int]
) -> None:
    histories = good()
    spoil(histories)
    assert found(histories) == named
    assert not judge(histories.values()).is_good(5)


def test_every_kind_of_violation_has_a_history_that_fails_by_it() -> None:
    spoils = (
        lose,
        never_deliver,
        show_and_cut,
        invent,
        give_a_place_twice,
        swap_in_the_log,
    )
    seen = set[str]()
    for spoil in spoils:
        histories = good()
        spoil(histories)
        seen |= found(histories).keys()
    assert seen == set(VIOLATIONS)


def test_without_a_last_reading_everything_is_lost() -> None:
    histories = good()
    del histories["reader"]
    assert found(histories)["lost"] == 100


def test_what_was_not_acknowledged_may_be_there_or_not() -> None:
    histories = good()
    histories["producer"].append(message("send", 100, 10 * SECOND, result="failed", offset=-1))
    histories["producer"].append(message("send", 101, 10 * SECOND, result="failed", offset=-1))
    histories["reader"].append(message("read", 101, 99 * SECOND))
    assert found(histories) == {}


def test_duplicates_are_counted_and_allowed_also_late_ones() -> None:
    histories = good()
    histories["reader"].append(message("read", 10, 99 * SECOND, offset=100))
    histories["consumer"].append(message("receive", 10, 20 * SECOND, offset=100))
    histories["consumer"].append(message("receive", 11, 21 * SECOND))
    verdict = judge(histories.values())
    assert verdict.counts["duplicates in the log"] == 1
    assert verdict.counts["duplicates delivered"] == 2
    assert verdict.is_good(5)


def silent_for(tenths: range, *faults: Line) -> Histories:
    """Nothing was acknowledged for these tenths of a second."""
    histories = good()
    for line in histories["producer"]:
        if line.get("number") in tenths:
            line["result"] = "failed"
    histories["nemesis"] = [about("nemesis"), *faults]
    return histories


def outage(faults: list[Line], silent: range) -> float:
    """The time that was counted for the last fault."""
    verdict = judge(silent_for(silent, *faults).values())
    return [each.seconds for each in verdict.outages if each.scope == "any"][-1]


def test_a_fail_over_lasts_until_the_first_acknowledged_send() -> None:
    assert outage([fault(2.05, 4.05)], range(21, 41)) == pytest.approx(2.05)


def test_a_fail_over_that_begins_late_is_measured_too() -> None:
    """A master that lost etcd goes on until its lease is over."""
    assert outage([fault(2.05, 7.05)], range(40, 70)) == pytest.approx(3.1)


def test_when_nothing_can_go_on_the_time_counts_from_the_end_of_the_fault() -> None:
    assert outage([fault(2.05, 6.05, alive=False)], range(21, 70)) == pytest.approx(0.95)


def test_silence_to_the_end_is_an_endless_outage() -> None:
    assert outage([fault(2.05, 6.05)], range(30, 100)) == math.inf


def test_an_outage_is_not_charged_to_the_fault_before_it() -> None:
    both = [fault(2.05, 3.05), fault(4.05, 5.05)]
    assert outage(both[:1], range(42, 62)) == pytest.approx(2.1)
    verdict = judge(silent_for(range(42, 62), *both).values())
    times = [each.seconds for each in verdict.outages if each.scope == "any"]
    assert times == [pytest.approx(0.1), pytest.approx(2.1)]


def test_an_outage_that_begins_just_before_a_fault_is_charged_to_it() -> None:
    both = [fault(2.05, 3.05), fault(5.15, 6.15)]  # The last answer before comes at 5.
    verdict = judge(silent_for(range(51, 70), *both).values())
    times = [each.seconds for each in verdict.outages if each.scope == "any"]
    assert times == pytest.approx([0.15, 1.85])


def test_a_slow_fail_over_fails_the_run() -> None:
    verdict = judge(silent_for(range(21, 80), fault(2.05, 4.05)).values())
    assert verdict.fail_over_s() == pytest.approx(5.95)
    assert not verdict.is_good(5)
    assert verdict.is_good(6)


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([], 99) == 0
    assert percentile(range(1, 201), 99) == 198
    assert percentile([3, 1, 2], 50) == 2


def test_the_program_reads_files_and_ends_with_its_verdict(tmp_path: Path) -> None:
    def run(histories: Histories) -> tuple[int, str]:
        paths = []
        for name, own in histories.items():
            paths.append(tmp_path / f"{name}.jsonl")
            text = "".join(json.dumps(line) + "\n" for line in own)
            paths[-1].write_text(text + '{"op":"receive","id"')  # It was killed as it wrote.
        command = [sys.executable, "-m", "tests.e2e.faults.checker", *map(str, paths)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout

    histories = good()
    status, said = run(histories)
    assert (status, said.splitlines()[-1]) == (0, "good")
    lose(histories)
    status, said = run(histories)
    assert (status, said.splitlines()[-1]) == (1, "BAD")
    assert "lost: 1 (p/k/50)" in said


def test_a_history_says_who_writes_it_and_keeps_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "own" / "history.jsonl"
    with History(path, name="p", kind="sdk", topic="T", role="producer") as history:
        history.add("send", id="p/k/1", result="ok")
    path.write_bytes(path.read_bytes() + b'{"op":')
    assert list(lines(path)) == [
        {"op": "client", "name": "p", "kind": "sdk", "topic": "T", "role": "producer"},
        {"op": "send", "id": "p/k/1", "result": "ok"},
    ]

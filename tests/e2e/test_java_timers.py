"""Delay levels, timed messages and their recall, by the official Java clients, on both servers.

RocketMQ delivers timed messages at the end of the second in which they are due, and levels on its
own round; OneLog at their millisecond. Neither may be early.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.running import Ended, run
from tests.e2e.conftest import RunScenario, Server
from tests.e2e.java_clients import run_scenario
from tests.e2e.remoting_probe import call

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

UPDATE_BROKER_CONFIG = 25
MESSAGES = 24
LATE_MS = {"onelog": 1_000, "rocketmq": 3_000}
"""The machine may be busy; `benchmarks/timers.py` measures how precise OneLog is when it is not."""


@pytest.fixture
def recalling_server(server: Server) -> Iterator[Server]:
    """RocketMQ does not recall unless it is told to; other tests expect that."""

    def may_recall(text: bytes) -> None:
        if server.name == "rocketmq":
            change = b"recallMessageEnable=%b\n" % text
            answer = call(server.broker_address, UPDATE_BROKER_CONFIG, {}, change)
            assert answer.code == 0, answer

    may_recall(b"true")
    yield server
    may_recall(b"false")


def check(server: Server, done: dict[str, Any], recalled: set[int]) -> None:
    due_ms = {each["number"]: each["due_ms"] for each in done["sent"]}
    received = done["received"]
    assert sorted(each["number"] for each in received) == sorted(due_ms.keys() - recalled)
    lateness = [each["stored_ms"] - due_ms[each["number"]] for each in received]
    assert 0 <= min(lateness) <= max(lateness) <= LATE_MS[server.name]
    for each in received:
        assert each["tags"] == "timed"


def test_messages_come_when_they_are_due_and_once(server: Server, scenario: RunScenario) -> None:
    done = scenario("timing", 150, messages=MESSAGES)[-1]
    check(server, done, set())
    timed = [each for each in done["received"] if "TIMER_OUT_MS" in each["properties"]]
    assert len(timed) == MESSAGES * 3 // 4
    for each in timed:
        assert {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"} <= set(each["properties"])
        # RocketMQ means to take them out, and leaves them in.
        if server.name == "onelog":
            assert not {"REAL_TOPIC", "REAL_QID"} & set(each["properties"])


def test_recalled_messages_do_not_come(
    recalling_server: Server, topic: str, tmp_path: Path
) -> None:
    server = recalling_server
    done = run_scenario(
        tmp_path,
        "5.5.0",
        "timing",
        server.nameservers,
        150,
        topic=topic,
        messages=MESSAGES,
        recall_every=5,
        linger_ms=6_000,
    )[-1]
    recalled = {each["number"]: each for each in done["sent"] if each["recalled"]}
    assert set(recalled) == set(range(1, MESSAGES, 5))
    for each in recalled.values():
        assert each["recalled"] == each["unique_key"]
    check(server, done, set(recalled))


def test_our_commands_list_and_cancel_on_both(
    recalling_server: Server, topic: str, tmp_path: Path
) -> None:
    server = recalling_server

    def onelog(*words: str) -> Ended:
        return run(*words, "-n", server.nameservers, "--timeout", "10", "--json")

    done = run_scenario(
        tmp_path, "5.5.0", "timing-far", server.nameservers, 100, topic=topic, messages=4
    )[-1]
    sent = {each["unique_key"]: each for each in done["sent"]}
    listed = onelog("delay", "list", "--topic", topic).document
    assert listed["total"] == 5
    for each in listed["items"]:
        message = sent[each["unique_key"]]
        assert 0 <= each["due_ms"] - message["due_ms"] <= 1_000
        assert each["id"] == message["offset_id"]
        assert each["level"] == (18 if message["number"] == 99 else None)
    keys = [each["unique_key"] for each in listed["items"]]
    for which in (keys[0], listed["items"][1]["handle"], sent[keys[2]]["offset_id"]):
        ended = onelog("delay", "cancel", which, "--yes")
        assert ended.code == 0, ended.err
    left = onelog("delay", "list", "--topic", topic).document["items"]
    assert [each["unique_key"] for each in left] == keys[3:]
    refused = onelog("delay", "cancel", sent[keys[4]]["offset_id"], "--yes")
    assert refused.code == 2
    assert "delay level" in refused.err

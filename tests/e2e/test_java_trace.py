"""Message traces of the official Java clients, as `onelog message trace` and mqadmin show them.

Nothing is set up for it on either server: clients that trace by themselves must find a topic.
The servers are this module's own, because a transaction leaves RocketMQ 5.5.0 with a busy core
(apache/rocketmq issue 10966).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.running import run
from tests.e2e.conftest import Server
from tests.e2e.java_clients import mqadmin, run_scenario
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import wait_until
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

MESSAGES = 4


@pytest.fixture(scope="module", params=[OnelogPeer, RocketmqPeer], ids=["onelog", "rocketmq"])
def traced_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with request.param(tmp_path_factory.mktemp("trace")) as running:
        yield running


def story(server: Server, *words: str) -> dict[str, Any]:
    ended = run("message", "trace", *words, "-n", server.nameservers, "--timeout", "10", "--json")
    assert (ended.code, ended.err) == (0, "")
    document: dict[str, Any] = ended.document
    return document


def steps(document: dict[str, Any]) -> list[str]:
    return [step["step"] for step in document["steps"]]


def step(document: dict[str, Any], name: str, retry: int | None = None) -> dict[str, Any]:
    (found,) = [
        each
        for each in document["steps"]
        if each["step"] == name and (retry is None or each["retry"] == retry)
    ]
    return dict(found)


def test_traced_messages_have_a_whole_story(
    traced_server: Server, client: str, topic: str, tmp_path: Path
) -> None:
    server = traced_server
    done = run_scenario(
        tmp_path, client, "tracing", server.nameservers, 150, topic=topic, messages=MESSAGES
    )[-1]
    assert done["deliveries"] == MESSAGES + 1
    keys = [each["unique_key"] for each in done["sent"]]
    wait_until(
        lambda: all("consumed" in steps(story(server, key, "-t", topic)) for key in keys),
        "all traces",
    )
    for number in range(1, MESSAGES - 1):
        found = story(server, keys[number])
        assert found == story(server, done["sent"][number]["offset_id"])
        assert sorted(steps(found)) == ["born", "consumed", "delivered", "sent", "stored"]
        assert (found["topic"], found["keys"]) == (topic, [f"key-{topic}-{number}"])
        assert step(found, "sent")["group"] == f"{topic}-producer"
        stored, given, consumed = (step(found, n) for n in ("stored", "delivered", "consumed"))
        assert stored["id"] == done["sent"][number]["offset_id"]
        assert found["born_ms"] <= stored["at_ms"] <= given["at_ms"] <= consumed["at_ms"]
        (group,) = found["groups"]
        assert (group["group"], group["state"]) == (f"{topic}-group", "consumed")
        assert (group["deliveries"], group["since_born_ms"]) == (1, consumed["since_born_ms"])

    _check_failed_message(story(server, keys[0]), topic)
    committed = story(server, keys[-1])
    assert step(committed, "transaction ended")["note"] == "COMMIT_MESSAGE"
    assert step(committed, "sent")["group"] == f"{topic}-transactions"
    assert step(committed, "prepared")["at_ms"] <= step(committed, "stored")["at_ms"]
    assert step(committed, "consumed")

    printed = mqadmin(tmp_path, server.nameservers, "queryMsgTraceById", "-i", keys[1])
    assert f"{topic}-producer"[:20] in printed
    assert "Pub" in printed
    assert "Sub" in printed


def _check_failed_message(found: dict[str, Any], topic: str) -> None:
    """The first one failed once, and was tried again after a second."""
    assert step(found, "failed", 0)["group"] == f"{topic}-group"
    back, retried = step(found, "sent back"), step(found, "retried")
    assert (back["group"], back["retry"], back["note"]) == (f"{topic}-group", 1, "delay level 1")
    assert retried["at_ms"] - back["at_ms"] >= 900
    assert step(found, "delivered", 1)["at_ms"] >= retried["at_ms"]
    assert step(found, "consumed", 1)
    (group,) = found["groups"]
    assert (group["state"], group["deliveries"]) == ("consumed", 2)

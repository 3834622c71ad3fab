"""Failing consumers of the official Java clients, on OneLog and on RocketMQ: same retries and ends.

The table of delay levels is shortened to a second each, so that 16 retries take half a minute and
not five hours. The consumers and their messages are RocketMQ's; the dead letters are looked at and
resent with `onelog dlq`, which has to work with both servers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.running import run
from tests.e2e.conftest import Server
from tests.e2e.java_clients import Facts, Scenario, run_scenario
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import wait_until
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

LEVELS = " ".join(["1s"] * 18)
DEFAULT_MAX = 16


@pytest.fixture(scope="module", params=[OnelogPeer, RocketmqPeer], ids=["onelog", "rocketmq"])
def quick_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with request.param(tmp_path_factory.mktemp("retry"), delay_levels=LEVELS) as running:
        yield running


@pytest.fixture
def retries(quick_server: Server, client: str, topic: str, tmp_path: Path) -> Any:
    def scenario(**given: int) -> Facts:
        return run_scenario(
            tmp_path, client, "retries", quick_server.nameservers, 150, topic=topic, **given
        )[-1]

    return scenario


def ask(server: Server, *words: str) -> Any:
    ended = run(*words, "-n", server.nameservers, "--timeout", "10", "--json")
    assert (ended.code, ended.err) == (0, "")
    return ended.document


def left(server: Server, group: str, *options: str) -> list[Any]:
    """The dead letters of a group."""
    return list(ask(server, "dlq", "show", group, *options)["items"])


def test_a_consumer_that_fails_three_times_gets_its_messages_four_times(
    retries: Any, topic: str
) -> None:
    done = retries(messages=5, failures=3)
    assert done["tries"] == {str(number): [0, 1, 2, 3] for number in range(5)}
    assert done["consumed"] == 5
    assert done["deliveries"] == 20
    # What is tried again comes from the group's retry topic, but under its own name.
    assert done["topics"] == [topic]
    assert all(shortest_ms >= 900 for shortest_ms, _ in done["waits"])
    # A new consumer looks for the route of its retry topic once in a while; then it is quick.
    assert all(longest_ms < 5_000 for _, longest_ms in done["waits"][1:])


def test_after_sixteen_retries_a_message_is_a_dead_letter(retries: Any, topic: str) -> None:
    done = retries(messages=2, failures=100)
    assert done["tries"] == {str(number): list(range(DEFAULT_MAX + 1)) for number in range(2)}
    assert (done["consumed"], done["deliveries"]) == (0, 34)
    assert sorted(done["dead"], key=lambda letter: letter["number"]) == [
        {
            "number": number,
            "times": DEFAULT_MAX + 1,
            "topic": topic,
            "tags": "paid",
            "keys": f"key-{number}",
            "colour": "blue",
        }
        for number in range(2)
    ]


def test_a_consumer_names_its_own_maximum(retries: Any) -> None:
    done = retries(messages=3, failures=100, max=2)
    assert done["tries"] == {str(number): [0, 1, 2] for number in range(3)}
    assert [letter["times"] for letter in done["dead"]] == [3, 3, 3]


def test_an_orderly_consumer_retries_in_place_and_then_gives_up(retries: Any, topic: str) -> None:
    done = retries(messages=4, failures=100, max=3, orderly=1)
    assert done["tries"] == {str(number): [0, 1, 2, 3] for number in range(4)}
    assert sorted(letter["number"] for letter in done["dead"]) == [0, 1, 2, 3]
    assert {letter["topic"] for letter in done["dead"]} == {topic}


def test_dead_letters_are_listed_shown_resent_and_consumed(
    quick_server: Server, client: str, topic: str, tmp_path: Path
) -> None:
    group = f"{topic}-group"
    with Scenario(
        tmp_path,
        client,
        "retries",
        quick_server.nameservers,
        topic=topic,
        messages=4,
        failures=100,
        max=1,
        again=1,
    ) as running:
        dead = running.wait_for("dead", 100)
        assert len(dead["dead"]) == 4
        boxes = {box["group"]: box["count"] for box in ask(quick_server, "dlq", "list")["items"]}
        assert boxes[group] == 4
        letters = left(quick_server, group)
        assert {letter["origin_topic"] for letter in letters} == {topic}
        messages = [letter["message"] for letter in letters]
        assert sorted(each["keys"][0] for each in messages) == [f"key-{n}" for n in range(4)]
        assert {letter["tries"] for letter in letters} == {2}
        first = ask(quick_server, "dlq", "resend", group, "--id", messages[2]["id"])
        assert first["resent"] == 1
        # The real broker enters messages into its index a moment later.
        wait_until(lambda: len(left(quick_server, group)) == 3, "the resent letter")
        rest = ask(quick_server, "dlq", "resend", group, "--all", "--yes")
        assert (rest["resent"], rest["already"], rest["failures"]) == (3, 1, [])
        done = running.wait_for("done", 100)
    assert group not in {box["group"] for box in ask(quick_server, "dlq", "list")["items"]}
    assert done["consumed"] == 4
    assert done["deliveries"] == 12
    assert done["tries"] == {str(number): [0, 1, 0] for number in range(4)}


def test_dropped_dead_letters_do_not_count_any_more(
    quick_server: Server, retries: Any, topic: str
) -> None:
    group = f"{topic}-group"
    retries(messages=3, failures=100, max=0)
    assert ask(quick_server, "dlq", "drop", group, "--yes")["letters"] == 3
    assert left(quick_server, group) == []
    assert len(left(quick_server, group, "--all")) == 3
    assert ask(quick_server, "dlq", "drop", group, "--undo")["letters"] == 3
    assert len(left(quick_server, group)) == 3

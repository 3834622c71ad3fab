"""`onelog produce`, `consume` and `bench` against OneLog and against the real RocketMQ."""

import json
from typing import Any

import pytest

from tests.commands.running import Ended, run
from tests.e2e.conftest import Server
from tests.e2e.processes import wait_until

pytestmark = pytest.mark.e2e_java


class Shell:
    """The commands, told where the server is."""

    def __init__(self, server: Server) -> None:
        self._nameservers = server.nameservers

    def end(self, *words: str, stdin: str = "") -> Ended:
        return run(*words, "-n", self._nameservers, "--timeout", "10", stdin=stdin)

    def done(self, *words: str, stdin: str = "") -> str:
        ended = self.end(*words, stdin=stdin)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    def lines(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.done(*words, "--json").splitlines()]


@pytest.fixture
def shell(server: Server) -> Shell:
    return Shell(server)


def test_what_is_produced_is_consumed(shell: Shell, topic: str) -> None:
    shell.done("topic", "create", topic, "--queues", "2")
    line = {"body": "Grün", "tags": "paid", "keys": ["k1", "k2"], "properties": {"a": "b"}}
    shell.done("produce", topic, "--as", "json", stdin=json.dumps(line))
    shell.done("produce", topic, stdin="".join(f"{number}\n" for number in range(20)))
    # The real broker enters messages into its queues a moment later.
    wait_until(lambda: len(shell.lines("consume", topic)) == 21, "all messages")
    (found,) = shell.lines("consume", topic, "--tag", "paid")
    assert {name: found[name] for name in line} == line
    assert shell.lines("consume", topic, "--key", "k2") == [found]


@pytest.mark.parametrize("order", [(), ("--orderly",)])
def test_a_group_goes_on_where_it_stopped(shell: Shell, topic: str, order: tuple[str, ...]) -> None:
    shell.done("topic", "create", topic, "--queues", "2")
    shell.done("produce", topic, stdin="".join(f"{number}\n" for number in range(10)))
    wait_until(lambda: len(shell.lines("consume", topic)) == 10, "all messages")
    consume = ("consume", topic, "-g", f"{topic}-group", *order)
    first = shell.lines(*consume, "--from-beginning", "--count", "4")
    rest = shell.lines(*consume)
    assert len(first) == 4
    assert sorted(int(each["body"]) for each in first + rest) == list(range(10))


@pytest.mark.parametrize("mode", ["send", "oneway", "batch", "roundtrip", "consume"])
def test_a_bench_measures_and_tidies_up(shell: Shell, mode: str) -> None:
    words = ("bench", "-m", mode, "--seconds", "2", "-c", "8", "--backlog", "2000", "--queues", "2")
    found = json.loads(shell.done(*words, "--json"))
    assert found["failed"] == 0
    assert found["messages"] > 0
    if mode in ("send", "batch"):
        assert found["stored"] == found["messages"]
    names = [each["topic"] for each in json.loads(shell.done("topic", "list", "--json"))]
    assert [name for name in names if "bench" in name.lower() and "onelog" in name] == []

"""The admin commands against OneLog and against the real RocketMQ: no difference."""

import time
import zlib
from typing import Any

import pytest

from onelog.message import encode_properties
from tests.commands.running import Ended, run
from tests.e2e.conftest import Server
from tests.e2e.processes import wait_until
from tests.e2e.remoting_probe import SEND_MESSAGE_V2, call

pytestmark = pytest.mark.e2e_java

BODIES = [f"body {number}" for number in range(8)]


def send(server: Server, topic: str, queue: int, body: bytes, **more: str) -> str:
    """Send a message; its id. `compressed="1"` sets the flag, the rest are properties."""
    fields = {
        "a": "probe",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": more.pop("compressed", "0"),
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": encode_properties(more).decode(),
        "j": "0",
        "k": "false",
    }
    answer = call(server.broker_address, SEND_MESSAGE_V2, fields, body)
    assert answer.code == 0, answer.remark
    return answer.fields["msgId"]


class Console:
    """The commands, told where the server is."""

    def __init__(self, server: Server) -> None:
        self._nameservers = server.nameservers

    def end(self, *words: str) -> Ended:
        return run(*words, "-n", self._nameservers, "--timeout", "10")

    def ask(self, *words: str) -> Any:
        ended = self.end(*words, "--json")
        assert (ended.code, ended.err) == (0, "")
        return ended.document


@pytest.fixture
def console(server: Server) -> Console:
    return Console(server)


def test_topics_are_created_described_changed_and_deleted(
    server: Server, console: Console, topic: str
) -> None:
    console.ask("topic", "create", topic, "--queues", "2", "--attribute", "message.type=NORMAL")
    assert console.end("topic", "create", topic).code == 2
    assert {"topic": topic, "kind": "user"} in console.ask("topic", "list")
    (broker,) = console.ask("topic", "route", topic)["brokers"]
    assert (broker["write_queues"], broker["addresses"]) == (2, {"0": server.broker_address})
    console.ask("topic", "update", topic, "--queues", "3", "--perm", "r")
    (settings,) = console.ask("topic", "describe", topic)["settings"]
    assert (settings["read_queues"], settings["perm"]) == (3, 4)
    assert settings["attributes"] == {"message.type": "NORMAL"}
    console.ask("topic", "update", topic, "--order", "--perm", "rw")
    assert len(console.ask("topic", "status", topic)["queues"]) == 3
    console.ask("topic", "delete", topic, "--yes")
    assert console.end("topic", "describe", topic).code == 1


def test_messages_are_found_in_every_way(server: Server, console: Console, topic: str) -> None:
    console.ask("topic", "create", topic, "--queues", "2")
    ids = [
        send(
            server,
            topic,
            number % 2,
            body.encode(),
            KEYS=f"k{number} all",
            TAGS="t",
            UNIQ_KEY=f"{number:032X}",
        )
        for number, body in enumerate(BODIES)
    ]
    packed = send(server, topic, 0, zlib.compress(b"x" * 5000), compressed="1", KEYS="packed")
    # The real broker enters messages into its queues and index a moment later.
    wait_until(lambda: console.end("message", "by-key", topic, "packed").code == 0, "the index")
    assert console.ask("message", "get", ids[3])["body"] == BODIES[3]
    assert console.ask("message", "get", f"{4:032X}", "--topic", topic)["id"] == ids[4]
    assert console.ask("message", "by-unique-key", topic, f"{5:032X}")["id"] == ids[5]
    assert [m["body"] for m in console.ask("message", "by-key", topic, "all")] == BODIES
    assert console.ask("message", "by-offset", topic, "1", "2")["body"] == BODIES[5]
    listed = console.ask("message", "by-time", topic, "--limit", "8")
    assert [message["body"] for message in listed] == BODIES
    assert console.ask("message", "get", packed)["body"] == "x" * 5000
    assert console.ask("topic", "status", topic)["messages"] == 9
    for missing in (("by-offset", topic, "1", "99"), ("by-key", topic, "nope"), ("get", "00" * 16)):
        assert console.end("message", *missing).code == 1


def test_groups_are_created_moved_cloned_and_deleted(
    server: Server, console: Console, topic: str
) -> None:
    group, other = f"{topic}-g", f"{topic}-h"
    console.ask("topic", "create", topic, "--queues", "1")
    for body in BODIES:
        send(server, topic, 0, body.encode())
    console.ask("group", "create", group, "--retries", "3")
    assert console.end("group", "create", group).code == 2
    console.ask("group", "update", group, "--orderly")
    (settings,) = console.ask("group", "describe", group)["settings"]
    assert (settings["retry_times_max"], settings["orderly"]) == (3, True)

    def moved(*words: str) -> list[int]:
        return [queue["after"] for queue in console.ask("group", *words)["queues"]]

    at = ("-t", topic)
    assert moved("skip", group, *at, "--yes") == [8]
    assert moved("reset", group, *at, "--to", "earliest", "--dry-run") == [0]
    assert console.ask("group", "describe", group)["lag"] == 0
    assert moved("reset", group, *at, "--to", "1h", "--yes") == [0]
    assert console.ask("group", "describe", group)["lag"] == 8
    assert moved("skip", group, *at, "--yes") == [8]
    assert moved("clone", group, other) == [8]
    (queue,) = console.ask("group", "describe", other)["queues"]
    assert (queue["topic"], queue["position"]) == (topic, 8)
    summaries = {each["group"]: each for each in console.ask("group", "list")}
    assert summaries[other]["lag"] == summaries[group]["members"] == 0
    for name in (group, other):
        console.ask("group", "delete", name, "--yes")
        assert console.end("group", "describe", name).code == 1


def test_clusters_and_brokers_are_shown(server: Server, console: Console) -> None:
    assert console.ask("cluster", "list") == [
        {"cluster": server.cluster, "brokers": [server.broker_name]}
    ]
    (broker,) = console.ask("cluster", "status", "--details")
    assert broker["address"] == server.broker_address
    assert 0 < broker["disk_used_ratio"] < 1
    assert broker["booted_ms"] > 0
    assert "putTps" in broker["details"]

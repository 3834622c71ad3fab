"""Java clients of a cluster that loses parts: a master that has a slave, name servers."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.client import Message, Producer
from onelog.errors import OnelogError
from tests.e2e.java_clients import CLIENT_VERSIONS, Scenario
from tests.e2e.onelog_peer import COMMAND, OnelogPeer
from tests.e2e.payload import body
from tests.e2e.processes import free_ports, spawn, stop, wait_until
from tests.e2e.remoting_probe import call, create_topic, is_answering

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(400)]

PAUSE_MS_MAX = 3_000
QUEUES = 4
MESSAGES = 400
TOPIC = "Replicated"
GET_MAX_OFFSET = 30
KINDS = [
    (version, kind)
    for version in CLIENT_VERSIONS
    for kind in ("push", "orderly", "pull", "pop")
    if kind != "pop" or version.startswith("5")
]


@contextlib.contextmanager
def nameservers(folder: Path, count: int) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Name servers, each a process, and where they are."""
    ports = [port for _ in range(count) for port in free_ports()[:1]]
    children = [
        spawn(
            [str(COMMAND), "nameserver", "--port", str(port)],
            folder / f"nameserver-{port}.log",
            {"HOME": str(folder), "ONELOG_NAMESERVER_KV_PATH": str(folder / f"kv-{port}.json")},
        )
        for port in ports
    ]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    try:
        wait_until(lambda: all(map(is_answering, addresses)), "the name servers")
        yield ";".join(addresses), children
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT)
            stop(child, signal.SIGKILL)


def one_of_a_set(folder: Path, names: str, broker_id: int, **settings: str) -> OnelogPeer:
    """A broker that shares its name with others: 0 is the master."""
    given = {
        "ONELOG_BROKER_BROKER_ID": str(broker_id),
        "ONELOG_REPLICATION_REPLICAS": "2",
        "ONELOG_BROKER_OFFSETS_FLUSH_MS": "100",
        **settings,
    }
    return OnelogPeer(folder / f"broker-{broker_id}", nameservers=names, settings=given)


def wait_for_port(peer: OnelogPeer) -> None:
    """Return when a broker answers; the name servers may know another one of its name."""
    wait_until(lambda: is_answering(peer.broker_address), f"broker {peer.broker_address}")


def ends(address: str) -> list[int]:
    """How far each queue is, as a broker has it."""
    asked = ({"topic": TOPIC, "queueId": str(number)} for number in range(QUEUES))
    answers = (call(address, GET_MAX_OFFSET, about) for about in asked)
    return [int(answer.fields.get("offset", -1)) for answer in answers]


def send(names: str, numbers: range) -> None:
    with Producer("app", nameserver=names) as producer:
        for number in numbers:
            for _ in range(100):
                try:
                    producer.send(Message(TOPIC, body(number)), order_key=str(number % QUEUES))
                    break
                except OnelogError:
                    time.sleep(0.1)
            else:
                raise AssertionError(f"{number} was not taken")


@pytest.mark.parametrize(("version", "kind"), KINDS)
def test_java_consumers_go_on_at_the_slave_and_return(
    tmp_path: Path, version: str, kind: str
) -> None:
    mode = {"ONELOG_BROKER_DEFAULT_REQUEST_MODE": "pop" if kind == "pop" else "pull"}
    received: list[tuple[int, int]] = []
    with (
        nameservers(tmp_path, 1) as (names, _),
        one_of_a_set(tmp_path, names, 0, **mode) as master,
    ):
        with one_of_a_set(tmp_path, names, 1, **mode) as slave:
            for each in (master, slave):
                wait_for_port(each)
            create_topic(master.broker_address, TOPIC, QUEUES)
            send(names, range(MESSAGES))
            wait_until(
                lambda: ends(slave.broker_address) == ends(master.broker_address), "the slave"
            )
            with Scenario(
                tmp_path, version, "reading", names, topic=TOPIC, kind=kind, work_ms=20
            ) as java:

                def read_until(count: int, seconds: float) -> None:
                    for facts in java.lines(seconds):
                        if facts["event"] == "received":
                            received.append((facts["queue"], facts["number"]))
                        if len({number for _, number in received}) >= count:
                            return

                read_until(20, 60)
                master.stop_broker(signal.SIGKILL)
                read_until(MESSAGES, 100)
                master.launch()
                wait_for_port(master)
                send(names, range(MESSAGES, MESSAGES + 50))
                read_until(MESSAGES + 50, 60)
            wait_until(
                lambda: ends(slave.broker_address) == ends(master.broker_address), "the slave"
            )
    assert {number for _, number in received} == set(range(MESSAGES + 50))
    if kind == "orderly":
        for queue in range(QUEUES):
            first = list(dict.fromkeys(number for at, number in received if at == queue))
            assert first == sorted(first)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
@pytest.mark.parametrize("left", [0, 1, 2])
def test_java_clients_go_on_when_one_name_server_is_half_dead_and_one_is_killed(
    tmp_path: Path, version: str, left: int
) -> None:
    with (
        nameservers(tmp_path, 3) as (names, children),
        OnelogPeer(tmp_path / "broker", nameservers=names),
        Scenario(
            tmp_path, version, "restart", names, topic=TOPIC, messages=2_500, pause_ms=15
        ) as java,
    ):
        java.wait_for("progress")
        half_dead, killed = (child for number, child in enumerate(children) if number != left)
        half_dead.send_signal(signal.SIGSTOP)
        stop(killed, signal.SIGKILL)
        # Longer than the half minute after which routes are asked for again.
        done = java.wait_for("done", 200)
    assert done["outage_ms"] < PAUSE_MS_MAX
    assert done["catch_up_ms"] < PAUSE_MS_MAX
    assert done["received"] == done["acknowledged"]
    assert done["failed"] == 0

"""Order over a crashed consumer and a killed broker, seen by members that share a log.

A producer sends numbers, key by key, each when the one before it is acknowledged. Of two members of
a group that consumes in order, one is killed (SIGKILL); later the broker is. What the members did,
with redeliveries taken out, must be every number of each key in order; and a redelivery goes back
to the position that the broker had, never behind it, and from there on in order again.
"""

import contextlib
import itertools
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from onelog.client import Message, Producer, Queue
from onelog.errors import OnelogError
from tests.e2e.java_clients import CLIENT_VERSIONS, Scenario
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import spawn, stop, wait_until
from tests.e2e.remoting_probe import call, create_topic

QUERY_CONSUMER_OFFSET = 14
GET_MAX_OFFSET = 30
TOPIC = "Ordered"
QUEUES = 4
KEYS = 12
ROUND_SECONDS = 0.01
"""Between numbers, so that consumers keep up."""
MEMBER = Path(__file__).with_name("ordered_member.py")
SETTINGS = {
    # A dead member's queues are free after a second, not after a minute.
    "ONELOG_BROKER_LOCK_EXPIRY_MS": "1000",
    "ONELOG_BROKER_OFFSETS_FLUSH_MS": "100",
}


class Seen(NamedTuple):
    """A message that a member was done with."""

    member: str
    queue_id: int
    offset: int
    key: str
    number: int


@dataclass
class Watch:
    """A broker, and the log of everybody who consumes from it."""

    server: OnelogPeer
    log: Path

    def seen(self) -> list[Seen]:
        """What members did so far, in this order; one that was killed may have left half a line."""
        text = self.log.read_text() if self.log.exists() else ""
        rows = [line.split(" ") for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [Seen(row[0], int(row[1]), int(row[2]), row[3], int(row[4])) for row in rows]

    def owners(self) -> dict[int, str]:
        """Who did a message of each queue last."""
        return {each.queue_id: each.member for each in self.seen()}

    def has_come_to(self, number: int) -> bool:
        """Whether this number of every key was seen."""
        return len({each.key for each in self.seen() if each.number == number}) == KEYS

    def position(self, queue_id: int) -> int:
        """How far the group is in a queue, as the broker has it."""
        about = {"consumerGroup": f"{TOPIC}-group", "topic": TOPIC, "queueId": str(queue_id)}
        return int(call(self.server.broker_address, QUERY_CONSUMER_OFFSET, about).fields["offset"])

    def positions(self) -> dict[int, int]:
        return {queue_id: self.position(queue_id) for queue_id in range(QUEUES)}

    def recorded_positions(self) -> dict[int, int]:
        """Positions that are in the log: after they were asked for, the table was written again."""
        positions = self.positions()
        before = self._table_records()
        wait_until(lambda: self._table_records() > before, "a record of the positions")
        return positions

    def _table_records(self) -> int:
        about = {"topic": "onelog_sys_tables", "queueId": "0"}
        return int(call(self.server.broker_address, GET_MAX_OFFSET, about).fields["offset"])


@dataclass(frozen=True)
class Crash:
    """How many messages had been seen when somebody was killed, and the broker's positions."""

    seen: int
    positions: dict[int, int]


def check_order(seen: list[Seen], begin: int, numbers: range, crashes: list[Crash]) -> None:
    """From message `begin` on: every number of each key in order, each after the one before it.

    Redeliveries come after a crash only, and from the broker's position on.
    """
    following = {each.queue_id: each.offset + 1 for each in seen[:begin]}
    first_seen: dict[str, list[int]] = {str(key): [] for key in range(KEYS)}
    for at, each in enumerate(seen[begin:], begin):
        expected = following[each.queue_id]
        assert each.offset <= expected, f"{each} came before {expected}"
        if each.offset < expected:
            crash = next((crash for crash in reversed(crashes) if crash.seen <= at), None)
            assert crash is not None, f"{each} came again, and nobody had been killed"
            assert each.offset >= crash.positions[each.queue_id], f"{each} was done: {crash}"
        following[each.queue_id] = each.offset + 1
        if each.number in numbers and each.number not in first_seen[each.key]:
            first_seen[each.key].append(each.number)
    assert first_seen == {str(key): list(numbers) for key in range(KEYS)}


StartMember = Callable[[str], Callable[[], object]]
"""Starts a member with this name; what it gives kills it."""
Finish = Callable[[], int]
"""Sends one more number of every key, the last one, and tells it."""
Send = Callable[[int], contextlib.AbstractContextManager[Finish]]
"""Begins to send numbers of every key, from this one on."""


def share_out(watch: Watch, send: Send) -> int:
    """Send until each of two members has its queues; the first number that was not sent."""
    first = 0
    while Counter(watch.owners().values()) != {"a": QUEUES // 2, "b": QUEUES // 2}:
        with send(first) as finish:
            last = finish()
        wait_until(partial(watch.has_come_to, last), "members at work", 60)
        first = last + 1
    return first


def run(watch: Watch, start_member: StartMember, send: Send) -> None:
    """Kill a member and then the broker, while numbers are sent and consumed."""
    kill = {name: start_member(name) for name in ("a", "b")}
    try:
        first = share_out(watch, send)
        begin, owners = len(watch.seen()), watch.owners()
        orphans = [queue_id for queue_id, owner in owners.items() if owner == "a"]
        with send(first) as finish:
            _wait_for_more(watch)
            crashed = Crash(len(watch.seen()), watch.positions())
            kill.pop("a")()
            wait_until(
                lambda: all(watch.owners()[queue_id] == "b" for queue_id in orphans),
                "an heir of the queues of the member that was killed",
                60,
            )
            _wait_for_more(watch)
            positions = watch.recorded_positions()
            killed = Crash(len(watch.seen()), positions)
            watch.server.restart(signal.SIGKILL)
            watch.server.wait_until_ready()
            _wait_for_more(watch)
            last = finish()
        wait_until(partial(watch.has_come_to, last), "the last number of every key", 90)
    finally:
        for end in kill.values():
            end()
    check_order(watch.seen(), begin, range(first, last + 1), [crashed, killed])
    assert min(positions.values()) > 0, "nothing was done before the broker was killed"


def _wait_for_more(watch: Watch, count: int = 10 * KEYS) -> None:
    before = len(watch.seen())
    wait_until(lambda: len(watch.seen()) >= before + count, f"{count} more messages", 60)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    with OnelogPeer(tmp_path / "server", settings=SETTINGS) as server:
        create_topic(server.broker_address, TOPIC, QUEUES)
        yield Watch(server, tmp_path / "seen.log")
        server.stop_broker(signal.SIGKILL)  # A clean stop would only take longer.


# -- the SDK ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def sdk_producer(server: OnelogPeer, first: int) -> Iterator[Finish]:
    """`Send`; each message again until it is acknowledged, before the next of its key."""
    enough, given_up = threading.Event(), threading.Event()
    sent: list[int] = []

    def send_everything() -> None:
        with Producer("writers", nameserver=server.nameservers) as producer:
            for number in itertools.count(first):
                is_last = enough.is_set()
                for key in range(KEYS):
                    message = Message(TOPIC, f"{key} {number}".encode())
                    queue = Queue(TOPIC, server.broker_name, key % QUEUES)
                    while not _is_sent(producer, message, queue) and not given_up.is_set():
                        continue
                sent.append(number)
                if is_last:
                    return
                enough.wait(ROUND_SECONDS)

    sender = threading.Thread(target=send_everything)

    def finish() -> int:
        enough.set()
        sender.join(60)
        assert not sender.is_alive(), "the producer does not come to an end"
        return sent[-1]

    sender.start()
    try:
        yield finish
    finally:
        enough.set()
        given_up.set()
        sender.join()


def _is_sent(producer: Producer, message: Message, queue: Queue) -> bool:
    try:
        producer.send(message, queue=queue)
    except OnelogError:
        return False
    return True


def test_order_survives_a_crashed_consumer_and_a_killed_broker(
    watch: Watch, tmp_path: Path
) -> None:
    server = watch.server

    def start_member(name: str) -> Callable[[], object]:
        command = [sys.executable, str(MEMBER), server.nameservers, TOPIC, name, str(watch.log)]
        return partial(stop, spawn(command, tmp_path / f"{name}.log"), signal.SIGKILL)

    run(watch, start_member, partial(sdk_producer, server))


# -- RocketMQ's Java client ------------------------------------------------------------------------


@contextlib.contextmanager
def java_producer(server: OnelogPeer, home: Path, version: str, first: int) -> Iterator[Finish]:
    """`Send`, by the scenario "ordered"."""
    enough = home / f"enough-{first}"
    with Scenario(
        home,
        version,
        "ordered",
        server.nameservers,
        topic=TOPIC,
        keys=KEYS,
        first=first,
        enough=enough,
    ) as sending:
        sending.wait_for("ready", 60)

        def finish() -> int:
            enough.touch()
            return int(sending.wait_for("done", 90)["last"])

        yield finish


@pytest.mark.e2e_java
@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_order_of_java_clients_survives_a_crashed_consumer_and_a_killed_broker(
    watch: Watch, tmp_path: Path, version: str
) -> None:
    server = watch.server

    def start_member(name: str) -> Callable[[], object]:
        member = Scenario(
            tmp_path / name,
            version,
            "ordered",
            server.nameservers,
            topic=TOPIC,
            member=name,
            log=watch.log,
        )
        member.wait_for("ready", 90)
        return member.kill

    run(watch, start_member, partial(java_producer, server, tmp_path, version))

"""The broker is killed in each phase of a message's life: nothing confirmed is lost, nothing that
was acknowledged and recorded comes again, nothing comes that was never published."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.e2e.processes import spawn, stop
from tests.gateways.amqp.live import connected, eventually, got, ready
from tests.gateways.remoting.live import SMALL
from tests.ports import free_port

PERSISTENT = pika.BasicProperties(delivery_mode=2)
RECORDED_SECONDS = 0.3
"""Acknowledgements are recorded after a few milliseconds."""


class Killable:
    """A broker process on ports that it keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = [free_port(), free_port()]
        self.url = f"amqp://guest:guest@127.0.0.1:{self.ports[1]}/"
        self.start()

    def start(self) -> None:
        settings = {
            **SMALL, "broker.port": self.ports[0], "amqp.port": self.ports[1],
            "broker.store_path": str(self.folder / "store"), "store.segment_bytes": 16 << 20,
        }  # fmt: skip
        command = [sys.executable, "-m", "onelog", "broker"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self.child = spawn(command, self.folder / "broker.log")

        def is_up() -> bool:
            try:
                with connected(self.url):
                    return True
            except pika.exceptions.AMQPError:
                return False

        eventually(is_up)

    def kill(self) -> None:
        """SIGKILL, and start again."""
        stop(self.child, signal.SIGKILL)
        self.start()


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[Killable]:
    broker = Killable(tmp_path)
    yield broker
    stop(broker.child, signal.SIGKILL)


def everything(channel: BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    """All that is in a queue, and whether it was delivered before."""
    found = []
    while (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((one[2], one[0].redelivered))
    return found


def test_confirmed_is_kept_and_acknowledged_is_gone(killable: Killable) -> None:
    with connected(killable.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(30):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        tags = [got(channel, "q", auto_ack=False)[0].delivery_tag for _ in range(10)]
        for tag in tags[:5]:
            channel.basic_ack(tag)
        ready(channel, "q")
        time.sleep(RECORDED_SECONDS)
        killable.kill()
    with connected(killable.url) as connection:
        found = everything(connection.channel(), "q")
        assert [body for body, _ in found] == [b"%d" % number for number in range(5, 30)]
        assert [again for _, again in found][:5] == [True] * 5


def test_a_message_that_was_not_confirmed_is_there_once_or_not_at_all(killable: Killable) -> None:
    with connected(killable.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        sent = [b"%d" % number for number in range(500)]
        for body in sent:
            channel.basic_publish("", "q", body, PERSISTENT)
        killable.kill()
    with connected(killable.url) as connection:
        found = [body for body, _ in everything(connection.channel(), "q")]
        assert found == sent[: len(found)]


def test_dead_letters_are_in_one_of_the_two_queues(killable: Killable) -> None:
    with connected(killable.url) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("q", durable=True, arguments=arguments)
        channel.confirm_delivery()
        for number in range(40):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        tags = [got(channel, "q", auto_ack=False)[0].delivery_tag for _ in range(40)]
        for tag in tags[:20]:
            channel.basic_reject(tag, requeue=False)
        ready(channel, "dead")
        killable.kill()
    with connected(killable.url) as connection:
        channel = connection.channel()
        dead = {body for body, _ in everything(channel, "dead")}
        alive = {body for body, _ in everything(channel, "q")}
        assert dead == {b"%d" % number for number in range(20)}
        assert alive == {b"%d" % number for number in range(20, 40)}


def test_a_transaction_is_whole_or_not_there(killable: Killable) -> None:
    with connected(killable.url) as connection:
        channel = connection.channel()
        for queue in ("a", "b"):
            channel.queue_declare(queue, durable=True)
        channel.tx_select()
        for queue in ("a", "b"):
            channel.basic_publish("", queue, b"committed", PERSISTENT)
        channel.tx_commit()
        for queue in ("a", "b"):
            channel.basic_publish("", queue, b"open", PERSISTENT)
        killable.kill()
    with connected(killable.url) as connection:
        channel = connection.channel()
        for queue in ("a", "b"):
            assert everything(channel, queue) == [(b"committed", False)]

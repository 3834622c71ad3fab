"""A broker that is killed while clients publish, confirm, deliver, acknowledge, bury and commit.

Each activity has queues of its own, notes what it was told, and goes on until the broker is gone.
After the restart, what is in the queues is compared with the notes.

    publish     what was confirmed is there, in order; nothing is there that was not published
    ack         what was acknowledged by a commit that was answered does not come again; what nobody
                acknowledged comes, once, in order
    bury        what was rejected is in its queue or among the dead letters
    commit      a transaction is there as a whole or not at all; one that was answered is
"""

import random
import threading
import time
from collections.abc import Callable

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.e2e.onelog_amqp import OnelogAmqp

LOADED = 300
"""Messages that queues have before they are emptied."""
_PARTS = ("t.1", "t.1", "t.2")
"""Where the messages of a transaction go."""
_PREFETCH = 20


class Round:
    """One life of the broker, and what its clients know."""

    def __init__(self, server: OnelogAmqp, number: int, phases: tuple[str, ...]) -> None:
        self._server = server
        self._number = number
        self._phases = phases
        self.published: list[bytes] = []
        self.confirmed: list[bytes] = []
        self.acked: set[bytes] = set()
        self.done: set[bytes] = set()
        """Acknowledged, and the commit of that was answered."""
        self.rejected: set[bytes] = set()
        self.transactions = 0
        self.committed: set[int] = set()
        self.errors: list[BaseException] = []
        self.loaded = [self._body(at) for at in range(LOADED)]

    def _body(self, *what: int) -> bytes:
        return b"-".join(b"%d" % each for each in (self._number, *what))

    def _channel(self) -> BlockingChannel:
        parameters = pika.URLParameters(self._server.url)
        parameters.socket_timeout = parameters.blocked_connection_timeout = 30
        return pika.BlockingConnection(parameters).channel()

    # -- before --------------------------------------------------------------------------------

    def load(self) -> None:
        """Queues, and what is in them."""
        channel = self._channel()
        for name in ("p", "a", "d.dead", "t.1", "t.2"):
            channel.queue_declare(name, durable=True)
        buried = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d.dead"}
        channel.queue_declare("d", durable=True, arguments=buried)
        channel.tx_select()
        for body in self.loaded:
            channel.basic_publish("", "a", body)
            channel.basic_publish("", "d", body)
        channel.tx_commit()
        channel.connection.close()

    # -- until it is killed --------------------------------------------------------------------

    def kill_after(self, seconds: float) -> None:
        """Do everything at once, and kill the broker meanwhile."""
        threads = [
            threading.Thread(target=self._until_killed, args=(getattr(self, f"_{phase}"),))
            for phase in self._phases
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._server.kill()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]

    def _until_killed(self, act: Callable[[BlockingChannel], None]) -> None:
        try:
            act(self._channel())
        except (pika.exceptions.AMQPError, OSError):
            pass
        except BaseException as error:
            self.errors.append(error)

    def _publish(self, channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        for number in range(1_000_000):
            body = self._body(number)
            self.published.append(body)
            channel.basic_publish("", "p", body, mandatory=True)
            self.confirmed.append(body)

    def _ack(self, channel: BlockingChannel) -> None:
        channel.basic_qos(prefetch_count=_PREFETCH)
        channel.tx_select()
        some: set[bytes] = set()
        for method, _, body in channel.consume("a"):
            some.add(body)
            if len(some) == _PREFETCH // 2:
                self.acked |= some
                channel.basic_ack(method.delivery_tag, multiple=True)
                channel.tx_commit()
                self.done |= some
                some = set()

    def _bury(self, channel: BlockingChannel) -> None:
        channel.basic_qos(prefetch_count=_PREFETCH)
        for method, _, body in channel.consume("d"):
            self.rejected.add(body)
            channel.basic_reject(method.delivery_tag, requeue=False)

    def _commit(self, channel: BlockingChannel) -> None:
        channel.tx_select()
        while True:
            number = self.transactions
            self.transactions += 1
            for part, queue in enumerate(_PARTS):
                channel.basic_publish("", queue, self._body(number, part))
            channel.tx_commit()
            self.committed.add(number)

    # -- after ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Is everything there that has to be, and nothing else?"""
        channel = self._channel()
        found = {name: _drained(channel, name) for name in ("p", "a", "d", "d.dead", "t.1", "t.2")}
        channel.connection.close()
        there = found["p"]
        assert there[: len(self.confirmed)] == self.confirmed, "a confirmed message is lost"
        assert there == self.published[: len(there)], "something else was delivered"
        left = found["a"]
        assert not self.done & set(left), "what was acknowledged came again"
        assert set(self.loaded) - self.acked <= set(left), "what nobody acknowledged is lost"
        assert left == [body for body in self.loaded if body in set(left)], "they lost their order"
        kept = set(found["d"]) | set(found["d.dead"])
        assert kept == set(self.loaded), "a message is neither in its queue nor buried"
        assert set(found["d.dead"]) <= self.rejected, "a message was buried that nobody rejected"
        self._check_transactions(found["t.1"], found["t.2"])

    def _check_transactions(self, first: list[bytes], second: list[bytes]) -> None:
        whole = [
            number for number in range(self.transactions) if self._body(number, 0) in set(first)
        ]
        assert self.committed <= set(whole), "a committed transaction is lost"
        assert first == [self._body(number, part) for number in whole for part in (0, 1)]
        assert second == [self._body(number, 2) for number in whole]


def _drained(channel: BlockingChannel, queue: str) -> list[bytes]:
    found: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(body or b"")


ALL = ("publish", "ack", "bury", "commit")


def rounds(server: OnelogAmqp, count: int, seed: int, phases: tuple[str, ...] = ALL) -> str:
    """Kill a broker that runs so often, and start it again; what was done, in a line."""
    choice = random.Random(seed)
    confirmed = committed = 0
    for number in range(count):
        life = Round(server, number, phases)
        life.load()
        life.kill_after(choice.uniform(0.02, 0.5))
        server.start()
        server.wait_until_ready()
        life.check()
        confirmed += len(life.confirmed)
        committed += len(life.committed)
    return f"{count} kills, {confirmed} confirmed messages, {committed} transactions: none lost"

"""A shop that does not exist, and its orders.

A shop can wait after its first few orders until whoever counts them is at work.

Invariant: `orders` and `cents` count what the broker has confirmed, and nothing else.
"""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from onelog.client import Message, Producer
from onelog.errors import OnelogError

STOP_SECONDS_MAX = 20
_SMALL = ("store.segment_bytes=67108864", "broker.vip_port=0")

CATEGORIES = {
    "books": (30, 18),
    "groceries": (25, 35),
    "clothes": (18, 60),
    "toys": (12, 25),
    "garden": (8, 45),
    "electronics": (7, 240),
}
"""How often each is ordered, of a hundred, and for how much, about."""
PULSE_SECONDS = 0.05
SEND_SECONDS_MAX = 60.0
BATCH_ORDERS_MAX = 500


@contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """Run `onelog up` in a folder; gives the address of its name server."""
    arguments = ["--data", str(folder), "--nameserver-port", "0"]
    arguments += ["--broker-port", "0", "--kafka-port", "0"]
    for setting in _SMALL:
        arguments += ["--set", setting]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "onelog", "up", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            # Ctrl-C goes to the whole group of a terminal; the server ends when we say so.
            start_new_session=True,
        )
        try:
            yield _address(child, folder)
        finally:
            child.terminate()
            try:
                child.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            assert child.stdout is not None
            child.stdout.close()


def _address(child: "subprocess.Popen[bytes]", folder: Path) -> str:
    """What the server says about itself, up to when it is ready."""
    address = ""
    assert child.stdout is not None
    for line in child.stdout:
        words = line.decode().split()
        if words[:2] == ["name", "server"]:
            address = words[2]
        if words[:1] == ["ready"]:
            return address
    said = (folder / "server.log").read_text().strip()
    raise OnelogError(f"the server did not start: {said or 'it does not say why'}")


def order(number: int, chance: random.Random, now: float) -> tuple[bytes, int]:
    """An order as JSON, and its amount in cents."""
    weights = [often for often, _ in CATEGORIES.values()]
    (category,) = chance.choices(list(CATEGORIES), weights)
    cents = max(1, round(CATEGORIES[category][1] * 100 * chance.lognormvariate(0, 0.5)))
    fields = {
        "order_id": f"A{number:08d}",
        "category": category,
        "amount": cents / 100,
        "ordered_at": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
    }
    return json.dumps(fields).encode(), cents


class Shop:
    """Sends orders at a rate, in a thread of its own, until it has sent them all, or is closed."""

    def __init__(
        self,
        nameserver: str,
        topic: str,
        rate: int,
        orders_max: int,
        *,
        first: int = 0,
        seed: int = 1,
    ) -> None:
        """With `first`, only so many are sent before `begin` is called."""
        self._nameserver = nameserver
        self._topic = topic
        self._rate = rate
        self._orders_max = orders_max
        self._first = min(first, orders_max)
        self._chance = random.Random(seed)
        self._begun = threading.Event()
        if not first:
            self._begun.set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)
        self._error: Exception | None = None
        self.orders = 0
        self.cents = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether there are orders to come."""
        return self._thread.is_alive()

    @property
    def has_begun(self) -> bool:
        """Whether it does not wait for `begin`."""
        return self._begun.is_set()

    def begin(self) -> None:
        """Go on after the first orders."""
        self._begun.set()

    def wait(self) -> None:
        """Wait until there are none."""
        self._thread.join()

    def close(self) -> None:
        """Take no more orders; raises what went wrong, if something did."""
        self._closing.set()
        self._begun.set()
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        try:
            # Who waits long enough for the answer need not send again, which could store it twice.
            with Producer(
                "demo-shop", nameserver=self._nameserver, timeout=SEND_SECONDS_MAX
            ) as producer:
                self.send(producer, self._first)
                self._begun.wait()
                began = time.monotonic()
                while self.orders < self._orders_max and not self._closing.wait(PULSE_SECONDS):
                    due = self._first + int((time.monotonic() - began) * self._rate)
                    self.send(producer, min(due, self._orders_max) - self.orders)
        except Exception as error:
            self._error = error

    def send(self, producer: Producer, count: int) -> None:
        """Send so many orders, and count them."""
        for part in self._batches(count):
            messages = [
                Message(self._topic, body, keys=[f"A{self.orders + place:08d}"])
                for place, (body, _) in enumerate(part)
            ]
            producer.send_batch(messages)
            self.orders += len(part)
            self.cents += sum(cents for _, cents in part)

    def _batches(self, count: int) -> Iterator[list[tuple[bytes, int]]]:
        while count > 0:
            some = min(count, BATCH_ORDERS_MAX)
            now = time.time()
            yield [order(self.orders + place, self._chance, now) for place in range(some)]
            count -= some

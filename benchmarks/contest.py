"""One part of a contest, inside the process of a contestant: run, warm up, measure, tell.

Needs nothing but the standard library, because the official client runs in an environment that has
nothing of OneLog. What it tells are lines of JSON on standard output: `begin` and `end` of the
window that counts, so that whoever listens can look at the server's CPU time at the same moments.

Invariant: nothing counts that happened before `begin` or after `end`.
"""

import argparse
import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import NoReturn, TypeVar

BODY = bytes(128)
THREADS = 16
ON_THE_WAY = 256
LISTENER_THREADS = 20
FIRST_MESSAGE_TIMEOUT_S = 40.0
LOOK_S = 0.02
FAILURE_PAUSE_S = 0.1

Receipt = TypeVar("Receipt")


@dataclass(frozen=True, slots=True)
class Part:
    """What a contestant is told.

    `address` is a name server, or the proxy; `messages` is how many there are to consume, 0 for
    sends, which have no end.
    """

    mode: str
    address: str
    topic: str
    group: str
    messages: int
    warm_up_s: float
    seconds: float


def told() -> Part:
    """The part that the command line names."""
    parser = argparse.ArgumentParser()
    for name in ("mode", "address", "topic", "group"):
        parser.add_argument(name)
    parser.add_argument("messages", type=int)
    parser.add_argument("warm_up_s", type=float)
    parser.add_argument("seconds", type=float)
    return Part(**vars(parser.parse_args()))


def arguments(part: Part) -> list[str]:
    """The command line for a part."""
    return [
        *(part.mode, part.address, part.topic, part.group),
        *(str(number) for number in (part.messages, part.warm_up_s, part.seconds)),
    ]


@dataclass(frozen=True, slots=True)
class Look:
    """Everything so far, at one moment."""

    count: int
    failed: int
    redelivered: int
    cpu_s: float
    wall_s: float


class Tally:
    """Counts what many threads do, without a lock: `next` of a counter is one step."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._looks = 0
        self.redelivered = 0
        self.failed = 0

    def add(self) -> None:
        """One more."""
        next(self._numbers)

    def fail(self, error: Exception) -> None:
        """One that did not work."""
        self.failed += 1
        print(repr(error), file=sys.stderr, flush=True)

    def total(self) -> int:
        """How many by now; only one thread may ask."""
        looks = self._looks
        self._looks += 1
        return next(self._numbers) - looks

    def look(self) -> Look:
        """The total, and what it took; only one thread may ask."""
        return Look(
            self.total(),
            self.failed,
            self.redelivered,
            time.process_time(),
            time.perf_counter(),
        )


def watch(part: Part, tally: Tally) -> NoReturn:
    """Measure the window, while other threads work, and end the process."""
    started = time.monotonic()
    while tally.total() == 0:
        if time.monotonic() - started > FIRST_MESSAGE_TIMEOUT_S:
            print(f"no message within {FIRST_MESSAGE_TIMEOUT_S:.0f} s", file=sys.stderr, flush=True)
            os._exit(1)
        time.sleep(LOOK_S)
    # A fast consumer may be through before the time for warming up is over.
    few = part.messages // 4 or sys.maxsize
    end_of_warm_up = time.monotonic() + part.warm_up_s
    while time.monotonic() < end_of_warm_up and tally.total() < few:
        time.sleep(LOOK_S)
    tell("begin")
    before = tally.look()
    last = part.messages or sys.maxsize
    while time.perf_counter() - before.wall_s < part.seconds and tally.total() < last:
        time.sleep(LOOK_S)
    after = tally.look()
    tell("end", **{name: value - getattr(before, name) for name, value in asdict(after).items()})
    # What is on the way ends with the process: no client's farewell is measured.
    os._exit(0)


def tell(event: str, **facts: float) -> None:
    """A line for the listener."""
    print(json.dumps({"event": event, **facts}), flush=True)


def in_threads(number: int, work: Callable[[Tally], object], part: Part) -> NoReturn:
    """Do the work again and again in so many threads; it counts what it has done."""
    tally = Tally()

    def go_on() -> None:
        while True:
            try:
                work(tally)
            except Exception as error:
                tally.fail(error)
                time.sleep(FAILURE_PAUSE_S)

    for _ in range(number):
        threading.Thread(target=go_on, daemon=True).start()
    watch(part, tally)


def send_in_threads(send: Callable[[], object], part: Part) -> NoReturn:
    """Send one message after another in each of `THREADS` threads."""

    def step(tally: Tally) -> None:
        send()
        tally.add()

    in_threads(THREADS, step, part)


def send_with_futures(start: Callable[[], "Future[Receipt]"], part: Part) -> NoReturn:
    """Keep `ON_THE_WAY` futures on the way from one thread."""
    futures: deque[Future[Receipt]] = deque()

    def step(tally: Tally) -> None:
        while len(futures) < ON_THE_WAY:
            futures.append(start())
        futures.popleft().result()
        tally.add()

    in_threads(1, step, part)

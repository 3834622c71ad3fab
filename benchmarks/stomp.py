"""STOMP side by side with ActiveMQ: persistent messages with receipts, through a queue.

A sender has at most a window of messages without a receipt; a subscriber takes them, and needs not
acknowledge. What counts is how many come out. Both are processes of their own, and take turns: once
with a receipt that means that the disk has the message, as it is ActiveMQ's default, and once with
one that means that the operating system has it, as it is OneLog's.
"""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from statistics import median

from benchmarks.rounds import told, turns
from benchmarks.table import Options, Row, not_run
from tests.e2e.onelog_stomp import JARS, ActiveMq, OnelogStomp

WINDOW = 200
BODY = b"x" * 1_024
ROUNDS = 3
RATIO_MIN = 2.0
_CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0"


def connected(port: int) -> socket.socket:
    """A client."""
    made = socket.create_connection(("127.0.0.1", port), 30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(_CONNECT)
    answer = b""
    while b"\0" not in answer:
        answer += made.recv(65_536)
    assert answer.startswith(b"CONNECTED"), answer
    return made


class Subscriber(threading.Thread):
    """Counts messages."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._socket = connected(port)
        self._socket.sendall(b"SUBSCRIBE\nid:0\ndestination:/queue/bench\nack:auto\n\n\0")

    def run(self) -> None:
        """Read until the other side closes."""
        with contextlib.suppress(OSError):
            while data := self._socket.recv(1 << 20):
                self.count += data.count(b"\0")


def rate(port: int, seconds: float) -> float:
    """Messages per second that come out."""
    reader = Subscriber(port)
    reader.start()
    sender = connected(port)
    frame = (
        b"SEND\ndestination:/queue/bench\npersistent:true\nreceipt:r\ncontent-length:%d\n\n%b\0"
        % (len(BODY), BODY)
    )
    sender.settimeout(30)
    sender.sendall(frame * WINDOW)
    warm = time.monotonic() + 2
    began, first = 0.0, 0
    while (now := time.monotonic()) < warm + seconds:
        if not began and now > warm:
            began, first = now, reader.count
        receipts = sender.recv(1 << 20).count(b"\0")
        sender.sendall(frame * receipts)
    found = (reader.count - first) / (time.monotonic() - began)
    sender.close()
    return found


def run(options: Options) -> list[Row]:
    """Measure both, in turns."""
    titles = {True: "persistent, receipts when on disk", False: "persistent, receipts at once"}
    if ActiveMq.jars() is None:
        why = f"no ActiveMQ: install Debian's activemq, or name its jars in {JARS}"
        return [not_run(title, why) for title in titles.values()]
    seconds, rounds = (1.0, 1) if options.quick else (4.0, ROUNDS)
    rows = []
    for syncs, title in titles.items():
        found: dict[str, list[float]] = {"OneLog": [], "ActiveMQ": []}
        for number, name in turns(rounds, list(found)):
            options.announce(f"{title}, round {number}: {name}")
            folder = options.folder / f"{name}-{syncs}-{number}"
            found[name].append(_measured(name, folder, syncs, seconds))
        ours, theirs = found["OneLog"], found["ActiveMQ"]
        rows.append(
            Row(
                f"STOMP, 1 KiB, {title}",
                median(ours),
                "messages/s",
                median(theirs),
                "ActiveMQ",
                RATIO_MIN,
                note=told(ours, theirs),
            )
        )
    return rows


def _measured(name: str, folder: Path, syncs: bool, seconds: float) -> float:
    os.makedirs(folder)
    if name == "ActiveMQ":
        with ActiveMq(folder, syncs=syncs) as activemq:
            return rate(activemq.port, seconds)
    with OnelogStomp(folder, {"store.flush": "sync" if syncs else "async"}) as onelog:
        return rate(onelog.port, seconds)

"""MQTT side by side with Mosquitto: rates by QoS, fan-out, and what an idle client costs.

Both are processes of their own, and take turns. The clients send packets that are made beforehand,
and count bytes: they cost little beside the broker. Messages have 16 bytes. Mosquitto has its
persistence on.
"""

import contextlib
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.rounds import told, turns
from benchmarks.table import Options, Row, under
from onelog.wire.mqtt.codes import V311
from onelog.wire.mqtt.packets import (
    Connect,
    Publish,
    Subscribe,
    SubscribeFilter,
    encode_connect,
    encode_publish,
    encode_subscribe,
)
from tests.e2e.onelog_mqtt import Mosquitto, OnelogMqtt

TOPIC = b"bench/topic/0000"
BODY = bytes(16)
WINDOW = 500
"""Messages of QoS 1 and 2 that are not answered."""
FAN_OUT = 1_000
ROUNDS = 3
IDLE_CLIENTS = 5_000
CELLS = {
    "QoS 0, 1:1": (0, 1),
    "QoS 1, 1:1": (1, 1),
    "QoS 2, 1:1": (2, 1),
    f"QoS 0, 1:{FAN_OUT}": (0, FAN_OUT),
    f"QoS 1, 1:{FAN_OUT}": (1, FAN_OUT),
}
# Mosquitto at its best: with 20 messages in flight and Nagle's delay, as it comes, it mostly waits.
MOSQUITTO = "set_tcp_nodelay true\nmax_inflight_messages 0"
REQUIRED = ("QoS 1, 1:1", f"QoS 0, 1:{FAN_OUT}", f"QoS 1, 1:{FAN_OUT}")
IDLE = "idle client"


def connected(port: int, name: str, *, clean: bool = True, keep_alive_s: int = 0) -> socket.socket:
    """A client."""
    made = socket.create_connection(("127.0.0.1", port), 30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(encode_connect(Connect(V311, name, clean, keep_alive_s)))
    assert received(made, 4)[3] == 0
    return made


def received(source: socket.socket, size: int) -> bytes:
    """So many bytes."""
    found = b""
    while len(found) < size:
        data = source.recv(size - len(found))
        if not data:
            raise ConnectionError("the broker has closed a connection")
        found += data
    return found


def subscribed(
    port: int, name: str, qos: int, topic: bytes = TOPIC, keep_alive_s: int = 0
) -> socket.socket:
    """A client that has subscribed."""
    made = connected(port, name, keep_alive_s=keep_alive_s)
    wanted = Subscribe(1, [SubscribeFilter(topic.decode(), qos)], {})
    made.sendall(encode_subscribe(V311, wanted))
    received(made, 5)
    return made


class Sender(threading.Thread):
    """Publishes until it is told to stop, with at most a window of messages not answered."""

    def __init__(self, port: int, qos: int, topic: bytes) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self._socket = connected(port, "sender")
        self._qos = qos
        self._stopped = threading.Event()

    def run(self) -> None:
        """Send."""
        qos = self._qos
        count = 100
        runs = [
            b"".join(
                encode_publish(
                    V311, Publish(self._topic, qos << 1, first + n if qos else 0, b"", BODY)
                )
                for n in range(count)
            )
            for first in range(1, WINDOW + 1, count)
        ]
        with contextlib.suppress(OSError):
            self._send(runs)

    def _send(self, runs: list[bytes]) -> None:
        qos = self._qos
        while not self._stopped.is_set():
            for run in runs:
                self._socket.sendall(run)
            if qos == 0:
                continue
            answers = received(self._socket, 4 * WINDOW)
            if qos == 2:
                released = bytearray(answers)
                released[::4] = b"\x62" * WINDOW
                self._socket.sendall(released)
                received(self._socket, 4 * WINDOW)

    def stop(self) -> None:
        """Stop."""
        self._stopped.set()
        self.join(30)
        self._socket.close()


class Reader:
    """Counts messages of one size, and answers them."""

    def __init__(self, source: socket.socket, qos: int) -> None:
        self.socket = source
        self._qos = qos
        self._size = len(encode_publish(V311, Publish(TOPIC, qos << 1, 1, b"", BODY)))
        self._left = b""
        self.count = 0

    def read(self) -> None:
        """Handle what is there."""
        data = self._left + self.socket.recv(1 << 18)
        if self._qos == 0:
            self.count += len(data) // self._size
            self._left = data[len(data) // self._size * self._size :]
        elif self._qos == 1:
            whole = len(data) // self._size
            self._left = data[whole * self._size :]
            self.count += whole
            if whole:
                rows = np.frombuffer(data, np.uint8, whole * self._size).reshape(whole, self._size)
                self.socket.sendall(_answers(rows, 0x40, 4 + len(TOPIC)))
        else:
            self._read_exactly_once(data)

    def _read_exactly_once(self, data: bytes) -> None:
        at, out = 0, bytearray()
        while len(data) - at >= 4:
            if data[at] == 0x62:
                out += b"\x70\x02" + data[at + 2 : at + 4]
                at += 4
            elif len(data) - at >= self._size:
                number = at + 4 + len(TOPIC)
                out += b"\x50\x02" + data[number : number + 2]
                at += self._size
                self.count += 1
            else:
                break
        self._left = data[at:]
        self.socket.sendall(out)


def _answers(rows: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]", head: int, at: int) -> bytes:
    made = np.empty((len(rows), 4), np.uint8)
    made[:, 0], made[:, 1] = head, 2
    made[:, 2:] = rows[:, at : at + 2]
    return made.tobytes()


def rate(port: int, qos: int, seconds: float, readers: int = 1) -> float:
    """Messages per second that come out, to all readers together."""
    # A topic of its own: what is left of an earlier run must not come in between.
    topic = b"bench/topic/%04d" % (readers + qos)
    made = [Reader(subscribed(port, f"reader-{n}", qos, topic), qos) for n in range(readers)]
    watch = selectors.DefaultSelector()
    for reader in made:
        watch.register(reader.socket, selectors.EVENT_READ, reader)
    sender = Sender(port, qos, topic) if readers == 1 else None
    single = connected(port, "sender") if sender is None else None
    message = encode_publish(V311, Publish(topic, qos << 1, 1 if qos else 0, b"", BODY))
    if sender is not None:
        sender.start()
    warm = time.monotonic() + 1
    began, end, first = 0.0, warm + seconds, 0
    sent = 0
    while (now := time.monotonic()) < end:
        if single is not None and sum(each.count for each in made) >= (sent - 5) * readers:
            single.sendall(message)
            sent += 1
        for key, _ in watch.select(0.001 if single is not None else 0.1):
            key.data.read()
        if not began and now > warm:
            began, first = now, sum(each.count for each in made)
    found = (sum(each.count for each in made) - first) / (time.monotonic() - began)
    for reader in made:
        reader.socket.close()
    if sender is not None:
        sender._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            sender.stop()
    if single is not None:
        single.close()
    return found


def resident_kb(pid: int) -> int:
    """What a process has in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def idle_kb(port: int, pid: int, clients: int) -> float:
    """What a client costs that has subscribed and is idle."""
    before = resident_kb(pid)
    made = [
        subscribed(port, f"idle-{n}", 1, b"idle/%d" % n, keep_alive_s=60) for n in range(clients)
    ]
    for each in made:
        each.sendall(b"\xc0\0")
    for each in made:
        received(each, 2)
    time.sleep(1)
    cost = (resident_kb(pid) - before) / clients
    for each in made:
        each.close()
    return cost


@contextlib.contextmanager
def started(name: str, folder: Path) -> Iterator[tuple[int, int]]:
    """A broker, and its port and process id."""
    with OnelogMqtt(folder) if name == "OneLog" else Mosquitto(folder, MOSQUITTO) as peer:
        yield peer.port, peer._child.pid


def run(options: Options) -> list[Row]:
    """Measure both, in turns."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    names = ["OneLog", *(["Mosquitto"] if Mosquitto.program() else [])]
    rounds, seconds, clients = (1, 1.0, 500) if options.quick else (ROUNDS, 3.0, IDLE_CLIENTS)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for number, name in turns(rounds, names):
        with started(name, options.folder / f"{name}-{number}") as (port, pid):
            # First: what others have left would be used again.
            options.announce(f"round {number}: {name}, {clients} idle clients")
            found[name].setdefault(IDLE, []).append(idle_kb(port, pid, clients))
            for title, (qos, readers) in CELLS.items():
                options.announce(f"round {number}: {name}, {title}")
                found[name].setdefault(title, []).append(rate(port, qos, seconds, readers))
    return [_row(title, found) for title in (*CELLS, IDLE)]


def _row(title: str, found: dict[str, dict[str, list[float]]]) -> Row:
    ours, theirs = found["OneLog"][title], found.get("Mosquitto", {}).get(title)
    if title == IDLE:
        note = f"Mosquitto: {median(theirs):.1f} KB" if theirs else ""
        return under(f"{IDLE}, subscribed, with keep alive", median(ours), "KB", 20, note=note)
    wanted = 1.0 if title in REQUIRED else None
    if theirs is None:
        return Row(title, median(ours), "messages/s", None, "Mosquitto is not installed", wanted)
    peer = "Mosquitto"
    return Row(
        title, median(ours), "messages/s", median(theirs), peer, wanted, note=told(ours, theirs)
    )

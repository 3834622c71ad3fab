"""Clients of STOMP for tests: stomp.py, with what it hears in a queue; and bare frames."""

import contextlib
import queue
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import stomp
from stomp.exception import NotConnectedException

from onelog.wire.stomp.frame import Frame, StompFrameReader

SECONDS = 30
QUIET_SECONDS = 0.3
Address = tuple[str, int]
KINDS = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class Heard(NamedTuple):
    """A message that a client got."""

    headers: dict[str, str]
    body: str

    @property
    def ident(self) -> str:
        """What it is acknowledged by."""
        return self.headers.get("ack") or self.headers["message-id"]


class Client(stomp.ConnectionListener):  # type: ignore[misc]
    """A connection of stomp.py that keeps what it hears."""

    def __init__(self, address: Address, version: str, **options: Any) -> None:
        self.version = version
        self.messages: queue.Queue[Heard] = queue.Queue()
        self.errors: queue.Queue[Heard] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.gone: queue.Queue[bool] = queue.Queue()
        self.connection = KINDS[version]([address], **options)
        self.connection.set_listener("test", self)
        self._number = 0

    def on_message(self, frame: Any) -> None:
        self.messages.put(Heard(frame.headers, frame.body))

    def on_error(self, frame: Any) -> None:
        self.errors.put(Heard(frame.headers, frame.body))

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_disconnected(self) -> None:
        self.gone.put(True)

    def done(self, call: Any, *words: Any, **options: Any) -> None:
        """Do something, and wait for its receipt."""
        self._number += 1
        receipt = f"r{self._number}"
        call(*words, receipt=receipt, **options)
        assert self.receipts.get(timeout=SECONDS) == receipt

    def send(self, destination: str, body: str = "", **headers: str) -> None:
        """Send a message, and wait until it is stored."""
        named = {name.replace("__", "-"): value for name, value in headers.items()}
        self.done(self.connection.send, destination, body, headers=named)

    def subscribe(self, destination: str, ident: str = "1", ack: str = "auto", **more: str) -> None:
        """Subscribe, and wait until that is done."""
        named = {name.replace("__", "-"): value for name, value in more.items()}
        self._number += 1
        headers = {**named, "receipt": f"r{self._number}"}
        self.connection.subscribe(destination, ident, ack, headers=headers)
        assert self.receipts.get(timeout=SECONDS) == f"r{self._number}"

    def ack(self, heard: Heard, **options: Any) -> None:
        """Acknowledge a message, and wait until that is recorded."""
        self.done(self.connection.ack, *self._named(heard), **options)

    def nack(self, heard: Heard, **options: Any) -> None:
        """Refuse a message."""
        self.done(self.connection.nack, *self._named(heard), **options)

    def _named(self, heard: Heard) -> list[str]:
        if self.version == "1.1":
            return [heard.ident, heard.headers["subscription"]]
        return [heard.ident]

    def get(self) -> Heard:
        """The next message."""
        return self.messages.get(timeout=SECONDS)

    def bodies(self, count: int) -> list[str]:
        """The next messages' bodies."""
        return [self.get().body for _ in range(count)]

    def is_quiet_for(self, seconds: float, found: dict[str, set[str]]) -> bool:
        """Whether no message comes for so long; one that does is kept by its subscription."""
        try:
            heard = self.messages.get(timeout=seconds)
        except queue.Empty:
            return True
        found[heard.headers["subscription"]].add(heard.body)
        return False

    def is_quiet(self) -> bool:
        """Whether no message comes."""
        with contextlib.suppress(queue.Empty):
            self.messages.get(timeout=QUIET_SECONDS)
            return False
        return True


@contextlib.contextmanager
def connected(
    address: Address | None, version: str = "1.2", login: dict[str, str] | None = None, **more: Any
) -> Iterator[Client]:
    """A client, for as long as the block lasts; `login` are headers of CONNECT."""
    assert address is not None
    client = Client(address, version, **more)
    headers = {"login": "guest", "passcode": "guest", **(login or {})}
    name, passcode = headers.pop("login"), headers.pop("passcode")
    client.connection.connect(name, passcode, wait=True, headers=headers)
    try:
        yield client
    finally:
        # The broker may hang up at any time, also between a question and its answer.
        with contextlib.suppress(NotConnectedException, OSError):
            client.connection.disconnect(receipt=None)
        client.connection.remove_listener("test")


class Bare:
    """A socket that speaks frames, also wrong ones."""

    def __init__(self, address: Address | None) -> None:
        assert address is not None
        self._socket = socket.create_connection(address, timeout=SECONDS)
        self._reader = StompFrameReader(1 << 24)
        self._frames: list[Frame] = []

    def __enter__(self) -> "Bare":
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def say(self, raw: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(raw)

    def connect(self, version: str = "1.2", more: str = "") -> Frame:
        """Connect, and hear the answer."""
        self.say(f"CONNECT\naccept-version:{version}\nhost:/\n{more}\n\0".encode())
        answer = self.hear()
        self._reader.version = version
        return answer

    def hear(self) -> Frame:
        """The next frame; `EOFError` if the connection ends before."""
        while not self._frames:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._reader.feed(data)
            self._frames += self._reader.frames()
        return self._frames.pop(0)

    def is_closed(self) -> bool:
        """Whether the other side closes."""
        try:
            self.hear()
        except (EOFError, ConnectionError):
            return True
        return False

    def wait_for_heartbeats(self, count: int) -> None:
        """Hear nothing but so many of them."""
        for _ in range(count):
            assert set(self._socket.recv(1)) == set(b"\n")

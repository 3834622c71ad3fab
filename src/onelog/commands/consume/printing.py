"""How `onelog consume` prints messages: as lines, as JSON, or only their bodies.

Invariant: what `taken` gives after `flush` has left this process, so it may be committed.
"""

import base64
import json
import sys
from typing import Any

from onelog.client import Queue, ReceivedMessage
from onelog.commands.clients import ClientSession, Pace
from onelog.commands.terminal import show_bytes, show_text
from onelog.commands.times import show_time
from onelog.errors import CompressionError


class Printer:
    """Prints messages, until there were enough."""

    def __init__(
        self,
        session: ClientSession,
        *,
        key: str | None,
        count: int | None,
        rate: float | None,
        bodies: bool,
    ) -> None:
        self._key = key
        self._count = count
        self._pace = Pace(rate)
        self._as_json = session.as_json
        self._utc = session.utc
        self._bodies = bodies
        self._taken: dict[Queue, int] = {}
        self.printed = 0
        self.passed = 0
        """Messages that were printed or left out."""

    @property
    def is_done(self) -> bool:
        """Whether there were enough."""
        return self._count is not None and self.printed >= self._count

    def left(self, count: int) -> int:
        """How many messages may be fetched, if one would like so many."""
        return count if self._count is None else min(count, self._count - self.printed)

    def print(self, message: ReceivedMessage) -> None:
        """Print a message, if it is one that is wanted."""
        if self._key is None or self._key in message.keys:
            self._pace.wait()
            if self._bodies:
                sys.stdout.buffer.write(message.body + b"\n")
            elif self._as_json:
                sys.stdout.write(json.dumps(document(message), separators=(",", ":")) + "\n")
            else:
                sys.stdout.write(line(message, self._utc) + "\n")
            self.printed += 1
        self.passed += 1
        self._taken[message.queue] = message.offset + 1

    def flush(self) -> None:
        """Have what was printed leave this process."""
        sys.stdout.flush()

    def taken(self) -> dict[Queue, int]:
        """How far each queue is done with."""
        return dict(self._taken)


def document(message: ReceivedMessage) -> dict[str, Any]:
    """A message, for programs. A body that is no text is in base64."""
    made = {
        "topic": message.topic,
        "broker": message.broker,
        "queue": message.queue.queue_id,
        "offset": message.offset,
        "id": message.message_id,
        "offset_id": message.offset_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "flag": message.flag,
        "born_ms": message.born_ms,
        "store_ms": message.store_ms,
        "attempt": message.delivery_attempt,
    }
    body = message.body
    try:
        return {**made, "body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {**made, "body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def line(message: ReceivedMessage, utc: bool) -> str:
    """A message on one line, for people."""
    place = f"{message.broker}/{message.queue.queue_id}@{message.offset}"
    tags = f" [{show_text(message.tags)}]" if message.tags else ""
    keys = f" {{{show_text(' '.join(message.keys))}}}" if message.keys else ""
    return f"{show_time(message.store_ms, utc=utc)} {place}{tags}{keys} {_shown_body(message)}"


def _shown_body(message: ReceivedMessage) -> str:
    try:
        body = message.body
    except CompressionError as error:
        return f"({error})"
    try:
        return show_text(body.decode())
    except UnicodeDecodeError:
        return f"({show_bytes(len(body))} that are no text)"

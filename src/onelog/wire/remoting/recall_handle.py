"""Recall handles: what the sender of a timed message is given to take it back with.

    base64url("v1 <topic> <broker name> <time> <unique key>"), padded

The time is one millisecond after the message's TIMER_OUT_MS, as RocketMQ has it: that is within the
second to which it rounds, and so lets it find the message.

Invariant: `decode(encode(handle)) == handle`; a text that is no handle raises `WireError`.
"""

import base64
import binascii
from typing import NamedTuple

from onelog.errors import WireError

_VERSION = "v1"


def encode_handle(topic: str, broker: str, time_ms: int, unique_key: str) -> str:
    """A handle as a text; for those who make one for each message that they send or take."""
    words = f"{_VERSION} {topic} {broker} {time_ms} {unique_key}".encode()
    # What `base64.urlsafe_b64encode` does, at half the price.
    text = binascii.b2a_base64(words, newline=False)
    return text.replace(b"+", b"-").replace(b"/", b"_").decode()


class RecallHandle(NamedTuple):
    """Which message, on which broker, and when it would be delivered."""

    topic: str
    broker: str
    time_ms: int
    unique_key: str

    def encode(self) -> str:
        return encode_handle(*self)

    @staticmethod
    def decode(text: str) -> "RecallHandle":
        """The handle in a text; padding may be missing."""
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            raw = base64.b64decode(padded, altchars=b"-_", validate=True)
            version, topic, broker, time, unique_key = raw.decode().split(" ")
        except (ValueError, binascii.Error):
            raise WireError("recall handle is invalid") from None
        if version != _VERSION or not (time.isascii() and time.isdigit() and len(time) <= 18):
            raise WireError("recall handle is invalid")
        return RecallHandle(topic, broker, int(time), unique_key)

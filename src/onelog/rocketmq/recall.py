"""Handles of timed messages that their senders bring back, to have the messages taken back."""

from onelog.config import BrokerConfig
from onelog.errors import RecallError, WireError
from onelog.wire.remoting.recall_handle import RecallHandle


def checked_handle(config: BrokerConfig, topic: str, text: str, now_ms: int) -> RecallHandle:
    """The handle in a text, if it can be of a message that waits here; else `RecallError`."""
    try:
        handle = RecallHandle.decode(text)
    except WireError as error:
        raise RecallError(str(error)) from None
    if handle.topic != topic:
        raise RecallError(f"recall failed, topic not match: the handle is for {handle.topic}")
    if handle.broker != config.name:
        raise RecallError(
            f"recall failed, the message is on broker {handle.broker}, not on {config.name}"
        )
    if not 0 < handle.time_ms - now_ms <= config.timer_delay_max_ms + 1:
        raise RecallError("recall failed, timestamp invalid: it is past, or too far away")
    return handle

"""Sending to a broker on the client's own event loop, over a `Line` instead of a request.

The broker has stored the message when `send_by_line` returns, and its consumers on the same loop
may have been called. The sender is told in the next round of the loop, and not at once: whoever
sends in a loop, and awaits each send, must let the others have their turn.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from onelog.client.message import Message, Receipt
from onelog.client.producer.send_targets import Place
from onelog.net.line import Line

T = TypeVar("T")


def send_by_line(
    line: Line, place: Place, message: Message, message_id: str, properties: str, born_ms: int
) -> Receipt | None:
    """The receipt of a message that was stored; None if it takes a proper request."""
    queue = place.queue
    sent = line.send(
        place.template.fields["b"], queue.queue_id, message.body, properties, message.flag, born_ms
    )
    return None if sent is None else Receipt(message_id, sent[0], queue, sent[1])


def finish_one(finish: Callable[[T], None], result: T) -> None:
    """Tell somebody who may have gone in the meantime."""
    try:
        finish(result)
    except asyncio.InvalidStateError:
        pass  # Nobody waits for it any more.

"""What the options of `onelog message` ask for."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

from onelog.client.admin.messages import TIME_MAX, Found, Messages
from onelog.clock import SystemClock
from onelog.commands.times import parse_time
from onelog.errors import InvalidRequestError, MessageNotFoundError, NotSavedError
from onelog.record.compression import unpacked_body

T = TypeVar("T")


async def find(messages: Messages, message_id: str, topic: str | None) -> Found:
    """The message with an id or, if its topic is known, with a unique key.

    Both are hex digits of the same length, and only a look tells them apart.
    """
    if topic is None:
        try:
            return await messages.by_id(message_id)
        except MessageNotFoundError as error:
            raise MessageNotFoundError(f"{error} (if this is a unique key, say --topic)") from None
    try:
        found = await messages.by_id(message_id)
    except (MessageNotFoundError, InvalidRequestError):
        pass
    else:
        if found.message.topic == topic:
            return found
    search = await messages.by_unique_key(topic, message_id)
    if not search.messages:
        raise MessageNotFoundError("; ".join(failure.reason for failure in search.failures))
    return search.messages[-1]


def span(since: str, until: str | None, utc: bool) -> tuple[int, int]:
    """Begin and end of a span of time, in milliseconds since the epoch."""
    now_ms = SystemClock().now_ms()
    begin_ms = parse_time(since, now_ms, utc=utc)
    end_ms = TIME_MAX if until is None else parse_time(until, now_ms, utc=utc)
    if begin_ms > end_ms:
        raise InvalidRequestError(f"--since {since} is after --until {until}")
    return begin_ms, end_ms


async def first(count: int, items: AsyncGenerator[T, None]) -> list[T]:
    """The first few of many."""
    listed: list[T] = []
    async with aclosing(items):
        async for item in items:
            listed.append(item)
            if len(listed) == count:
                break
    return listed


def write_body(found: Found, path: Path) -> None:
    """Write a message's body, unpacked, to a file."""
    try:
        path.write_bytes(unpacked_body(found.message))
    except OSError as error:
        raise NotSavedError(f"{path}: {error.strerror}") from None

"""`onelog message`: find messages by id, key, place or time, and what happened to them."""

import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from onelog.admin import documents
from onelog.admin.topics import MessageDocument
from onelog.client.admin.messages import TIME_MAX, Consumption, Found, Messages
from onelog.clock import SystemClock
from onelog.commands.operations import shown as show_result
from onelog.commands.options import Interval
from onelog.commands.session import Session, Shown, command
from onelog.commands.terminal import (
    pick,
    show_bytes,
    show_text,
    text_of,
)
from onelog.commands.times import parse_time, show_time
from onelog.errors import CompressionError, InvalidRequestError, MessageNotFoundError, NotSavedError
from onelog.message import Message
from onelog.record.compression import unpacked_body

app = typer.Typer()

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Since = Annotated[
    str | None,
    typer.Option(help="Stored from this time on: 2026-05-01 10:30:00, or how long ago: 15m, 2h."),
]
Until = Annotated[str | None, typer.Option(help="Stored up to this time. [default: now]")]
Broker = Annotated[str | None, typer.Option(help="The broker's name, if there are several.")]
BodyFile = Annotated[
    Path | None, typer.Option("--body-to", metavar="FILE", help="Write the body to a file, too.")
]
Groups = Annotated[bool, typer.Option("--groups", help="Also which consumer groups are past it.")]


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


SHORT_CHARACTERS = 60
LONG_BYTES = 4096
"""How much of a body is shown; all of it goes to a file with --body-to."""


def document(found: Found, consumption: Sequence[Consumption] | None = None) -> dict[str, Any]:
    """A message, for programs, with its whole body."""
    made = msgspec.to_builtins(documents.document(found.message, sys.maxsize, found.broker))
    if consumption is not None:
        made["groups"] = [pick(each, "group position past=is_past") for each in consumption]
    assert isinstance(made, dict)
    return made


def show_messages(messages: Sequence[Found], utc: bool) -> Shown:
    """Messages, one per line."""
    made = [document(each) for each in messages]
    return made, *show_result(
        "messages", list[MessageDocument], {"items": made, "total": len(made)}, utc
    )


def line(found: Found, utc: bool) -> str:
    """A message on one line."""
    message = found.message
    address = f"{found.broker}/{message.queue_id}@{message.queue_offset}"
    tags = f" [{show_text(message.tags)}]" if message.tags else ""
    return f"{show_time(message.store_ms, utc=utc)} {address}{tags} {short_body(message)}"


def show_message(found: Found, consumption: Sequence[Consumption] | None, utc: bool) -> Shown:
    """Everything about one message."""
    made = document(found, consumption)
    facts = {name: each for name, each in made.items() if name != "body"}
    views = show_result("message", MessageDocument, facts, utc)
    return made, *views, "body:", _long_body(found.message)


def short_body(message: Message) -> str:
    """The beginning of a body, on one line."""
    try:
        body = unpacked_body(message)
    except CompressionError as error:
        return f"({error})"
    text = text_of(body, 4 * SHORT_CHARACTERS)
    if text is None:
        return f"({show_bytes(len(body))} that are no text)"
    shown = show_text(text)
    is_cut = len(shown) > SHORT_CHARACTERS or len(body) > 4 * SHORT_CHARACTERS
    return shown[:SHORT_CHARACTERS] + "…" if is_cut else shown


def _long_body(message: Message) -> str:
    try:
        body = unpacked_body(message)
    except CompressionError as error:
        return f"({error})"
    text = text_of(body, LONG_BYTES)
    lines = _hex(body[:LONG_BYTES]) if text is None else map(show_text, text.split("\n"))
    rest = len(body) - LONG_BYTES
    return "\n".join(lines) + (f"\n… {show_bytes(rest)} more" if rest > 0 else "")


def _hex(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {row.hex(' '):<47}  {text}"


@command(app, "get")
async def get_message(
    session: Session,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The message's id, 32 or 56 hex digits.")
    ],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Then ID may also be a unique key.")
    ] = None,
    groups: Groups = False,
    body_to: BodyFile = None,
) -> None:
    """Show a message by its id."""
    found = await find(session.admin.messages, message_id, topic)
    await _show_one(session, found, groups, body_to)


@command(app, "by-key")
async def by_key(
    session: Session,
    topic: Topic,
    key: Annotated[str, typer.Argument(metavar="KEY", help="One of its keys.")],
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=64, help="At most so many.")] = 32,
) -> None:
    """List messages that have a key."""
    begin_ms, end_ms = span(since or "earliest", until, session.utc)
    search = await session.admin.messages.by_key(
        topic, key, begin_ms=begin_ms, end_ms=end_ms, count_max=limit
    )
    session.show(*show_messages(search.messages, session.utc))
    session.complain(search.failures)


@command(app, "by-unique-key")
async def by_unique_key(
    session: Session,
    topic: Topic,
    unique_key: Annotated[
        str, typer.Argument(metavar="KEY", help="The id that the producer was given.")
    ],
    groups: Groups = False,
    body_to: BodyFile = None,
) -> None:
    """Show the message with a unique key; the newest, if there are several."""
    search = await session.admin.messages.by_unique_key(topic, unique_key)
    session.complain(search.failures)
    if not search.messages:
        raise MessageNotFoundError(f"no broker that answered has the unique key {unique_key}")
    await _show_one(session, search.messages[-1], groups, body_to)


@command(app, "by-offset")
async def by_offset(
    session: Session,
    topic: Topic,
    queue: Annotated[int, typer.Argument(metavar="QUEUE", min=0, help="The queue's number.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Its place there.")],
    broker: Broker = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="So many from there on.")] = 1,
    groups: Groups = False,
    body_to: BodyFile = None,
) -> None:
    """Show the message at a place of a queue, or list several from there on."""
    found = await session.admin.messages.by_offset(topic, queue, offset, broker=broker, count=count)
    if count == 1:
        await _show_one(session, found[0], groups, body_to)
    else:
        session.show(*show_messages(found, session.utc))


@command(app, "by-time")
async def by_time(
    session: Session,
    topic: Topic,
    since: Since = "15m",
    until: Until = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Only this queue.")] = None,
    broker: Broker = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with messages as they come.")
    ] = False,
    interval: Interval = 1.0,
) -> None:
    """List messages in the order in which they were stored."""
    begin_ms, end_ms = span(since or "15m", until, session.utc)
    messages = session.admin.messages
    if follow:
        if until is not None:
            raise InvalidRequestError("--follow has no end: leave --until out")
        session.is_following = True
        async for found in messages.follow(
            topic, begin_ms, broker=broker, queue_id=queue, pause_seconds=interval
        ):
            session.show_line(document(found), line(found, session.utc))
    listed = await first(
        limit, messages.by_time(topic, begin_ms, end_ms, broker=broker, queue_id=queue)
    )
    session.show(*show_messages(listed, session.utc))


async def _show_one(session: Session, found: Found, groups: bool, body_to: Path | None) -> None:
    if body_to is not None:
        write_body(found, body_to)
    consumption = await session.admin.messages.consumption(found) if groups else None
    session.show(*show_message(found, consumption, session.utc))

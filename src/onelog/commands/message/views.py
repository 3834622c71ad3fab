"""How `onelog message` shows messages: tables, and documents."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from onelog.admin import documents
from onelog.admin.topics import MessageDocument
from onelog.client.admin.messages import Consumption, Found
from onelog.commands.operations import shown as show_result
from onelog.commands.session import Shown
from onelog.commands.terminal import (
    pick,
    show_bytes,
    show_text,
    text_of,
)
from onelog.commands.times import show_time
from onelog.errors import CompressionError
from onelog.message import Message
from onelog.record.compression import unpacked_body

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

"""How `onelog message` shows messages: tables, and documents."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.table import Table

from onelog.admin import documents
from onelog.admin.topics import MessageDocument
from onelog.client.admin.messages import Consumption, Found
from onelog.client.connection.address import host_text
from onelog.commands.operations import shown as show_result
from onelog.commands.session import Shown
from onelog.commands.terminal import (
    pick,
    show_bytes,
    show_count,
    show_text,
    table,
    text_of,
)
from onelog.commands.times import show_time
from onelog.errors import CompressionError
from onelog.message import TRANSACTION_MASK, Message, SysFlag, decode_properties
from onelog.record.compression import Compression, unpacked_body

SHORT_CHARACTERS = 60
LONG_BYTES = 4096
"""How much of a body is shown; all of it goes to a file with --body-to."""
TRANSACTIONS = {
    int(SysFlag.PREPARED): "prepared",
    int(SysFlag.COMMITTED): "committed",
    int(SysFlag.ROLLED_BACK): "rolled back",
}
"""What a message is in a transaction, by the bits of its sysFlag."""


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
    message = found.message
    made = Table.grid(padding=(0, 2))
    facts = {
        "id": message.message_id,
        "unique key": message.unique_key or "-",
        "topic": message.topic,
        "place": f"queue {message.queue_id} of {found.broker}, offset {message.queue_offset}",
        "log offset": str(message.log_offset),
        "tags": message.tags or "-",
        "keys": " ".join(message.keys) or "-",
        "born": f"{show_time(message.born_ms, utc=utc)} at {host_text(message.born_host)}",
        "stored": f"{show_time(message.store_ms, utc=utc)} at {host_text(message.store_host)}",
        "tried again": f"{message.reconsume_times} times",
        "transaction": TRANSACTIONS.get(message.sys_flag & TRANSACTION_MASK, "-"),
        "flag": str(message.flag),
        "size": f"{show_bytes(message.size)}, body {show_bytes(len(message.body))}"
        + _compression(message),
    }
    for name, value in facts.items():
        made.add_row(name, show_text(value))
    properties = sorted(decode_properties(message.properties).items())
    views = [made, table("properties", "name, value", rows=properties)]
    if consumption is not None:
        views.append(_consumption_table(message, consumption))
    return document(found, consumption), *views, "body:", _long_body(message)


def _consumption_table(message: Message, consumption: Sequence[Consumption]) -> Table:
    return table(
        "consumer groups",
        "group, >position, past this message",
        rows=(
            (
                each.group,
                each.position,
                "yes"
                if each.is_past
                else f"no, {show_count(message.queue_offset - each.position)} messages before it",
            )
            for each in consumption
        ),
    )


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


def _compression(message: Message) -> str:
    if not message.sys_flag & SysFlag.COMPRESSED:
        return ""
    kind = message.sys_flag >> 8 & 7
    known = kind in (Compression.LZ4, Compression.ZSTD)
    return f" compressed with {Compression(kind).name.lower() if known else 'zlib'}"

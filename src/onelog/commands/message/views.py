"""How `onelog message` shows messages: tables for people, documents for programs."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from onelog.client.admin.messages import Consumption, Found
from onelog.commands.terminal import show_bytes, show_count, show_text, table
from onelog.commands.times import show_time
from onelog.errors import CompressionError
from onelog.message import TRANSACTION_MASK, Message, SysFlag, decode_host, decode_properties
from onelog.record.compression import Compression, unpacked_body

SHORT_CHARACTERS = 60
LONG_BYTES = 4096
"""How much of a body is shown; all of it goes to a file with --body-to."""
_TRANSACTIONS = {
    int(SysFlag.PREPARED): "prepared",
    int(SysFlag.COMMITTED): "committed",
    int(SysFlag.ROLLED_BACK): "rolled back",
}


def document(found: Found, consumption: Sequence[Consumption] | None = None) -> dict[str, Any]:
    """A message, for programs. A body that is no text is in base64."""
    message = found.message
    made = {
        "id": message.message_id,
        "unique_key": message.unique_key,
        "topic": message.topic,
        "broker": found.broker,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "log_offset": message.log_offset,
        "tags": message.tags,
        "keys": message.keys,
        "born_ms": message.born_ms,
        "born_host": _host(message.born_host),
        "store_ms": message.store_ms,
        "store_host": _host(message.store_host),
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "size": message.size,
        "properties": decode_properties(message.properties),
        **_body_document(message),
    }
    if consumption is not None:
        made["groups"] = [
            {"group": each.group, "position": each.position, "past": each.is_past}
            for each in consumption
        ]
    return made


def _body_document(message: Message) -> dict[str, Any]:
    try:
        body = unpacked_body(message)
    except CompressionError as error:
        raw = base64.b64encode(message.body).decode()
        return {"body": raw, "body_encoding": "base64", "body_trouble": str(error)}
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def messages_table(messages: Sequence[Found], utc: bool) -> Table:
    """Messages, one per line."""
    made = table(
        f"messages: {show_count(len(messages))}",
        "stored", "broker", ">queue", ">offset", "tags", "keys", "id", "body",
    )  # fmt: skip
    for found in messages:
        message = found.message
        made.add_row(
            show_time(message.store_ms, utc=utc),
            found.broker,
            str(message.queue_id),
            str(message.queue_offset),
            show_text(message.tags or "-"),
            show_text(" ".join(message.keys) or "-"),
            message.message_id,
            short_body(message),
        )
    return made


def line(found: Found, utc: bool) -> str:
    """A message on one line."""
    message = found.message
    place = f"{found.broker}/{message.queue_id}@{message.queue_offset}"
    tags = f" [{show_text(message.tags)}]" if message.tags else ""
    return f"{show_time(message.store_ms, utc=utc)} {place}{tags} {short_body(message)}"


def details(
    found: Found, consumption: Sequence[Consumption] | None, utc: bool
) -> list[RenderableType]:
    """Everything about one message."""
    message = found.message
    made = Table.grid(padding=(0, 2))
    rows = {
        "id": message.message_id,
        "unique key": message.unique_key or "-",
        "topic": message.topic,
        "place": f"queue {message.queue_id} of {found.broker}, offset {message.queue_offset}",
        "log offset": str(message.log_offset),
        "tags": message.tags or "-",
        "keys": " ".join(message.keys) or "-",
        "born": f"{show_time(message.born_ms, utc=utc)} at {_host(message.born_host)}",
        "stored": f"{show_time(message.store_ms, utc=utc)} at {_host(message.store_host)}",
        "tried again": f"{message.reconsume_times} times",
        "transaction": _TRANSACTIONS.get(message.sys_flag & TRANSACTION_MASK, "-"),
        "flag": str(message.flag),
        "size": f"{show_bytes(message.size)}, body {show_bytes(len(message.body))}"
        + _compression(message),
    }
    for name, value in rows.items():
        made.add_row(name, show_text(value))
    views: list[RenderableType] = [made]
    properties = table("properties", "name", "value")
    for name, value in sorted(decode_properties(message.properties).items()):
        properties.add_row(show_text(name), show_text(value))
    views.append(properties)
    if consumption is not None:
        views.append(_consumption_table(message, consumption))
    return [*views, "body:", _long_body(message)]


def _consumption_table(message: Message, consumption: Sequence[Consumption]) -> Table:
    made = table("consumer groups", "group", ">position", "past this message")
    for each in consumption:
        behind = message.queue_offset - each.position
        made.add_row(
            show_text(each.group),
            str(each.position),
            "yes" if each.is_past else f"no, {show_count(behind)} messages before it",
        )
    return made


def short_body(message: Message) -> str:
    """The beginning of a body, on one line."""
    try:
        body = unpacked_body(message)
    except CompressionError as error:
        return f"({error})"
    text = _text(body, 4 * SHORT_CHARACTERS)
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
    text = _text(body, LONG_BYTES)
    lines = _hex(body[:LONG_BYTES]) if text is None else map(show_text, text.split("\n"))
    rest = len(body) - LONG_BYTES
    return "\n".join(lines) + (f"\n… {show_bytes(rest)} more" if rest > 0 else "")


def _text(body: bytes, bytes_max: int) -> str | None:
    """The beginning of a body as text; None if it is none."""
    head = body[:bytes_max]
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        # Where the head ends, a character may be cut in two.
        if len(body) > bytes_max and error.start > bytes_max - 4:
            return head[: error.start].decode()
        return None


def _hex(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {row.hex(' '):<47}  {text}"


def _host(host: bytes) -> str:
    name, port = decode_host(host)
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _compression(message: Message) -> str:
    if not message.sys_flag & SysFlag.COMPRESSED:
        return ""
    kind = message.sys_flag >> 8 & 7
    known = kind in (Compression.LZ4, Compression.ZSTD)
    return f" compressed with {Compression(kind).name.lower() if known else 'zlib'}"

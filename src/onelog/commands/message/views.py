"""How `onelog message` shows messages and what happened to them: tables, and documents."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from onelog.client.admin.messages import Consumption, Found
from onelog.client.admin.traces import MessageTrace, StepKind
from onelog.client.connection.address import host_text
from onelog.commands.session import Shown
from onelog.commands.terminal import (
    body_document,
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
Documents = Sequence[dict[str, Any]]
TRANSACTIONS = {
    int(SysFlag.PREPARED): "prepared",
    int(SysFlag.COMMITTED): "committed",
    int(SysFlag.ROLLED_BACK): "rolled back",
}
"""What a message is in a transaction, by the bits of its sysFlag."""
_WAITING = (StepKind.DELAYED, StepKind.PREPARED)


_MESSAGE = (
    "id=message_id unique_key topic queue=queue_id offset=queue_offset log_offset tags keys "
    "born_ms store_ms reconsume_times flag sys_flag size"
)


def document(found: Found, consumption: Sequence[Consumption] | None = None) -> dict[str, Any]:
    """A message, for programs. A body that is no text is in base64."""
    message = found.message
    made = {
        **pick(message, _MESSAGE),
        "broker": found.broker,
        "born_host": host_text(message.born_host),
        "store_host": host_text(message.store_host),
        "properties": decode_properties(message.properties),
        **_body_document(message),
    }
    if consumption is not None:
        made["groups"] = [pick(each, "group position past=is_past") for each in consumption]
    return made


def _body_document(message: Message) -> dict[str, Any]:
    try:
        return body_document(unpacked_body(message))
    except CompressionError as error:
        raw = base64.b64encode(message.body).decode()
        return {"body": raw, "body_encoding": "base64", "body_trouble": str(error)}


def show_messages(messages: Sequence[Found], utc: bool) -> Shown:
    """Messages, one per line."""
    documents = [document(each) for each in messages]
    return documents, table(
        f"messages: {show_count(len(messages))}",
        "stored=store_ms, broker, >queue, >offset, tags, keys, id, body",
        rows=(
            {**row, "body": short_body(found.message)}
            for row, found in zip(documents, messages, strict=True)
        ),
        utc=utc,
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


def show_trace(trace: MessageTrace, utc: bool) -> Shown:
    """The history of a message."""
    first = trace.first
    document: dict[str, Any] = {
        "id": first.message_id if first else None,
        "keys": first.keys if first else [],
        "tags": first.tags if first else None,
        **pick(trace, "unique_key topic born_ms traced"),
        "steps": [
            {
                "step": step.kind.value,
                "since_born_ms": step.at_ms - trace.born_ms,
                "retry": step.retry if step.retry >= 0 else None,
                **pick(step, "at_ms took_ms"),
                **{key: each or None for key, each in pick(step, _STEP).items()},
            }
            for step in trace.steps
        ],
        "groups": [
            {
                **pick(fate, "group state deliveries"),
                "at_ms": fate.at_ms or None,
                "since_born_ms": fate.at_ms - trace.born_ms if fate.at_ms else None,
            }
            for fate in trace.fates
        ],
    }
    return document, *_trace_views(trace, document["steps"], document["groups"], utc)


_STEP = "group place note id=message_id"


def _trace_views(
    trace: MessageTrace, steps: Documents, groups: Documents, utc: bool
) -> Iterator[RenderableType]:
    words = trace.first.keys if trace.first else []
    keys = f", keys {show_text(' '.join(words))}" if words else ""
    yield table(
        f"{show_text(trace.unique_key)} of topic {show_text(trace.topic)}{keys}",
        "time=at_ms, >since birth, step, group, where=place, >retry, >took, note",
        rows=(
            {
                **step,
                "since_birth": _latency(step["since_born_ms"]),
                "took": "-" if step["took_ms"] is None else f"{step['took_ms']:,} ms",
                "note": _note(step["note"] or "", utc),
            }
            for step in steps
        ),
        utc=utc,
    )
    if groups:
        yield table(
            "consumer groups",
            "group, state, since=at_ms, >after, >deliveries",
            rows=(
                {
                    **each,
                    "deliveries": each["deliveries"] or "-",
                    "after": _latency(each["since_born_ms"]) if each["at_ms"] else "-",
                }
                for each in groups
            ),
            utc=utc,
        )
    if trace.first is None:
        waits = any(step.kind in _WAITING for step in trace.steps)
        what = "consumers cannot see it yet" if waits else "the log does not have it any more"
        yield f"it is not in its topic: {what}"
    if not trace.traced:
        yield "no client traced it: when it was sent and delivered is not known"


def _note(note: str, utc: bool) -> str:
    word, _, time = note.partition(" ")
    if word == "until" and time.isdecimal():
        return f"until {show_time(int(time), utc=utc)}"
    return note


def _latency(ms: int) -> str:
    """A time since birth. Where clocks differ it may be negative, and people should see that."""
    return f"{ms:,} ms" if abs(ms) < 10_000 else f"{ms / 1000:,.1f} s"

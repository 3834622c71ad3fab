"""`onelog store dump`: messages of one queue, as they lie in the log."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from onelog.admin.documents import flag_names
from onelog.client.connection.address import host_text
from onelog.commands.store import Body
from onelog.commands.terminal import console, show_text, text_of
from onelog.commands.times import show_time
from onelog.errors import OffsetOutOfRangeError, StoreError, TopicNotFoundError
from onelog.message import INNER_COUNT, Message, SysFlag, decode_properties
from onelog.record.entries import PADDING_SIZE
from onelog.store.outcomes import outcomes_in
from onelog.store.reader import StoreReader
from onelog.store.readonly import open_readonly

_SHORT_BYTES = 120


class Found(NamedTuple):
    """What queue entries lead to: consecutive ones, if they share an inner batch."""

    first: int
    entries: int
    log_offset: int
    message: Message | None
    trouble: str


def dump(
    folder: Path,
    topic: str,
    queue_id: int,
    start: int | None,
    count: int,
    body: Body,
    *,
    all_: bool,
    as_json: bool,
) -> None:
    """Print messages of a queue from an offset on; `all_`: also those that are not committed."""
    reader = open_readonly(folder)
    low, high = _range(reader, topic, queue_id)
    if start is None:
        start = low
    if not low <= start < high and not (start == low == high):
        holds = f"it has {low}..{high - 1}" if high > low else "it is empty"
        raise OffsetOutOfRangeError(
            f"offset {start} is not in queue {queue_id} of topic {topic!r}: {holds}"
        )
    out = console()
    outcomes = None if all_ else outcomes_in(reader, [topic]).get((topic, queue_id))
    for found in read_queue(reader, topic, queue_id, start, count):
        message = found.message
        if outcomes is not None and message is not None and not outcomes.is_committed(message):
            continue
        if as_json:
            print(json.dumps(as_document(found, body)))
        else:
            _show(found, body, out)


def _range(reader: StoreReader, topic: str, queue_id: int) -> tuple[int, int]:
    queues = reader.queues()
    if topic not in queues:
        some = ", ".join([repr(name) for name in queues][:10]) or "none"
        raise TopicNotFoundError(f"there is no topic {topic!r} in {reader.folder}; topics: {some}")
    if queue_id not in queues[topic]:
        ids = ", ".join(map(str, queues[topic]))
        raise TopicNotFoundError(f"topic {topic!r} has no queue {queue_id}; queues: {ids}")
    return int(reader.min_offset(topic, queue_id)), int(reader.max_offset(topic, queue_id))


def read_queue(
    reader: StoreReader, topic: str, queue_id: int, start: int, count: int
) -> Iterator[Found]:
    """What the entries lead to, in order. An entry that leads nowhere is told, not skipped."""
    offset = start
    run: tuple[int, int, int] | None = None
    for log_offset, size, _ in reader.entries(topic, queue_id, start, count):
        is_padding = size == PADDING_SIZE
        if run and run[2] == log_offset and not is_padding:
            run = (run[0], run[1] + 1, log_offset)
        else:
            if run:
                yield _find(reader, *run)
            run = None if is_padding else (offset, 1, log_offset)
            if is_padding:
                yield Found(offset, 1, log_offset, None, "padding: this message is lost")
        offset += 1
    if run:
        yield _find(reader, *run)


def _find(reader: StoreReader, first: int, entries: int, log_offset: int) -> Found:
    try:
        return Found(first, entries, log_offset, reader.message_at(log_offset), "")
    except (StoreError, OffsetOutOfRangeError) as error:
        return Found(first, entries, log_offset, None, str(error))


# -- for programs ------------------------------------------------------------------------------


def as_document(found: Found, body: Body) -> dict[str, Any]:
    """A message as JSON has it. Times are in milliseconds since the epoch."""
    document: dict[str, Any] = {"queue_offset": found.first, "log_offset": found.log_offset}
    message = found.message
    if message is None:
        return {**document, "error": found.trouble}
    return {
        **document,
        "size": message.size,
        "message_id": message.message_id,
        "unique_key": message.unique_key,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "record_queue_offset": message.queue_offset,
        "inner_batch": _inner_count(message),
        "tags": message.tags,
        "keys": message.keys,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "sys_flag_means": flag_names(message.sys_flag),
        "born_ms": message.born_ms,
        "born_host": host_text(message.born_host),
        "store_ms": message.store_ms,
        "store_host": host_text(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_offset,
        "properties": decode_properties(message.properties),
        "body_bytes": len(message.body),
        **_body_fields(message.body, body),
    }


def _body_fields(content: memoryview, how: Body) -> dict[str, Any]:
    if how == "none":
        return {}
    raw, text = _shown(content, how)
    fields: dict[str, Any] = {"body_truncated": True} if len(raw) < len(content) else {}
    if text is None:
        return {**fields, "body_base64": base64.b64encode(raw).decode()}
    return {**fields, "body": text}


def _shown(content: memoryview, how: Body) -> tuple[bytes, str | None]:
    """The bytes to show, and the same as text if they are some."""
    size = len(content) if how == "full" else _SHORT_BYTES
    text = text_of(bytes(content), size)
    if text is None or not all(letter.isprintable() or letter in "\t\r\n" for letter in text):
        return bytes(content[:size]), None
    return text.encode(), text


def _inner_count(message: Message) -> int | None:
    """How many messages an inner batch has; None if it is none."""
    if not message.sys_flag & SysFlag.INNER_BATCH:
        return None
    stated = decode_properties(message.properties).get(INNER_COUNT, "1")
    return int(stated) if stated.isascii() and stated.isdigit() else 1


# -- for people --------------------------------------------------------------------------------


def _show(found: Found, how: Body, out: Console) -> None:
    message = found.message
    if message is None:
        out.print(f"offset {found.first}", style="bold red", end="  ")
        out.print(show_text(found.trouble), style="red", soft_wrap=True)
        return
    count = _inner_count(message)
    last = found.first + found.entries - 1
    title = f"offset {found.first}" if last == found.first else f"offsets {found.first}..{last}"
    out.print(title, style="bold", end="  ")
    out.print(f"log {found.log_offset}, {message.size} bytes, stored {show_time(message.store_ms)}")
    if count is not None:
        _line(out, "inner batch", f"{count} messages in one record, from {message.queue_offset} on")
    elif message.queue_offset != found.first:
        own = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
        _line(out, "shared with", own)
    _line(out, "id", message.message_id)
    born = f"{show_time(message.born_ms)} at {host_text(message.born_host)}"
    _line(out, "born", f"{born}, stored at {host_text(message.store_host)}")
    flags = ", ".join([f"flag {message.flag}", *flag_names(message.sys_flag)])
    if message.reconsume_times:
        flags += f", consumed {message.reconsume_times} times before"
    _line(out, "flags", flags)
    for name, value in decode_properties(message.properties).items():
        _line(out, name, value)
    if how != "none":
        raw, text = _shown(message.body, how)
        more = "..." if len(raw) < len(message.body) else ""
        name = f"body ({len(message.body)})"
        if text is None:
            _line(out, name, raw.hex(" ") + more)
        else:
            # Its own lines stay lines: a body is often a document.
            lines = [show_text(line) for line in (text + more).splitlines()]
            out.print(f"  {name}", style="dim", end="  ")
            out.print("\n".join(lines), soft_wrap=True)


def _line(out: Console, name: str, value: str) -> None:
    out.print(f"  {show_text(name)}", style="dim", end="  ")
    out.print(show_text(value), soft_wrap=True)

"""How `onelog delay` shows messages that wait: a table for people, documents for programs."""

from typing import Any

from rich.console import RenderableType

from onelog.client.admin.delays import Listing, Waiting
from onelog.commands.terminal import show_bytes, show_count, show_text, table
from onelog.commands.times import show_time
from onelog.wire.remoting.recall_handle import RecallHandle


def listing_document(listing: Listing) -> dict[str, Any]:
    """What waits, for programs."""
    return {
        "waiting": listing.count,
        "messages": [waiting_document(each) for each in listing.messages],
    }


def waiting_document(waiting: Waiting) -> dict[str, Any]:
    """One message that waits, for programs. Without a level it waits for a time of its own."""
    return {
        "due_ms": waiting.due_ms,
        "topic": waiting.topic,
        "queue": waiting.queue_id,
        "broker": waiting.broker,
        "level": waiting.level,
        "id": waiting.message_id,
        "unique_key": waiting.unique_key,
        "keys": list(waiting.keys),
        "tags": waiting.tags,
        "born_ms": waiting.born_ms,
        "body_bytes": waiting.body_bytes,
        "recall_handle": waiting.handle,
    }


def listing_views(listing: Listing, utc: bool) -> list[RenderableType]:
    """What waits, one message per line."""
    made = table(
        f"messages that wait: {show_count(listing.count)}",
        "due", "waits for", "topic", ">queue", "broker", "keys", "id", ">size",
        rows=(
            (
                show_time(each.due_ms, utc=utc),
                "its time" if each.level is None else f"level {each.level}",
                show_text(each.topic), str(each.queue_id), each.broker,
                show_text(" ".join(each.keys) or "-"),
                show_text(each.unique_key or each.message_id), show_bytes(each.body_bytes),
            )
            for each in listing.messages
        ),
    )  # fmt: skip
    rest = listing.count - len(listing.messages)
    return [made, f"… and {show_count(rest)} more, due later (--limit)"] if rest else [made]


def handle_document(handle: RecallHandle) -> dict[str, Any]:
    """A message that was taken back, for programs."""
    return {
        "topic": handle.topic,
        "broker": handle.broker,
        "unique_key": handle.unique_key,
        "due_ms": handle.time_ms - 1,
        "recall_handle": handle.encode(),
    }


def named(handle: RecallHandle, utc: bool) -> str:
    """A message, as one speaks of it."""
    due = show_time(handle.time_ms - 1, utc=utc)
    return f"message {show_text(handle.unique_key)} to {show_text(handle.topic)}, due {due},"

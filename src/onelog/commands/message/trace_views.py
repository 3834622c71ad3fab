"""How `onelog message trace` shows a message's story: tables for people, documents for programs."""

from typing import Any

from rich.console import RenderableType
from rich.table import Table

from onelog.client.admin.traces import MessageTrace, Step, StepKind
from onelog.commands.terminal import show_text, table
from onelog.commands.times import show_time

_WAITING = (StepKind.DELAYED, StepKind.PREPARED)


def document(trace: MessageTrace) -> dict[str, Any]:
    """The story, for programs."""
    first = trace.first
    return {
        "unique_key": trace.unique_key,
        "id": first.message_id if first else None,
        "topic": trace.topic,
        "keys": first.keys if first else [],
        "tags": first.tags if first else None,
        "born_ms": trace.born_ms,
        "traced": trace.traced,
        "steps": [
            {
                "step": step.kind.value,
                "at_ms": step.at_ms,
                "since_born_ms": step.at_ms - trace.born_ms,
                "group": step.group or None,
                "place": step.place or None,
                "retry": step.retry if step.retry >= 0 else None,
                "took_ms": step.took_ms,
                "note": step.note or None,
                "id": step.message_id or None,
            }
            for step in trace.steps
        ],
        "groups": [
            {
                "group": fate.group,
                "state": fate.state,
                "at_ms": fate.at_ms or None,
                "since_born_ms": fate.at_ms - trace.born_ms if fate.at_ms else None,
                "deliveries": fate.deliveries,
            }
            for fate in trace.fates
        ],
    }


def views(trace: MessageTrace, utc: bool) -> list[RenderableType]:
    """The story, for people."""
    made: list[RenderableType] = [_steps_table(trace, utc)]
    if trace.fates:
        made.append(_fates_table(trace, utc))
    if trace.first is None:
        waits = any(step.kind in _WAITING for step in trace.steps)
        what = "consumers cannot see it yet" if waits else "the log does not have it any more"
        made.append(f"it is not in its topic: {what}")
    if not trace.traced:
        made.append("no client traced it: when it was sent and delivered is not known")
    return made


def _steps_table(trace: MessageTrace, utc: bool) -> Table:
    words = trace.first.keys if trace.first else []
    keys = f", keys {show_text(' '.join(words))}" if words else ""
    made = table(
        f"{show_text(trace.unique_key)} of topic {show_text(trace.topic)}{keys}",
        "time", ">since birth", "step", "group", "where", ">retry", ">took", "note",
    )  # fmt: skip
    for step in trace.steps:
        made.add_row(
            show_time(step.at_ms, utc=utc),
            _latency(step.at_ms - trace.born_ms),
            step.kind.value,
            show_text(step.group) or "-",
            show_text(step.place) or "-",
            str(step.retry) if step.retry >= 0 else "-",
            "-" if step.took_ms is None else f"{step.took_ms:,} ms",
            _note(step, utc),
        )
    return made


def _note(step: Step, utc: bool) -> str:
    word, _, time = step.note.partition(" ")
    if word == "until" and time.isdecimal():
        return f"until {show_time(int(time), utc=utc)}"
    return show_text(step.note) or "-"


def _fates_table(trace: MessageTrace, utc: bool) -> Table:
    made = table("consumer groups", "group", "state", "since", ">after", ">deliveries")
    for fate in trace.fates:
        made.add_row(
            show_text(fate.group),
            fate.state,
            show_time(fate.at_ms, utc=utc),
            _latency(fate.at_ms - trace.born_ms) if fate.at_ms else "-",
            str(fate.deliveries or "-"),
        )
    return made


def _latency(ms: int) -> str:
    """A time since birth. Where clocks differ it may be negative, and people should see that."""
    return f"{ms:,} ms" if abs(ms) < 10_000 else f"{ms / 1000:,.1f} s"

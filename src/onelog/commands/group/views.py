"""How `onelog group` shows consumer groups: tables for people, documents for programs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from onelog.client.admin.groups import (
    GroupDescription,
    GroupMembers,
    GroupProgress,
    GroupSettings,
    GroupSummary,
    Moves,
)
from onelog.client.connection.nodes import Failure
from onelog.commands.terminal import attributes_text, show_count, show_text, table
from onelog.commands.times import show_policy, show_span, show_time

_WAYS = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


def summaries_document(found: Sequence[GroupSummary]) -> list[dict[str, Any]]:
    """Groups, for programs."""
    return [
        {
            "group": each.name,
            "system": each.is_system,
            "brokers": list(each.brokers),
            "members": len(each.members.members),
            "consume_type": each.members.consume_type,
            "message_model": each.members.message_model,
            "rate": each.progress.rate,
            "lag": each.progress.lag,
            "consumed_ms": each.progress.consumed_ms,
        }
        for each in found
    ]


def summaries_failures(found: Sequence[GroupSummary]) -> list[Failure]:
    """Who did not answer, each once."""
    return list(dict.fromkeys(failure for each in found for failure in each.progress.failures))


def summaries_table(found: Sequence[GroupSummary], now_ms: int) -> Table:
    """Groups, one per line, with the total lag."""
    return table(
        f"consumer groups: {show_count(len(found))}",
        "group", ">members", "way", ">messages/s", ">lag", ">behind", "brokers",
        rows=(
            (
                show_text(each.name), str(len(each.members.members)), _way(each.members) or "-",
                f"{each.progress.rate:,.1f}", show_count(each.progress.lag),
                _behind(each.progress, now_ms), ", ".join(each.brokers),
            )
            for each in found
        ),
        footer={0: "total", 4: show_count(sum(each.progress.lag for each in found))},
    )  # fmt: skip


def description_document(found: GroupDescription) -> dict[str, Any]:
    """All about a group, for programs."""
    return {
        "group": found.name,
        "lag": found.progress.lag,
        "rate": found.progress.rate,
        "consume_type": found.members.consume_type,
        "message_model": found.members.message_model,
        "start_from": found.members.start_from,
        "subscriptions": found.members.subscriptions,
        "mismatch": found.members.differing or None,
        "members": [asdict(member) for member in found.members.members],
        "settings": [asdict(each) for each in found.settings],
        "queues": _queues_document(found.progress),
    }


def _queues_document(progress: GroupProgress) -> list[dict[str, Any]]:
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker,
            "queue": queue.queue_id,
            "max_offset": queue.max_offset,
            "position": queue.position,
            "lag": queue.lag,
            "in_flight": queue.in_flight,
            "consumed_ms": queue.consumed_ms,
            "client_id": queue.client_id or None,
        }
        for queue in progress.queues
    ]


def description_views(found: GroupDescription, utc: bool) -> list[RenderableType]:
    """All about a group, for people."""
    views: list[RenderableType] = []
    if found.settings:
        views.append(_settings_table(found.settings))
    if found.members.members:
        views.append(_members_table(found.members))
        views.append(_subscriptions_table(found.members))
        if found.members.differing:
            views.append(_mismatch_table(found.members))
    else:
        views.append(f"{show_text(found.name)} has no live members")
    views.append(_progress_table(found.progress, utc))
    return views


def _settings_table(settings: Sequence[GroupSettings]) -> Table:
    return table(
        "settings",
        "broker", "enabled", "broadcast", "orderly", ">retries", "after", ">retry queues",
        ">minutes per message", "attributes",
        rows=(
            (
                each.broker, _yes(each.consume_enable), _yes(each.broadcast_enable),
                _yes(each.orderly), str(each.retry_times_max),
                show_text(show_policy(each.retry_policy)), str(each.retry_queues),
                str(each.consume_timeout_minutes), attributes_text(each.attributes),
            )
            for each in settings
        ),
    )  # fmt: skip


def _members_table(members: GroupMembers) -> Table:
    return table(
        f"members ({_way(members)})", "client", "address", "language", ">version",
        rows=(
            (show_text(each.client_id), show_text(each.address), show_text(each.language),
             str(each.version))
            for each in members.members
        ),
    )  # fmt: skip


def _subscriptions_table(members: GroupMembers) -> Table:
    rows = (tuple(map(show_text, each)) for each in members.subscriptions.items())
    return table("subscriptions", "topic", "filter", rows=rows)


def _mismatch_table(members: GroupMembers) -> Table:
    made = table(
        "members subscribe differently: each reads its queues with its own filter, so messages that"
        " only others want are passed over",
        "client", "topic", "filter",
        rows=(
            (show_text(client_id), show_text(topic), show_text(expression))
            for client_id, filters in members.differing.items()
            for topic, expression in filters.items()
        ),
    )  # fmt: skip
    made.title_style = "bold red"
    return made


def _progress_table(progress: GroupProgress, utc: bool) -> Table:
    owned = any(queue.client_id for queue in progress.queues)
    return table(
        f"progress: {progress.rate:,.1f} messages/s are consumed",
        "topic", "broker", ">queue", ">max offset", ">position", ">lag", ">in flight",
        "consumed up to", *(["member"] if owned else []),
        rows=(
            (
                show_text(queue.topic), queue.broker, str(queue.queue_id), str(queue.max_offset),
                str(queue.position), show_count(queue.lag), show_count(queue.in_flight),
                show_time(queue.consumed_ms, utc=utc),
                *([show_text(queue.client_id) or "-"] if owned else []),
            )
            for queue in progress.queues
        ),
        footer={
            0: "total", 2: str(len(progress.queues)), 5: show_count(progress.lag),
            6: show_count(sum(queue.in_flight for queue in progress.queues)),
        },
    )  # fmt: skip


def moves_document(moves: Moves, dry_run: bool) -> dict[str, Any]:
    """Moved positions, for programs."""
    return {
        "group": moves.group,
        "dry_run": dry_run,
        "queues": [
            {
                "topic": move.topic,
                "broker": move.broker,
                "queue": move.queue_id,
                "before": move.before,
                "after": move.after,
            }
            for move in moves.queues
        ],
    }


def moves_table(moves: Moves, dry_run: bool) -> Table:
    """Moved positions, a queue per line."""
    return table(
        f"{show_text(moves.group)} {'would be' if dry_run else 'was'} moved: {effect(moves)}",
        "topic", "broker", ">queue", ">before", ">after", ">difference",
        rows=(
            (
                show_text(move.topic), move.broker, str(move.queue_id),
                "-" if move.before is None else str(move.before), str(move.after),
                f"{move.after - (move.before or 0):+,}",
            )
            for move in moves.queues
        ),
    )  # fmt: skip


def effect(moves: Moves) -> str:
    """What moving means, in messages."""
    differences = [move.after - (move.before or 0) for move in moves.queues]
    skipped = sum(each for each in differences if each > 0)
    repeated = -sum(each for each in differences if each < 0)
    parts = []
    if skipped:
        parts.append(f"{show_count(skipped)} messages are skipped")
    if repeated:
        parts.append(f"{show_count(repeated)} messages come again")
    return " and ".join(parts) or "nothing changes"


def _way(members: GroupMembers) -> str:
    way = _WAYS.get(members.consume_type, members.consume_type.lower())
    return show_text(" ".join(filter(None, (way, members.message_model.lower()))))


def _behind(progress: GroupProgress, now_ms: int) -> str:
    """How long ago the message was stored that a group did last, where it lags most."""
    return show_span(now_ms - progress.consumed_ms) if progress.consumed_ms else "-"


def _yes(value: bool) -> str:
    return "yes" if value else "no"

"""How `onelog topic` shows topics: tables for people, documents for programs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from onelog.client.admin.cluster import BrokerSet
from onelog.client.admin.topics import Route, TopicDescription, TopicName, TopicStatus
from onelog.commands.terminal import attributes_text, show_count, show_text, table
from onelog.commands.times import show_time

_PERMISSIONS = ((4, "r"), (2, "w"), (1, "inherited"))


def show_perm(perm: int) -> str:
    """Permission bits in letters."""
    return " ".join(name for bit, name in _PERMISSIONS if perm & bit) or "none"


def names_document(names: Sequence[TopicName]) -> list[dict[str, Any]]:
    """Topics, for programs."""
    return [{"topic": each.name, "kind": each.kind.value} for each in names]


def names_table(names: Sequence[TopicName]) -> Table:
    """Topics, one per line."""
    rows = ((show_text(each.name), each.kind.value) for each in names)
    return table(f"topics: {show_count(len(names))}", "topic", "kind", rows=rows)


def route_document(route: Route) -> dict[str, Any]:
    """A route, for programs."""
    return {
        "topic": route.topic,
        "order": route.order,
        "brokers": [
            {
                "broker": each.brokers.name,
                "cluster": each.brokers.cluster,
                "addresses": {str(number): str(a) for number, a in each.brokers.members},
                "read_queues": each.read_queues,
                "write_queues": each.write_queues,
                "perm": each.perm,
            }
            for each in route.brokers
        ],
    }


def route_table(route: Route) -> Table:
    """A route, a broker per line."""
    made = table(
        f"route of {show_text(route.topic)}",
        "broker", "cluster", ">read queues", ">write queues", "permission", "addresses",
        rows=(
            (
                each.brokers.name, each.brokers.cluster, str(each.read_queues),
                str(each.write_queues), show_perm(each.perm), _addresses(each.brokers),
            )
            for each in route.brokers
        ),
    )  # fmt: skip
    if route.order:
        made.caption = f"ordered: {show_text(route.order)}"
    return made


def _addresses(brokers: BrokerSet) -> str:
    return ", ".join(
        f"{address} ({'master' if number == 0 else f'slave {number}'})"
        for number, address in brokers.members
    )


def status_document(status: TopicStatus) -> dict[str, Any]:
    """What queues hold, for programs."""
    return {
        "topic": status.topic,
        "messages": sum(queue.count for queue in status.queues),
        "put_rate": status.put_rate,
        "queues": [
            {
                "broker": queue.broker,
                "queue": queue.queue_id,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
                "messages": queue.count,
                "updated_ms": queue.updated_ms,
            }
            for queue in status.queues
        ],
    }


def status_table(status: TopicStatus, utc: bool) -> Table:
    """What queues hold, one per line, with a total."""
    newest = max((queue.updated_ms for queue in status.queues), default=0)
    return table(
        f"{show_text(status.topic)}: {status.put_rate:,.1f} messages/s come in",
        "broker", ">queue", ">min offset", ">max offset", ">messages", "last message",
        rows=(
            (
                queue.broker, str(queue.queue_id), str(queue.min_offset), str(queue.max_offset),
                show_count(queue.count), show_time(queue.updated_ms, utc=utc),
            )
            for queue in status.queues
        ),
        footer={
            0: "total", 1: str(len(status.queues)),
            4: show_count(sum(queue.count for queue in status.queues)),
            5: show_time(newest, utc=utc),
        },
    )  # fmt: skip


def description_document(description: TopicDescription) -> dict[str, Any]:
    """All about a topic, for programs."""
    return {
        **route_document(description.route),
        **status_document(description.status),
        "settings": [asdict(each) for each in description.settings],
        "groups": list(description.groups),
    }


def description_views(description: TopicDescription, utc: bool) -> list[RenderableType]:
    """All about a topic, for people."""
    settings = table(
        "settings", "broker", ">read queues", ">write queues", "permission", "ordered",
        "attributes",
        rows=(
            (
                each.broker, str(each.read_queues), str(each.write_queues), show_perm(each.perm),
                "yes" if each.order else "no", attributes_text(each.attributes),
            )
            for each in description.settings
        ),
    )  # fmt: skip
    groups = ", ".join(map(show_text, description.groups)) or "none"
    return [
        route_table(description.route),
        settings,
        status_table(description.status, utc),
        f"consumer groups: {groups}",
    ]

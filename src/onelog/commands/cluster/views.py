"""How `onelog cluster` shows clusters and brokers: tables for people, documents for programs."""

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from onelog.client.admin.cluster import BrokerSet, BrokerStatus, ClusterStatus
from onelog.commands.terminal import show_count, show_text, table
from onelog.commands.times import show_time


def clusters_document(brokers: Sequence[BrokerSet]) -> list[dict[str, Any]]:
    """Clusters, for programs."""
    return [
        {"cluster": cluster, "brokers": [each.name for each in members]}
        for cluster, members in _by_cluster(brokers).items()
    ]


def clusters_table(brokers: Sequence[BrokerSet]) -> Table:
    """Clusters, one per line."""
    clusters = _by_cluster(brokers)
    rows = []
    for cluster, members in clusters.items():
        masters = sum(each.master is not None for each in members)
        slaves = sum(len(each.members) for each in members) - masters
        names = show_text(", ".join(each.name for each in members))
        rows.append((show_text(cluster), str(masters), str(slaves), names))
    columns = ("cluster", ">masters", ">slaves", "brokers")
    return table(f"clusters: {len(clusters)}", *columns, rows=rows)


def _by_cluster(brokers: Sequence[BrokerSet]) -> dict[str, list[BrokerSet]]:
    clusters: dict[str, list[BrokerSet]] = {}
    for each in brokers:
        clusters.setdefault(each.cluster, []).append(each)
    return clusters


def brokers_document(brokers: Sequence[BrokerSet]) -> list[dict[str, Any]]:
    """Brokers, for programs."""
    return [
        {
            "cluster": each.cluster,
            "broker": each.name,
            "id": number,
            "role": _role(number),
            "address": str(address),
        }
        for each in brokers
        for number, address in each.members
    ]


def brokers_table(brokers: Sequence[BrokerSet]) -> Table:
    """Brokers, one process per line."""
    return table(
        "brokers", "cluster", "broker", ">id", "role", "address",
        rows=(
            (
                show_text(each.cluster), show_text(each.name), str(number), _role(number),
                str(address),
            )
            for each in brokers
            for number, address in each.members
        ),
    )  # fmt: skip


def _role(number: int) -> str:
    return "master" if number == 0 else "slave"


def status_document(status: ClusterStatus, details: bool) -> list[dict[str, Any]]:
    """How brokers are, for programs."""
    return [_broker_document(each, details) for each in status.brokers]


def _broker_document(broker: BrokerStatus, details: bool) -> dict[str, Any]:
    document = {
        "cluster": broker.cluster,
        "broker": broker.name,
        "id": broker.broker_id,
        "address": str(broker.address),
        "version": broker.version,
        "put_rate": broker.put_rate,
        "get_rate": broker.get_rate,
        "put_today": broker.put_today,
        "get_today": broker.get_today,
        "disk_used_ratio": broker.disk_used_ratio,
        "booted_ms": broker.booted_ms,
        "oldest_message_ms": broker.oldest_message_ms,
        "stalls": broker.stalls,
        "longest_stall_ms": broker.longest_stall_ms,
    }
    return {**document, "details": broker.details} if details else document


def status_views(status: ClusterStatus, details: bool, utc: bool) -> list[RenderableType]:
    """How brokers are, for people."""
    made = table(
        f"brokers: {len(status.brokers)}",
        "cluster", "broker", ">id", "address", "version", ">in/s", ">out/s", ">in today",
        ">out today", ">disk", "oldest message", "started", ">stalls",
        rows=(
            (
                show_text(each.cluster), show_text(each.name), str(each.broker_id),
                str(each.address), show_text(each.version), f"{each.put_rate:,.1f}",
                f"{each.get_rate:,.1f}", show_count(each.put_today), show_count(each.get_today),
                f"{each.disk_used_ratio:.0%}", show_time(each.oldest_message_ms, utc=utc),
                show_time(each.booted_ms, utc=utc),
                f"{each.stalls}\n{each.longest_stall_ms} ms" if each.stalls else "0",
            )
            for each in status.brokers
        ),
        footer={
            0: "total",
            5: f"{sum(each.put_rate for each in status.brokers):,.1f}",
            6: f"{sum(each.get_rate for each in status.brokers):,.1f}",
            7: show_count(sum(each.put_today for each in status.brokers)),
            8: show_count(sum(each.get_today for each in status.brokers)),
        },
    )  # fmt: skip
    return [made, *(_details_table(each) for each in status.brokers if details)]


def _details_table(broker: BrokerStatus) -> Table:
    details = sorted(broker.details.items())
    return table(
        f"{show_text(broker.name)} {broker.address}", "name", "value",
        rows=((show_text(name), show_text(value.strip())) for name, value in details),
    )  # fmt: skip

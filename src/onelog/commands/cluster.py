"""`onelog cluster`: clusters, their brokers, and how those are doing."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from onelog.client.admin.cluster import BrokerSet, ClusterStatus
from onelog.commands.options import Cluster, Follow, Interval
from onelog.commands.session import Session, Shown, connected
from onelog.commands.terminal import show_text, table

app = typer.Typer()


@app.command("list")
@connected
async def list_clusters(session: Session) -> None:
    """List clusters with the names of their brokers."""
    session.show(*show_clusters(await session.admin.clusters.brokers()))


@app.command("brokers")
@connected
async def list_brokers(session: Session, cluster: Cluster = None) -> None:
    """List brokers with their addresses, as the name servers know them."""
    session.show(*show_brokers(await session.admin.clusters.brokers(cluster)))


@app.command("status")
@connected
async def cluster_status(
    session: Session,
    cluster: Cluster = None,
    details: Annotated[
        bool, typer.Option("--details", help="Everything that brokers tell about themselves.")
    ] = False,
    follow: Follow = False,
    interval: Interval = 2.0,
) -> None:
    """Show what brokers do now: rates, messages of today, disk."""
    await session.present(
        lambda: session.admin.clusters.status(cluster),
        lambda status: show_status(status, details, session.utc),
        every=interval if follow else None,
    )


# -- what is shown -------------------------------------------------------------------------------


def show_clusters(brokers: Sequence[BrokerSet]) -> Shown:
    """Clusters, one per line."""
    clusters: dict[str, list[BrokerSet]] = {}
    for each in brokers:
        clusters.setdefault(each.cluster, []).append(each)
    document, rows = [], []
    for cluster, members in clusters.items():
        names = [each.name for each in members]
        document.append({"cluster": cluster, "brokers": names})
        masters = sum(each.master is not None for each in members)
        slaves = sum(len(each.members) for each in members) - masters
        rows.append((cluster, masters, slaves, names))
    columns = ("cluster", ">masters", ">slaves", "brokers")
    return document, table(f"clusters: {len(clusters)}", *columns, rows=rows)


def show_brokers(brokers: Sequence[BrokerSet]) -> Shown:
    """Brokers, one process per line."""
    document = [
        {
            "cluster": each.cluster,
            "broker": each.name,
            "id": number,
            "role": "master" if number == 0 else "slave",
            "address": str(address),
        }
        for each in brokers
        for number, address in each.members
    ]
    columns = ("cluster", "broker", ">id", "role", "address")
    return document, table("brokers", *columns, rows=document)


def show_status(status: ClusterStatus, details: bool, utc: bool) -> Shown:
    """How brokers are."""
    document: list[dict[str, Any]] = [
        {
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
            **({"details": broker.details} if details else {}),
        }
        for broker in status.brokers
    ]
    sums = {
        ">in/s": "put_rate", ">out/s": "get_rate", "#in today": "put_today",
        "#out today": "get_today",
    }  # fmt: skip
    totals = {heading[1:]: sum(each[key] for each in document) for heading, key in sums.items()}
    made = table(
        f"brokers: {len(status.brokers)}",
        "cluster", "broker", ">id", "address", "version", *sums.items(), ">disk",
        ("oldest message", "oldest_message_ms"), ("started", "booted_ms"), ">stalls",
        rows=(
            {
                **each,
                "disk": f"{each['disk_used_ratio']:.0%}",
                "stalls": Text(f"{each['stalls']}\n{each['longest_stall_ms']} ms")
                if each["stalls"]
                else 0,
            }
            for each in document
        ),
        footer={"cluster": "total", **totals},
        utc=utc,
    )  # fmt: skip
    tables = (
        table(
            f"{show_text(broker.name)} {broker.address}", "name", "value",
            rows=((name, value.strip()) for name, value in sorted(broker.details.items())),
        )
        for broker in status.brokers
        if details
    )  # fmt: skip
    return document, made, *tables

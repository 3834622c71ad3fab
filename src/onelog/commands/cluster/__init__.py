"""`onelog cluster`: clusters, their brokers, and how those are doing."""

from typing import Annotated

import typer

from onelog.commands.options import Cluster, Follow, Interval
from onelog.commands.session import Session, connected

app = typer.Typer(help="Clusters and brokers: who is there, how they are.", no_args_is_help=True)


@app.command("list")
@connected
async def list_clusters(session: Session) -> None:
    """List clusters with the names of their brokers."""
    from onelog.commands.cluster import views

    brokers = await session.admin.clusters.brokers()
    session.show(views.clusters_document(brokers), views.clusters_table(brokers))


@app.command("brokers")
@connected
async def list_brokers(session: Session, cluster: Cluster = None) -> None:
    """List brokers with their addresses, as the name servers know them."""
    from onelog.commands.cluster import views

    brokers = await session.admin.clusters.brokers(cluster)
    session.show(views.brokers_document(brokers), views.brokers_table(brokers))


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
    from onelog.commands.cluster import views

    await session.present(
        lambda: session.admin.clusters.status(cluster),
        lambda status: views.status_document(status, details),
        lambda status: views.status_views(status, details, session.utc),
        every=interval if follow else None,
    )

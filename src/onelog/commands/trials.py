"""`onelog demo` and `onelog bench`: to see what OneLog does, and how fast.

What they run is in packages of their own, which nothing else needs (decision 0007).
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from onelog.commands.clients import ClientSession, client_command
from onelog.commands.spark_options import Master, Remote, spark_extra


def demo(
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="Orders in a second.")] = 2_000,
    seconds: Annotated[int, typer.Option(min=1, max=86_400, help="For how long.")] = 30,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where everything is kept.", show_default="a new one for temporary files"
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="The page with the chart.", show_default="sales-board.html, in there"),
    ] = None,
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Start a server, send it orders, count them live and keep them as a table; then compare."""
    with spark_extra():
        from onelog_examples.demo import run

    if not run(rate, seconds, folder, page, master, remote):
        raise typer.Exit(1)


@client_command
def bench(
    session: ClientSession,
    mode: Annotated[
        Literal["send", "oneway", "batch", "consume", "roundtrip"],
        typer.Option(
            "--mode",
            "-m",
            help="Messages one by one, without answers, in batches, consumed, or there and back.",
        ),
    ] = "send",
    seconds: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="How long; consume may end earlier.")
    ] = 10.0,
    size: Annotated[int, typer.Option(min=1, max=4 << 20, help="Bytes of a body.")] = 128,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=100_000, help="Tasks in each process.")
    ] = 256,
    processes: Annotated[
        int, typer.Option("--processes", "-p", min=1, max=256, help="Processes of clients.")
    ] = 1,
    batch_size: Annotated[
        int, typer.Option(min=1, max=10_000, help="Messages in a batch (of mode batch).")
    ] = 32,
    backlog: Annotated[
        int, typer.Option(min=1, help="Messages to send first and then consume (mode consume).")
    ] = 200_000,
    queues: Annotated[
        int, typer.Option(min=1, max=65_535, help="Queues of the topic on each broker.")
    ] = 8,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Use this topic; else one is made, and deleted again."),
    ] = None,
) -> None:
    """Measure throughput and latency.

    Clients run in processes of their own, each with one connection to a broker and as many tasks
    as `--concurrency` says, which send (or wait) all the time. The latency of `send` and `batch` is
    that of one request; of `roundtrip`, from before the send until a consumer in the same process
    has the message. The broker has the machine's cores to share with the clients, unless it runs
    elsewhere.
    """
    from onelog_bench.running import run
    from onelog_bench.worker import Plan

    plan = Plan(mode, seconds, size, concurrency, processes, batch_size, backlog, queues, topic)
    run(session, plan)

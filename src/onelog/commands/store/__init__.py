"""`onelog store`: look into the files of a store, without changing anything.

All of it works on stores that RocketMQ wrote, too, and while a broker is running on them; but for
`export-config`, which prepares a store that nobody uses for RocketMQ.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from onelog.commands.serve import ConfigFile, Set

app = typer.Typer()

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that has `commitlog`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
IndexSlots = Annotated[
    int | None,
    typer.Option(min=1, help="Slots of an index file, if unusual (RocketMQ: maxHashSlotNum)."),
]
IndexEntries = Annotated[
    int | None,
    typer.Option(min=2, help="Entries of an index file, if unusual (RocketMQ: maxIndexNum)."),
]


Body = Literal["full", "short", "none"]
"""How much of a body is shown."""


@app.command("inspect")
def inspect_store(
    folder: Folder,
    json: Json = False,
    index_slots: IndexSlots = None,
    index_entries: IndexEntries = None,
) -> None:
    """Show files, queues, index, checkpoint, space, and who has the store open."""
    from onelog.commands.store.inspect import inspect

    inspect(folder, index_slots, index_entries, as_json=json)


@app.command("verify")
def verify_store(
    folder: Folder,
    json: Json = False,
    index_slots: IndexSlots = None,
    index_entries: IndexEntries = None,
    delay_levels: Annotated[
        str | None,
        typer.Option(help='The delay levels of the broker, if not the usual "1s 5s 10s ... 2h".'),
    ] = None,
) -> None:
    """Check every record, queue entry and index entry. Exit code 1 if something is wrong."""
    from onelog.commands.store.verify import verify

    if not verify(folder, index_slots, index_entries, delay_levels, as_json=json):
        raise typer.Exit(1)


@app.command("compare")
def compare_stores(
    first: Folder,
    second: Annotated[Path, typer.Argument(metavar="DIR2", help="The folder of the other store.")],
    json: Json = False,
) -> None:
    """Say whether two stores have the same log, byte for byte. Exit code 1 if they differ."""
    from onelog.commands.store.verify import compare

    if not compare(first, second, as_json=json):
        raise typer.Exit(1)


@app.command("dump")
def dump_queue(
    folder: Folder,
    topic: Annotated[str, typer.Option(help="The topic.")],
    queue: Annotated[int, typer.Option(min=0, help="The queue's id.")] = 0,
    start: Annotated[
        int | None, typer.Option("--from", help="First queue offset. [default: the oldest]")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many messages.")] = 10,
    body: Annotated[Body, typer.Option(help="How much of each body.")] = "short",
    all_: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also Kafka's aborted and open transactions, and the markers of their ends.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Print messages of a queue; with --json, one JSON document per line."""
    from onelog.commands.store.dump import dump

    dump(folder, topic, queue, start, count, body, all_=all_, as_json=json)


@app.command("export-config")
def export_config(folder: Folder, config: ConfigFile = None, set_: Set = None) -> None:
    """Write RocketMQ's config/*.json, so that its broker can go on with a store of OneLog.

    The broker must be stopped. Name its configuration as for `onelog broker`, if it has one.
    """
    from onelog import server
    from onelog.commands import serving

    server.export_config(serving.settings(config, set_, {"broker.store_path": folder}))
    typer.echo(f"topics, groups and positions are in {folder / 'config'}, as RocketMQ reads them")

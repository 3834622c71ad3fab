"""Options that commands of several groups have in common."""

from typing import Annotated

import typer

Cluster = Annotated[str | None, typer.Option(help="Only in this cluster.")]
Broker = Annotated[str | None, typer.Option(help="Only on the broker of this name.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", help="name=value; `name=` takes it away. May be repeated."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
IfMissing = Annotated[bool, typer.Option("--if-missing", help="Do nothing if it exists already.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Show it again and again.")]
Interval = Annotated[
    float, typer.Option(min=0.1, max=3600, help="Seconds between two looks, with --follow.")
]

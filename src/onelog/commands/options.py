"""Options that commands of several groups have, and what they mean."""

from typing import Annotated, Any

import typer

from onelog.errors import InvalidRequestError

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


def option(kind: object, default: object, text: str, *names: str, **more: Any) -> tuple[Any, Any]:
    """An option as `for_typer` and `with_options` take it: what typer is told, and the default."""
    return Annotated[kind, typer.Option(*names, help=text, **more)], default


def parse_attributes(given: list[str] | None) -> dict[str, str | None]:
    """The attributes by name; None takes one away."""
    parsed: dict[str, str | None] = {}
    for item in given or []:
        name, equals, value = item.partition("=")
        # Brokers take attributes as one text, in which these two have a meaning.
        if not equals or not name.strip() or "," in item:
            raise InvalidRequestError(f"--attribute {item}: write it as name=value, without commas")
        parsed[name.strip()] = value.strip() or None
    return parsed

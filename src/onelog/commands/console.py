"""`onelog console`: where the console of a broker is, and a browser on it."""

from typing import Annotated

import typer

from onelog.commands.serve import ConfigFile, Set
from onelog.errors import OnelogError


def console(
    host: Annotated[str | None, typer.Option(help="The broker's address.")] = None,
    port: Annotated[int | None, typer.Option(help="Its HTTP port.", min=1, max=65_535)] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    config: ConfigFile = None,
    set_: Set = None,
) -> None:
    """Say where the console of a broker is, if one answers there."""
    import http.client
    import webbrowser

    from onelog.commands import serving

    loaded = serving.settings(config, set_, {"broker.host": host, "http.port": port}).config
    _, called = serving.addresses(loaded.broker.host, loaded.http.port)
    address = f"http://{called}/"
    try:
        connection = http.client.HTTPConnection(called, timeout=5)
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise OnelogError(
            f"no console answers at {address} ({error}): start one with `onelog up`, or say where "
            "it is with --host and --port"
        ) from None
    if status != 200:
        raise OnelogError(f"what answers at {address} is no OneLog")
    typer.echo(address)
    if open_ and not webbrowser.open(address):
        raise OnelogError(f"found no browser to open {address} with")

"""What all commands that talk to a cluster share: their options, their output, how they end.

A command is a coroutine whose first argument is a `Session`; `connected` makes a function of it
that typer can call, with the options of a session in the place of that argument. (Commands that
send and consume have no `Session` but what is in `clients`.)

Exit codes: 0 done; 1 there is no such topic, group, message, broker or cluster; 2 anything else
that went wrong, also if only some brokers answered. Results go to stdout, complaints to stderr.
"""

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import typer

from onelog.commands.link import LINK, administrator
from onelog.errors import (
    BrokerNotFoundError,
    GroupNotFoundError,
    InvalidRequestError,
    KeyNotFoundError,
    MessageNotFoundError,
    OnelogError,
    TopicNotFoundError,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from onelog.client.admin.asynchronous import AsyncAdmin
    from onelog.client.connection.nodes import Failure

NOT_FOUND = (
    BrokerNotFoundError,
    GroupNotFoundError,
    KeyNotFoundError,
    MessageNotFoundError,
    TopicNotFoundError,
)
EXIT_NOT_FOUND = 1
EXIT_FAILED = 2

PANEL = "Output"
OPTIONS: dict[str, tuple[Any, Any]] = {
    **LINK,
    "json": (
        Annotated[
            bool,
            typer.Option("--json", help="Print JSON, for programs.", rich_help_panel=PANEL),
        ],
        False,
    ),
    "utc": (
        Annotated[
            bool,
            typer.Option(
                "--utc", help="Times in UTC instead of local time.", rich_help_panel=PANEL
            ),
        ],
        False,
    ),
}

P = ParamSpec("P")
T = TypeVar("T")


class Output:
    """The way to show what comes out of a command."""

    def __init__(self, *, as_json: bool, utc: bool) -> None:
        self.as_json = as_json
        self.utc = utc
        self.is_following = False
        self.exit_code = 0

    def show(self, document: Any, *views: "RenderableType") -> None:
        """Print a result: as JSON, or as people like to see it."""
        if self.as_json:
            import json

            print(json.dumps(document, indent=2), flush=True)
            return
        from onelog.commands.terminal import console

        out = console()
        for view in views:
            out.print(view, soft_wrap=isinstance(view, str))

    def show_line(self, document: Any, *views: "RenderableType") -> None:
        """The same for one of many results: JSON goes on one line."""
        if self.as_json:
            import json

            print(json.dumps(document, separators=(",", ":")), flush=True)
        else:
            self.show(document, *views)

    def complain(self, failures: "Iterable[Failure]") -> None:
        """Say who could not do its part; the command then ends with an error."""
        for failure in failures:
            complain(f"{failure.who}: {failure.reason}")
            self.exit_code = EXIT_FAILED

    def confirm(self, question: str, yes: bool) -> None:
        """Go on only if the user said so, by `--yes` or by an answer."""
        if yes:
            return
        try:
            agreed = typer.confirm(question, err=True)
        except typer.Abort:
            raise InvalidRequestError("nobody to ask, nothing was done: say --yes") from None
        if not agreed:
            raise InvalidRequestError("nothing was done")


class Session(Output):
    """A connection to a cluster, and the way to show what comes out of it."""

    def __init__(self, admin: "AsyncAdmin", *, as_json: bool, utc: bool) -> None:
        super().__init__(as_json=as_json, utc=utc)
        self.admin = admin

    async def follow(
        self,
        seconds: float,
        load: Callable[[], Awaitable[T]],
        document: Callable[[T], Any],
        views: "Callable[[T], Sequence[RenderableType]]",
        failures: "Callable[[T], Iterable[Failure]]",
    ) -> NoReturn:
        """Show a result again and again, until Ctrl-C. What goes wrong later is said, not fatal."""
        import asyncio

        from onelog.commands.terminal import console

        self.is_following = True
        out = console()
        shown = False
        while True:
            try:
                result = await load()
            except OnelogError as error:
                if not shown:
                    raise
                complain(str(error))
            else:
                if out.is_terminal and not self.as_json:
                    out.clear()
                self.show_line(document(result), *views(result))
                self.complain(failures(result))
                shown = True
            await asyncio.sleep(seconds)


def complain(text: str) -> None:
    """Print a line about something that went wrong."""
    from onelog.commands.terminal import show_text

    typer.secho(f"onelog: {show_text(text)}", fg=typer.colors.RED, err=True)


def connected(
    command: Callable[Concatenate[Session, P], Awaitable[None]],
) -> Callable[..., None]:
    """Make a function for typer of a coroutine that wants a session."""
    return for_typer(
        command,
        OPTIONS,
        lambda options, given: _run(lambda session: command(session, **given), options),  # type: ignore[call-arg]
    )


def for_typer(
    command: Callable[..., object],
    options: Mapping[str, tuple[Any, Any]],
    call: Callable[[dict[str, Any], dict[str, Any]], None],
) -> Callable[..., None]:
    """A function with the arguments of a command but its first, in whose place come `options`.

    `call` gets those, and the arguments.
    """
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in options.items()
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options}
        call(chosen, given)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + shared
    )
    hints = {name: hint for name, (hint, _) in options.items()}
    run.__annotations__ = {each.name: each.annotation for each in own} | hints
    return run


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Errors on purpose end a command with a line on stderr and an exit code."""
    try:
        yield
    except NOT_FOUND as error:
        complain(str(error))
        raise typer.Exit(EXIT_NOT_FOUND) from None
    except OnelogError as error:
        complain(str(error))
        raise typer.Exit(EXIT_FAILED) from None


def _run(command: Callable[[Session], Awaitable[None]], options: dict[str, Any]) -> None:
    import asyncio

    async def with_session() -> Session:
        async with administrator(options) as admin:
            session = Session(admin, as_json=options["json"], utc=options["utc"])
            sessions.append(session)
            await command(session)
            return session

    sessions: list[Session] = []
    try:
        with exit_codes():
            session = asyncio.run(with_session())
    except KeyboardInterrupt:
        # Ctrl-C is how one stops following; everywhere else it interrupts something.
        if not sessions or not sessions[0].is_following:
            raise
        return
    if session.exit_code:
        raise typer.Exit(session.exit_code)

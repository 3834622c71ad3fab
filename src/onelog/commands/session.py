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
import operator
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import typer

from onelog.commands.link import LINK, administrator
from onelog.commands.options import option
from onelog.errors import (
    BrokerNotFoundError,
    GroupExistsError,
    GroupNotFoundError,
    InvalidRequestError,
    KeyNotFoundError,
    MessageNotFoundError,
    OnelogError,
    TopicExistsError,
    TopicNotFoundError,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from onelog.client.admin.admin import AsyncAdmin
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
    "json": option(bool, False, "Print JSON, for programs.", "--json", rich_help_panel=PANEL),
    "utc": option(
        bool, False, "Times in UTC instead of local time.", "--utc", rich_help_panel=PANEL
    ),
}

P = ParamSpec("P")
T = TypeVar("T")

Shown = tuple[Any, ...]
"""A result as programs get it, and then the same as people like to see it, in one part or more."""


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

    def complain(self, failures: "Iterable[Failure | str]") -> None:
        """Say who could not do its part; the command then ends with an error."""
        for failure in failures:
            complain(str(failure))
            self.exit_code = EXIT_FAILED


class Session(Output):
    """A connection to a cluster, and the way to show what comes out of it."""

    admin: "AsyncAdmin"

    async def present(
        self,
        load: Callable[[], Awaitable[T]],
        shown: Callable[[T], Shown],
        failures: "Callable[[T], Iterable[Failure]]" = operator.attrgetter("failures"),
        *,
        every: float | None = None,
    ) -> None:
        """Show a result; with `every`, again after so many seconds, until Ctrl-C.

        What goes wrong after the first time is said, and does not end the command.
        """
        result = await load()
        if every is None:
            self.show(*shown(result))
            self.complain(failures(result))
            return
        from onelog.commands.terminal import console

        self.is_following = True
        out = console()
        while True:
            if out.is_terminal and not self.as_json:
                out.clear()
            self.show_line(*shown(result))
            self.complain(failures(result))
            result = await self._loaded_again(load, every)

    async def _loaded_again(self, load: Callable[[], Awaitable[T]], seconds: float) -> T:
        import asyncio

        while True:
            await asyncio.sleep(seconds)
            try:
                return await load()
            except OnelogError as error:
                complain(str(error))

    def show_done(self, kind: str, name: str, done: str, brokers: Sequence[str]) -> None:
        """Say on which brokers a topic or group was created, changed or deleted."""
        document = {kind: name, f"{done}_on": list(brokers)}
        self.show(document, f"{name}: {done} on {', '.join(brokers)}")

    async def create(
        self, kind: str, name: str, work: Awaitable[tuple[str, ...]], if_missing: bool
    ) -> None:
        """Create a topic or a group; with `if_missing` it may exist already."""
        try:
            self.show_done(kind, name, "created", await work)
        except (TopicExistsError, GroupExistsError):
            if not if_missing:
                raise
            self.show({kind: name, "created_on": []}, f"{name}: exists already")


def confirm(question: str, yes: bool) -> None:
    """`InvalidRequestError` unless the user agrees, by `--yes` or by an answer."""
    if yes:
        return
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        raise InvalidRequestError("nobody to ask, nothing was done: say --yes") from None
    if not agreed:
        raise InvalidRequestError("nothing was done")


def complain(text: str) -> None:
    """Print a line about something that went wrong."""
    from onelog.commands.terminal import show_text

    typer.secho(f"onelog: {show_text(text)}", fg=typer.colors.RED, err=True)


def command(
    app: typer.Typer, name: str, *hidden: str
) -> Callable[[Callable[Concatenate[Session, P], Awaitable[None]]], None]:
    """Make a command of a coroutine that wants a session, also under names that are not shown."""

    def decorate(function: Callable[Concatenate[Session, P], Awaitable[None]]) -> None:
        app.command(name)(connected(function))
        for each in hidden:
            app.command(each, hidden=True)(connected(function))

    return decorate


def connected(command: Callable[Concatenate[Session, P], Awaitable[None]]) -> Callable[..., None]:
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
    """A function that has `options` in the place of the first argument of a command.

    `call` gets the values of the options, and the other arguments.
    """
    own = list(inspect.signature(command).parameters.values())[1:]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options}
        call(chosen, given)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + _parameters(options)
    )
    hints = {name: hint for name, (hint, _) in options.items()}
    run.__annotations__ = {each.name: each.annotation for each in own} | hints
    return run


def _parameters(options: Mapping[str, tuple[Any, Any]]) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in options.items()
    ]


def with_options(
    parameter: str, options: Mapping[str, tuple[Any, Any]], build: Callable[..., object]
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Replace a parameter of a command by options; `build` makes its value out of theirs."""

    def decorate(command: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        @functools.wraps(command)
        async def run(session: Session, **given: Any) -> None:
            value = build(**{name: given.pop(name) for name in options})
            await command(session, **{parameter: value}, **given)

        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command).parameters.values():
            same = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
            parameters += _parameters(options) if each.name == parameter else same
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


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


@contextlib.contextmanager
def ended(session: Output) -> Iterator[None]:
    """A command ends with the exit code of its session, however it was told to stop."""
    try:
        yield
    except KeyboardInterrupt:
        # Ctrl-C is how one stops following; everywhere else it interrupts something.
        if not session.is_following:
            raise
        return
    if session.exit_code:
        raise typer.Exit(session.exit_code)


def _run(command: Callable[[Session], Awaitable[None]], options: dict[str, Any]) -> None:
    import asyncio

    session = Session(as_json=options["json"], utc=options["utc"])

    async def connect_and_run() -> None:
        async with administrator(options) as session.admin:
            await command(session)

    with exit_codes(), ended(session):
        asyncio.run(connect_and_run())

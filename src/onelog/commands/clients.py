"""What the commands share that send and consume: options, output, pace, and how they end.

Such a command is a plain function whose first argument is a `ClientSession`; `client_command` makes
a function of it that typer can call. It works with the SDK's synchronous classes, so Ctrl-C ends it
wherever it is.

Exit codes are those of `session`, and 130 for Ctrl-C or SIGTERM, unless that is how the command is
meant to be ended.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from onelog.commands import link
from onelog.commands.options import option
from onelog.commands.session import OPTIONS, Output, ended, exit_codes, for_typer

_CLIENT_OPTIONS: dict[str, tuple[Any, Any]] = {
    **OPTIONS,
    "namespace": option(
        str | None, None, "Put before topics and groups.", rich_help_panel=link.PANEL
    ),
}

Rate = Annotated[
    float | None, typer.Option(min=0.001, help="At most so many messages in a second.")
]
P = ParamSpec("P")


class ClientSession(Output):
    """What a client of the SDK is to be told, and the way to show what comes out of it."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(as_json=given["json"], utc=given["utc"])
        self.given = {k: str(v) if isinstance(v, Path) else v for k, v in given.items()}
        """The options of the command line; another process can be told them."""
        self.options = link.client_options(given)


def client_command(command: Callable[Concatenate[ClientSession, P], None]) -> Callable[..., None]:
    """Make a function for typer of one that wants a session."""
    return for_typer(
        command,
        _CLIENT_OPTIONS,
        lambda options, given: _run(lambda session: command(session, **given), options),  # type: ignore[call-arg]
    )


def _run(command: Callable[[ClientSession], None], options: dict[str, Any]) -> None:
    with exit_codes():
        session = ClientSession(options)
        with ended(session), _sigterm_is_ctrl_c():
            command(session)


@contextlib.contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    """Whoever ends the command politely gets the same order at the end as with Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        handle = signal.getsignal(signal.SIGINT)
        if callable(handle):
            handle(signal.SIGINT, frame)
        else:
            raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # Not in the main thread: signals are somebody else's there.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Pace:
    """Keeps a loop from going round more often than so many times in a second."""

    def __init__(self, per_second: float | None) -> None:
        self._pause_s = 1 / per_second if per_second else 0.0
        self._next_s = time.monotonic()

    def wait(self) -> None:
        """Return when it is time for the next."""
        if not self._pause_s:
            return
        now_s = time.monotonic()
        # After a pause nobody wants to see a burst that makes up for it.
        self._next_s = max(self._next_s, now_s - self._pause_s)
        if self._next_s > now_s:
            time.sleep(self._next_s - now_s)
        self._next_s += self._pause_s

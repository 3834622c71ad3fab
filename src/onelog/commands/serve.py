"""`onelog up`, `onelog broker`, `onelog nameserver`: the programs that serve.

`up` is everything in one process. With `--brokers N` it becomes a supervisor: the name server stays
here, each broker is a process of its own, and one that dies is started again.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from onelog.config import SETTINGS, Loaded, Value, load, value_of
from onelog.errors import OnelogError

BROKER_PORT_STEP = 10
RESTART_SECONDS_MIN = 0.5
RESTART_SECONDS_MAX = 10.0
PARENT_CHECK_SECONDS = 1.0
STEADY_SECONDS = 30.0
"""A broker that ran this long is restarted at once; one that did not, after a growing pause."""

ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, such as store.flush=sync. May be repeated."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]

log = logging.getLogger(__name__)


def overrides(given: list[str] | None, flags: dict[str, object]) -> dict[str, str]:
    """Settings from `--set` and from flags of their own; the latter only where they were used."""
    result = {}
    for item in given or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set {item}: write it as key=value")
        result[key.strip()] = value.strip()
    return result | {key: str(value) for key, value in flags.items() if value is not None}


def settings(config: Path | None, given: list[str] | None, **flags: object) -> Loaded:
    """The configuration of a program, from all its sources."""
    dotted = {key.replace("__", "."): value for key, value in flags.items()}
    return load(config, os.environ, overrides(given, dotted))


def run(main: Callable[[], Awaitable[None]], verbose: bool) -> None:
    """Run until Ctrl-C or SIGTERM."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_until_told(main))


async def _until_told(main: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.ensure_future(main())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _wait_for_ever() -> None:
    await asyncio.Event().wait()


async def _wait_for_end_of(parent: int | None) -> None:
    """A supervised broker does not outlive its supervisor, however that one ended."""
    while parent is None or os.getppid() == parent:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(PARENT_CHECK_SECONDS)


def say(text: str) -> None:
    """A line for the user, at once."""
    print(text, flush=True)


def nameserver(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder for its key-value file.")] = None,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
) -> None:
    """Run a name server."""
    kv_path = data / "kvConfig.json" if data else None
    loaded = settings(
        config, set_, nameserver__host=host, nameserver__port=port, nameserver__kv_path=kv_path
    )

    async def main() -> None:
        from onelog.server import running_nameserver

        async with running_nameserver(loaded) as server:
            say(f"name server  {server.address[0]}:{server.address[1]}")
            await _wait_for_ever()

    run(main, verbose)


def broker(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name in the cluster.")] = None,
    cluster: Annotated[str | None, typer.Option(help="The cluster's name.")] = None,
    advertised_host: Annotated[
        str | None, typer.Option(help="Address that clients are told.")
    ] = None,
    nameservers: Annotated[
        str | None, typer.Option("--nameservers", "-n", help="host:port;host:port")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the store.")] = None,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a broker."""
    loaded = settings(
        config,
        set_,
        broker__host=host,
        broker__port=port,
        broker__name=name,
        broker__cluster=cluster,
        broker__advertised_host=advertised_host,
        broker__nameservers=nameservers,
        broker__store_path=data,
    )

    async def main() -> None:
        from onelog.server import running_broker, tune_process

        async with running_broker(loaded) as server:
            tune_process()
            say(f"broker       {server.address}  {server.config.broker.name}")
            await _wait_for_end_of(parent)

    run(main, verbose)


def up(
    data: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("onelog-data"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    nameserver_port: Annotated[int, typer.Option(help="Port of the name server.")] = 9876,
    broker_port: Annotated[int, typer.Option(help="Port of the (first) broker.")] = 10911,
    brokers: Annotated[int, typer.Option(min=1, max=64, help="Broker processes.")] = 1,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
) -> None:
    """Run everything: a name server and a broker, with all data in one folder."""
    began = time.monotonic()
    loaded = settings(
        config,
        set_,
        nameserver__host=host,
        nameserver__port=nameserver_port,
        nameserver__kv_path=data / "kvConfig.json",
        broker__host=host,
        broker__port=broker_port,
        broker__store_path=data / "store",
    )
    if brokers == 1:
        run(lambda: _all_in_one(loaded, data, began), verbose)
    else:
        extra = ["--config", str(config)] if config else []
        extra += [word for item in set_ or [] for word in ("--set", item)]
        run(lambda: _supervise(loaded, data, brokers, extra, began), verbose)


def _greet(lines: list[tuple[str, str]], data: Path, began: float) -> None:
    for what, where in lines:
        say(f"{what:<12} {where}")
    say(f"{'data':<12} {data}")
    say(f"ready in {time.monotonic() - began:.2f} s; stop with Ctrl-C")


@contextlib.asynccontextmanager
async def _nameserver(loaded: Loaded) -> AsyncIterator[str]:
    from onelog.server import running_nameserver

    async with running_nameserver(loaded) as server:
        host, port = server.address
        yield f"{host}:{port}"


async def _all_in_one(loaded: Loaded, data: Path, began: float) -> None:
    from onelog.server import running_broker, tune_process

    async with _nameserver(loaded) as address:
        keyed = {**_as_overrides(loaded), "broker.nameservers": address}
        async with running_broker(load(overrides=keyed)) as server:
            tune_process()
            lines = [("name server", address), ("broker", server.address)]
            _greet(lines, data, began)
            await _wait_for_ever()


def _as_overrides(loaded: Loaded) -> dict[str, Value]:
    return {key: value_of(loaded.config, key) for key in SETTINGS}


# -- several broker processes ------------------------------------------------------------------


async def _supervise(
    loaded: Loaded, data: Path, count: int, extra: list[str], began: float
) -> None:
    first = loaded.config.broker.port
    async with _nameserver(loaded) as address, asyncio.TaskGroup() as group:
        lines = [("name server", address)]
        started = []
        for number in range(count):
            name = f"broker-{chr(ord('a') + number)}" if number < 26 else f"broker-{number}"
            port = first + number * BROKER_PORT_STEP
            arguments = [
                *("--host", loaded.config.broker.host, "--port", str(port), "--name", name),
                *("--nameservers", address, "--data", str(data / name), *extra),
            ]
            child = Child(name, arguments)
            started.append(child)
            group.create_task(child.keep_running())
            lines.append(("broker", f"{loaded.config.broker.host}:{port}  {name}"))
        for child in started:
            await child.ready.wait()
        _greet(lines, data, began)


class Child:
    """A broker process that is started again when it dies."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self._arguments = arguments
        self.ready = asyncio.Event()
        """Set once the broker serves for the first time."""

    async def keep_running(self) -> None:
        """Run the broker until this task is cancelled, then stop it cleanly."""
        pause_s = RESTART_SECONDS_MIN
        while True:
            began = time.monotonic()
            code = await self._run_once()
            if not self.ready.is_set():
                raise OnelogError(f"{self.name} could not start (exit code {code}): see above")
            if time.monotonic() - began >= STEADY_SECONDS:
                pause_s = RESTART_SECONDS_MIN
            say(f"{self.name} died (exit code {code}); starting it again in {pause_s:.1f} s")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RESTART_SECONDS_MAX)

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "onelog",
            "broker",
            *("--parent", str(os.getpid())),
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C goes to the whole group of a terminal; the supervisor passes the word on.
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            while line := await process.stdout.readline():
                if line.startswith(b"broker"):
                    if self.ready.is_set():
                        say(f"{self.name} serves again")
                    self.ready.set()
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

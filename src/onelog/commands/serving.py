"""What `onelog up`, `onelog broker` and `onelog nameserver` do.

`up` is everything in one process. With `--brokers N` it becomes a supervisor: the name server stays
here, each broker is a process of its own, and one that dies is started again. With `--replicas N`
these are the nodes of one replicated broker, and an etcd beside them says which is the master.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onelog.config_sources import Loaded, load, value_of
from onelog.errors import ConfigError, OnelogError
from onelog.logs import LOG_FORMAT, LineFormatter
from onelog.private_files import make_folder

if TYPE_CHECKING:
    from onelog.net.capacity import Capacity
    from onelog.server import BrokerServer

PORTS = ("kafka.port", "mqtt.port", "http.port", "amqp.port", "stomp.port", "grpc.port")
BROKER_PORT_STEP = 10
ETCD_PORT_STEP = 4
"""From the first broker's port to that of its etcd, which has the next one, too."""
RESTART_SECONDS_MIN = 0.5
RESTART_SECONDS_MAX = 10.0
PARENT_CHECK_SECONDS = 1.0
FILES_MAX = 1 << 20
KEPT_BYTES = 8 << 20
TRIM_SECONDS, TRIM_CPU_SECONDS, TRIM_BYTES_MAX = 1.0, 0.1, 128 << 20
"""How often gaps in memory are given back, after how much work, and up to how much memory: to look
for them takes the longer, the more there is."""
_PR_SET_PDEATHSIG = 1
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of `mallopt`."""
STEADY_SECONDS = 30.0
"""A broker that ran this long is restarted at once; one that did not, after a growing pause."""

log = logging.getLogger(__name__)


def start(text: str) -> int:
    """Run a server whose command line was read by `serve`; the exit code."""
    given = json.loads(text)
    os.umask(0o077)  # Also what others make for us, an etcd for instance, is nobody else's.
    try:
        run(_main(given), given["verbose"])
    except* OnelogError as group:  # One of several processes, or the only one.
        sys.stdout.flush()
        red, plain = ("\x1b[31m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
        for error in _leaves(group):
            print(f"{red}onelog: {error}{plain}", file=sys.stderr)
        code = 2
    except* KeyboardInterrupt:
        code = 130
    else:
        code = 0
    return code


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _main(given: dict[str, Any]) -> Coroutine[Any, Any, None]:
    """What a server does."""
    config = Path(given["config"]) if given["config"] else None
    flags = given["flags"]
    if given["command"] == "nameserver":
        return serve_nameserver(settings(config, given["set"], flags))
    if given["command"] == "broker":
        loaded = settings(config, given["set"], flags)
        return serve_broker(loaded, given["number"], given["parent"])
    data = Path(given["data"]) if given["data"] else None
    loaded, folder = settings_of_all(config, given["set"], flags, data)
    extra = ["--config", str(config)] if config else []
    extra += [word for item in given["set"] for word in ("--set", item)]
    extra += [
        word for name in PORTS if name in flags for word in ("--set", f"{name}={flags[name]}")
    ]
    if given["brokers"] > 1:
        return supervise(loaded, folder, given["brokers"], extra, given["began"])
    if given["replicas"] > 1:
        return supervise_set(loaded, folder, given["replicas"], extra, given["began"])
    return serve_all(loaded, folder, given["began"])


def settings(config: Path | None, given: list[str] | None, flags: Mapping[str, object]) -> Loaded:
    """The configuration of a program, from all its sources; of flags only those that were used."""
    result = {}
    for item in given or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--set {item}: write it as key=value")
        result[key.strip()] = value.strip()
    used = {key: str(value) for key, value in flags.items() if value is not None}
    return load(config, os.environ, result | used)


def settings_of_all(
    config: Path | None, given: list[str] | None, flags: Mapping[str, object], data: Path | None
) -> tuple[Loaded, Path]:
    """The configuration of name server and broker together, and the folder for everything.

    The folder decides where store and key-value file are, unless they were placed elsewhere.
    """
    folder = data or Path("onelog-data")
    loaded = settings(config, given, flags)
    for key, path in (("broker.store_path", "store"), ("nameserver.kv_path", "kvConfig.json")):
        if data is not None or loaded.sources[key] == "default":
            flags = {**flags, key: folder / path}
    return settings(config, given, flags), folder


def run(main: Coroutine[Any, Any, None], verbose: bool) -> None:
    """Run until Ctrl-C or SIGTERM."""
    raise_file_limit()
    keep_freed_memory()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(LOG_FORMAT))
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler])
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_until_signalled(main))


def raise_file_limit() -> None:
    """Let this process open as many files as it is allowed to.

    Each connection and each mapped file takes one. Many systems let a process have a thousand by
    default and half a million if it asks; the JVM asks, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("at most %d open files: %s", soft, error)


def keep_freed_memory() -> None:
    """Have glibc keep some memory that was freed, for the next large request.

    Batches of a megabyte come and go. Left to itself, it hands their memory back to the system each
    time, and to have it again costs up to three times what everything else does with a batch. Its
    threads take turns anyway: one arena for all of them leaves fewer gaps, and a thread gives back
    what is in those once a second.
    """
    with contextlib.suppress(OSError, AttributeError):  # Another C library does as it likes.
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        allocator.mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
        allocator.mallopt(_ARENA_MAX, 1)
        trimming = partial(_trim_forever, allocator.malloc_trim)
        threading.Thread(target=trimming, name="onelog-trimming", daemon=True).start()


def _trim_forever(trim: Callable[[int], int]) -> None:
    statm, page_bytes, used = Path("/proc/self/statm"), resource.getpagesize(), 0.0
    while True:
        time.sleep(TRIM_SECONDS)
        if (now := time.process_time()) - used >= TRIM_CPU_SECONDS:
            used = now
            with contextlib.suppress(OSError):  # Too many open files: the next time, then.
                _, resident, shared = statm.read_text().split()[:3]
                if (int(resident) - int(shared)) * page_bytes <= TRIM_BYTES_MAX:
                    trim(0)


async def _until_signalled(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _wait_for_end_of(parent: int | None) -> None:
    """A supervised broker does not outlive its supervisor, however that one ended."""
    while parent is None or os.getppid() == parent:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(PARENT_CHECK_SECONDS)


def say(text: str) -> None:
    """A line for the user, at once."""
    print(text, flush=True)


async def serve_nameserver(loaded: Loaded) -> None:
    """Run a name server."""
    from onelog.net.stall_watch import StallWatch

    async with _nameserver(loaded) as (shown, _):
        say(f"name server  {shown}")
        with StallWatch():
            await asyncio.Event().wait()


async def serve_broker(loaded: Loaded, number: int, parent: int | None) -> None:
    """Run a broker until its supervisor is gone; `number` says which of that one's it is."""
    from onelog.server import nth_broker, running_broker, tune_process

    async with running_broker(nth_broker(loaded, number)) as server:
        tune_process()
        first, *others = _served(server)
        for what, where in others:
            # Of a set, `onelog up` says the ports: a follower does not serve most of them yet.
            if not loaded.config.replication.is_on or what in server.left_out:
                say(f"{what:<12} {where}")
        say(f"{first[0]:<12} {first[1]}  {server.config.broker.name}")
        await _wait_for_end_of(parent)


def _greet(lines: list[tuple[str, str]], data: Path, began: float) -> None:
    for what, where in lines:
        say(f"{what:<12} {where}")
    say(f"{'data':<12} {data}")
    say(f"ready in {time.monotonic() - began:.2f} s; stop with Ctrl-C")


@contextlib.asynccontextmanager
async def _nameserver(
    loaded: Loaded, capacity: "Capacity | None" = None
) -> AsyncIterator[tuple[str, str]]:
    """A running name server: where it listens, and where brokers on this machine call it."""
    from onelog.server import running_nameserver

    async with running_nameserver(loaded, capacity) as server:
        yield addresses(*server.address)


def addresses(host: str, port: int) -> tuple[str, str]:
    """A listening address as it is written, and the one to call: nobody is called 0.0.0.0."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    shown, called = (f"[{each}]" if ":" in each else each for each in (host, near))
    return f"{shown}:{port}", f"{called}:{port}"


async def serve_all(loaded: Loaded, data: Path, began: float) -> None:
    """Run a name server and a broker in this process."""
    from onelog.net.capacity import checked_capacity
    from onelog.server import running_broker, tune_process

    capacity = checked_capacity(loaded)
    async with _nameserver(loaded, capacity) as (shown, address):
        broker = replace(loaded.config.broker, nameservers=address)
        loaded = Loaded(replace(loaded.config, broker=broker), loaded.sources)
        async with running_broker(loaded, capacity) as server:
            tune_process()
            _greet([("name server", shown), *_served(server)], data, began)
            await asyncio.Event().wait()


def _served(server: "BrokerServer") -> list[tuple[str, str]]:
    """What a broker serves, and where; or why not."""
    ports = {section: value_of(server.config, f"{section}.port") for section in server.gateways}
    host = server.address.rpartition(":")[0]
    lines = [
        (section, server.left_out.get(section) or f"{host}:{port}")
        for section, port in ports.items()
    ]
    # Terminals let people click on it.
    return [
        ("console", f"http://{where}/")
        if section == "http" and section not in server.left_out
        else (section, where)
        for section, where in lines
    ]


# -- several broker processes ------------------------------------------------------------------


async def supervise(loaded: Loaded, data: Path, count: int, extra: list[str], began: float) -> None:
    """Run a name server in this process, and brokers in others."""
    first = loaded.config.broker.port
    async with _nameserver(loaded) as (shown, address), asyncio.TaskGroup() as group:
        lines = [("name server", shown)]
        started = []
        for number in range(count):
            name = f"broker-{chr(ord('a') + number)}" if number < 26 else f"broker-{number}"
            port = first + number * BROKER_PORT_STEP
            arguments = [
                *("--host", loaded.config.broker.host, "--port", str(port), "--name", name),
                *("--nameservers", address, "--data", str(data / name), "--number", str(number)),
                *("--set", f"kafka.node_id={number}"),
                *extra,
            ]
            child = Child(name, arguments)
            started.append(child)
            group.create_task(child.keep_running())
            lines.append(("broker", f"{loaded.config.broker.host}:{port}  {name}"))
        for child in started:
            await child.ready.wait()
        _greet(lines, data, began)


async def supervise_set(
    loaded: Loaded, data: Path, count: int, extra: list[str], began: float
) -> None:
    """Run a name server in this process, and an etcd and the nodes of one broker in others."""
    from onelog.core.users.keys import KEY_FILE, Keys
    from onelog.replication.administration import ReplicaSet

    if not loaded.config.security.key_path:
        keys = Keys((data / KEY_FILE).absolute())
        await asyncio.to_thread(keys.load)
        extra = [*extra, "--set", f"security.key_path={keys.path}"]
    broker, name = loaded.config.broker, "broker-a"
    etcd = loaded.config.replication.etcd
    own = None if etcd else _etcd(data, broker.port + ETCD_PORT_STEP)
    etcd = etcd or f"127.0.0.1:{broker.port + ETCD_PORT_STEP}"
    ack = loaded.config.replication.ack
    if loaded.sources["replication.ack"] == "default":
        ack = "majority"
    async with (
        _nameserver(loaded) as (shown, address),
        asyncio.TaskGroup() as judges,
        asyncio.TaskGroup() as group,
    ):
        lines = [("name server", shown), ("etcd", etcd)]
        if own is not None:
            judges.create_task(own.keep_running())  # Ends last: nodes say goodbye to it.
        started = []
        for number in range(count):
            port = broker.port + number * BROKER_PORT_STEP
            node = f"{name}-{number}"
            arguments = [
                *("--host", broker.host, "--port", str(port), "--name", name),
                *("--id", str(number), "--etcd", etcd, "--replicas", str(count), "--ack", ack),
                *("--nameservers", address, "--data", str(data / node), "--number", str(number)),
                *extra,
            ]
            child = Child(node, arguments)
            started.append(child)
            group.create_task(child.keep_running())
            lines.append(("broker", f"{broker.host}:{port}  {name}, node {number}"))
        for child in started:
            await child.ready.wait()
        replicas = ReplicaSet(etcd, broker.cluster, name)
        await replicas.wait_for_master()
        await replicas.close()
        _greet([*lines, *_ports_of_set(loaded, count)], data, began)


def _ports_of_set(loaded: Loaded, count: int) -> Iterator[tuple[str, str]]:
    """Where the nodes of a set serve which protocol."""
    host = loaded.config.broker.host
    for key in PORTS:
        if (port := int(value_of(loaded.config, key))) > 0:
            section = key.partition(".")[0]
            ports = ", ".join(str(port + number) for number in range(count))
            if section == "http":
                yield "console", f"http://{host}:{port}/  each node: {ports}"
            else:
                yield section, f"{host}:{port}  the node that is master: {ports}"


def _etcd(data: Path, port: int) -> "Child":
    """The machine's etcd, with its files in the folder."""
    program = shutil.which("etcd")
    if program is None:
        raise OnelogError(
            "--replicas needs etcd, which is not on this machine: install it (Debian and Ubuntu: "
            "apt-get install etcd-server), or say where one runs: --set replication.etcd=host:port"
        )
    ours, theirs = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    command = [
        *(program, "--name", "onelog", "--data-dir", str(data / "etcd"), "--log-level", "warn"),
        *("--listen-client-urls", ours, "--advertise-client-urls", ours),
        *("--listen-peer-urls", theirs, "--initial-advertise-peer-urls", theirs),
        *("--initial-cluster", f"onelog={theirs}"),
        # What was is of no use to anybody: nodes ask for what is.
        *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"),
    ]
    make_folder(data)
    return Child("etcd", [], command, data / "etcd.log")


def _end_with_parent() -> None:
    """Have the system end this process when the one that started it ends, however."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A process, by default a broker's, that is started again when it dies."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        command: list[str] | None = None,
        log_path: Path | None = None,
    ) -> None:
        self.name = name
        self._arguments = arguments
        self._command = command
        self._log_path = log_path
        self.ready = asyncio.Event()
        """Set once it serves for the first time."""

    async def keep_running(self) -> None:
        """Run it until this task is cancelled, then stop it cleanly."""
        pause_s = RESTART_SECONDS_MIN
        while True:
            began = time.monotonic()
            code = await self._run_once()
            if not self.ready.is_set():
                raise OnelogError(f"{self.name} could not start (exit code {code}): see above")
            if time.monotonic() - began >= STEADY_SECONDS:
                pause_s = RESTART_SECONDS_MIN
            why = f": see {self._log_path}" if self._log_path else ""
            say(f"{self.name} died (exit code {code}){why}; starting again in {pause_s:.1f} s")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RESTART_SECONDS_MAX)

    async def _run_once(self) -> int:
        command = self._command or [
            *(sys.executable, "-m", "onelog", "broker", "--parent", str(os.getpid())),
            *self._arguments,
        ]
        errors = None if self._log_path is None else self._log_path.open("ab")
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            # Ctrl-C goes to the whole group of a terminal; the supervisor passes the word on.
            start_new_session=True,
            preexec_fn=_end_with_parent if self._command else None,
        )
        if errors is not None:
            errors.close()
            self.ready.set()
        try:
            assert process.stdout is not None
            while line := await process.stdout.readline():
                if line.startswith(b"broker"):
                    if self.ready.is_set():
                        say(f"{self.name} serves again")
                    self.ready.set()
                else:
                    say(f"{line.decode().rstrip()}  {self.name}")
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

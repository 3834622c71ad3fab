"""Handled keys in a real Redis and a real PostgreSQL: the promises that every store makes."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from onelog.client.extras.idempotent import DbApiStore, RedisStore
from onelog.clock import ManualClock
from tests.client.handled_keys_contract import PROMISES, Subject
from tests.client.redelivery import handled_once

pytestmark = pytest.mark.e2e

START_SECONDS_MAX = 30.0
INSTALL_SECONDS_MAX = 100.0


def _installed(program: str, package: str) -> str:
    """Where a program is; it is installed if it is not there, and the test skipped if it cannot."""
    found = _find(program)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(
            ["apt-get", "install", "-y", "--no-install-recommends", package],
            check=False,
            capture_output=True,
            timeout=INSTALL_SECONDS_MAX,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
        found = _find(program)
    if found is None:
        pytest.skip(f"there is no {program} here; install Debian's package {package}")
    return found


def _find(program: str) -> str | None:
    places = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *places]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_it_answers(ask: Callable[[], object], server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            ask()
            return
        except (redis.RedisError, psycopg.Error) as error:
            if server.poll() is not None:
                raise AssertionError("the server ended") from error
            if time.monotonic() > deadline:
                raise AssertionError("the server does not answer") from error
            time.sleep(0.05)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = _installed("redis-server", "redis-server")
    port = _free_port()
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        cwd=tmp_path_factory.mktemp("redis"),
        stdout=subprocess.DEVNULL,
    )
    url = f"redis://127.0.0.1:{port}/0"
    client = redis.Redis.from_url(url)
    try:
        _until_it_answers(client.ping, server)
        yield url
    finally:
        client.close()
        server.terminate()
        server.wait()


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    initdb, postgres = (_installed(name, "postgresql") for name in ("initdb", "postgres"))
    # Not in a folder of pytest's: those are for their owner's eyes only.
    with tempfile.TemporaryDirectory(prefix="onelog-postgres-") as folder:
        user = None
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root; its package brings a user.
            user = "postgres"
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        with _postgres(initdb, postgres, Path(folder), user) as address:
            yield address


@contextlib.contextmanager
def _postgres(initdb: str, postgres: str, folder: Path, user: str | None) -> Iterator[str]:
    data = folder / "data"
    subprocess.run(
        [initdb, "-D", data, "-U", "onelog", "--auth=trust", "--no-sync"],
        check=True,
        capture_output=True,
        user=user,
        cwd=folder,
    )
    port = _free_port()
    server = subprocess.Popen(
        [postgres, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"],
        user=user,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"host=127.0.0.1 port={port} user=onelog dbname=postgres"
    try:
        _until_it_answers(lambda: psycopg.connect(address).close(), server)
        yield address
    finally:
        server.send_signal(signal.SIGINT)  # Does not wait for those who are connected.
        server.wait()


@pytest.fixture
def in_redis(redis_url: str, request: pytest.FixtureRequest) -> Iterator[Subject]:
    client = redis.Redis.from_url(redis_url)
    client.flushdb()
    yield Subject(
        RedisStore(redis_url, group="one"),
        RedisStore(client, group="other"),
        lambda ms: time.sleep(ms / 1000),
    )
    client.close()


@pytest.fixture
def in_postgresql(database: str) -> Iterator[Subject]:
    with psycopg.connect(database) as connection:
        connection.execute("DROP TABLE IF EXISTS onelog_handled")
    clock = ManualClock()
    stores = [
        DbApiStore(lambda: psycopg.connect(database), group=group, clock=clock)
        for group in ("one", "other")
    ]
    yield Subject(stores[0], stores[1], clock.advance)
    for store in stores:
        store.close()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_redis_keeps_the_promises(promise: Callable[[Subject], None], in_redis: Subject) -> None:
    promise(in_redis)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_postgresql_keeps_the_promises(
    promise: Callable[[Subject], None], in_postgresql: Subject
) -> None:
    promise(in_postgresql)


async def test_messages_that_are_delivered_again_are_handled_once_with_redis(
    in_redis: Subject,
) -> None:
    await handled_once(in_redis.store)


async def test_messages_that_are_delivered_again_are_handled_once_with_postgresql(
    in_postgresql: Subject,
) -> None:
    await handled_once(in_postgresql.store)

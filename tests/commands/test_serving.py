"""`onelog up`, `broker` and `nameserver`, as people start and stop them."""

import asyncio
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from onelog.commands import serving
from onelog.commands.serving import addresses
from onelog.config import StoreConfig
from onelog.net.peer import Peer
from onelog.store.message_store import MessageStore
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.routes import ClusterInfo, TopicRouteData
from tests.complaints import complaints
from tests.gateways.kafka.test_cluster import leaders, make_topic, read_all, send_to
from tests.gateways.remoting.live import Client, bodies
from tests.ports import free_port
from tests.waiting import eventually

SMALL = ["--set", "store.segment_bytes=4194304", "--set", "store.index_slots=1000"]
SMALL += ["--set", "store.index_entries=4000", "--set", "store.disk_force_percent=99"]
SMALL += ["--set", "store.disk_clean_percent=98", "--set", "store.disk_refuse_percent=99"]


@pytest.mark.parametrize(
    ("host", "shown", "called"),
    [
        ("10.0.0.5", "10.0.0.5:9876", "10.0.0.5:9876"),
        ("0.0.0.0", "0.0.0.0:9876", "127.0.0.1:9876"),
        ("::", "[::]:9876", "[::1]:9876"),
    ],
)
def test_a_server_that_listens_everywhere_is_called_by_an_address(
    host: str, shown: str, called: str
) -> None:
    assert addresses(host, 9876) == (shown, called)


def test_gaps_in_memory_are_given_back_after_some_work(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[int] = []

    def trim(kept_bytes: int) -> int:
        given_back.append(kept_bytes)
        if len(given_back) == 2:
            raise EOFError
        monkeypatch.setattr(serving, "TRIM_CPU_SECONDS", 0.0)
        return 0

    monkeypatch.setattr(serving, "TRIM_SECONDS", 0.001)
    monkeypatch.setattr(serving, "TRIM_CPU_SECONDS", 0.01)
    monkeypatch.setattr(serving, "TRIM_BYTES_MAX", 1 << 40)
    with pytest.raises(EOFError):
        serving._trim_forever(trim)
    assert given_back == [0, 0]


class Program:
    """A running `onelog` and what it printed."""

    def __init__(self, *arguments: str, under: Sequence[str] = ()) -> None:
        """`under` is a command that starts what follows it."""
        self.child = subprocess.Popen(
            [*under, sys.executable, "-m", "onelog", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, pattern: str) -> str:
        """Read lines until one matches."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if re.search(pattern, line):
                return line
        assert self.child.stderr is not None
        raise AssertionError(f"it ended: {self.child.stderr.read()}")

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Stop it; the answer is its exit code and what it complained of."""
        self.child.send_signal(number)
        _, err = self.child.communicate(timeout=60)
        return self.child.returncode, complaints(err)


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.child.kill()
        program.child.communicate(timeout=60)


def up(programs: list[Program], data: Path, *more: str) -> tuple[Program, int, int]:
    names, broker = free_port(), free_port()
    program = Program(
        *("up", "--data", str(data), "--nameserver-port", str(names)),
        *("--broker-port", str(broker), *SMALL, *more),
    )
    programs.append(program)
    program.wait_for("^ready in")
    return program, names, broker


def processes(words: str) -> list[int]:
    """The ids of processes with these words on their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if words in line and " -m onelog " in line:
                found.append(int(folder.name))
    return found


async def connected(port: int) -> Client:
    return Client(await Peer.connect("127.0.0.1", port), [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_up_serves_and_stops_cleanly(
    tmp_path: Path, programs: list[Program], number: int
) -> None:
    program, names, broker = up(programs, tmp_path / "data")
    one = await connected(broker)
    assert (await one.send("t", b"hello")).code == 0
    asker = await connected(names)
    route = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t")
    found = TopicRouteData.decode(route.body)
    assert found.broker_datas[0].broker_addrs == {0: f"127.0.0.1:{broker}"}
    code, err = await asyncio.to_thread(program.stop, number)
    assert (code, err) == (0, "")
    assert not (tmp_path / "data" / "store" / "abort").exists()
    await one.peer.close()
    await asker.peer.close()


def test_a_server_takes_as_many_open_files_as_it_may(
    tmp_path: Path, programs: list[Program]
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    under = ["sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh"]
    program = Program("nameserver", "--port", "0", "--data", str(tmp_path), under=under)
    programs.append(program)
    program.wait_for("name server")
    limits = Path(f"/proc/{program.child.pid}/limits").read_text()
    (line,) = (line for line in limits.splitlines() if line.startswith("Max open files"))
    soft = line.split()[3]
    assert soft == "unlimited" or int(soft) > 256 or hard <= 256


def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "onelog", "nameserver", "--port", port, "--data", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert port in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("kind", ["--brokers", "--replicas"])
def test_a_taken_port_of_one_of_several_brokers_is_named_without_a_traceback(
    tmp_path: Path, kind: str
) -> None:
    if kind == "--replicas" and shutil.which("etcd") is None:
        pytest.skip("no etcd on this machine (Debian: apt-get install etcd-server)")
    first = free_port(50)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 10))
        taken.listen()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "onelog", "up", "--data", str(tmp_path), kind, "2"),
                *("--nameserver-port", str(free_port()), "--broker-port", str(first), *SMALL),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{first + 10}" in done.stderr
    assert re.search(
        r"onelog: broker-(b|a-1) could not start .exit code 2.: see above", done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "store.flush"], "key=value"),
        (["--set", "store.flash=sync"], "store.flush"),
        (["--set", "store.flush=maybe"], "async"),
        (["--broker-port", "99999"], "broker.port"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onelog", "up", "--data", str(tmp_path / "d"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


async def test_several_brokers_are_supervised(tmp_path: Path, programs: list[Program]) -> None:
    names, first, kafka = free_port(), free_port(), free_port()
    program = Program(
        *("up", "--data", str(tmp_path), "--nameserver-port", str(names)),
        *("--broker-port", str(first), "--kafka-port", str(kafka), "--brokers", "2", *SMALL),
    )
    programs.append(program)
    program.wait_for("^ready in")
    for port in (kafka, kafka + 1):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
    asker = await connected(names)
    info = ClusterInfo.decode((await asker.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert sorted(info.cluster_addr_table["DefaultCluster"]) == ["broker-a", "broker-b"]
    one = await connected(first + 10)
    assert (await one.send("t", b"kept")).code == 0
    await one.peer.close()

    (broker_b,) = processes(f"--port {first + 10} ")
    os.kill(broker_b, signal.SIGKILL)
    assert "broker-b died" in await asyncio.to_thread(program.wait_for, "died")
    await asyncio.to_thread(program.wait_for, "broker-b serves again")
    one = await connected(first + 10)
    assert bodies(await one.pull("t", 0)) == [b"kept"]
    await one.peer.close()
    await asker.peer.close()
    code, err = await asyncio.to_thread(program.stop)
    assert code == 0, err
    assert processes(str(tmp_path)) == []


async def test_a_whole_replicated_set_is_started_with_its_etcd(
    tmp_path: Path, programs: list[Program]
) -> None:
    if shutil.which("etcd") is None:
        pytest.skip("no etcd on this machine (Debian: apt-get install etcd-server)")
    names, first, mqtt = free_port(), free_port(50), free_port(3)
    program = Program(
        *("up", "--data", str(tmp_path), "--nameserver-port", str(names), "--kafka-port", "0"),
        *("--broker-port", str(first), "--replicas", "3", "--mqtt-port", str(mqtt), *SMALL),
    )
    programs.append(program)
    ports = await asyncio.to_thread(program.wait_for, "^mqtt ")
    assert f"127.0.0.1:{mqtt}  the node that is master: {mqtt}, {mqtt + 1}, {mqtt + 2}" in ports
    await asyncio.to_thread(program.wait_for, "^ready in")
    asker = await connected(names)

    async def nodes() -> dict[int, str]:
        info = ClusterInfo.decode((await asker.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        assert list(info.broker_addr_table) == ["broker-a"]
        found = info.broker_addr_table["broker-a"].broker_addrs
        return found if len(found) == 3 else {}

    # A node that has just become master registers anew.
    master = (await eventually(nodes, "all three are registered"))[0]
    one = await connected(int(master.rpartition(":")[2]))
    assert (await one.send("t", b"kept")).code == 0
    await one.peer.close()
    await asker.peer.close()
    code, err = await asyncio.to_thread(program.stop)
    assert code == 0, err
    assert processes(str(tmp_path)) == []


def test_without_etcd_on_the_machine_it_is_said_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onelog", "up", "--data", str(tmp_path), "--replicas", "3"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--replicas needs etcd, which is not on this machine" in done.stderr


def test_several_brokers_are_one_kafka_cluster_whichever_is_killed(
    tmp_path: Path, programs: list[Program]
) -> None:
    names, first, kafka = free_port(), free_port(), free_port()
    program = Program(
        *("up", "--data", str(tmp_path), "--nameserver-port", str(names)),
        *("--broker-port", str(first), "--kafka-port", str(kafka), "--brokers", "3", *SMALL),
    )
    programs.append(program)
    program.wait_for("^ready in")
    at = f"127.0.0.1:{kafka + 2}"
    make_topic(at, "orders", 6)
    placed = leaders(at, "orders")
    assert sorted(placed.values()) == [0, 0, 1, 1, 2, 2]
    values = {each: [b"%d" % each] for each in range(6)}
    assert len(send_to(at, "orders", values).places) == 6
    (broker_b,) = processes(f"--port {first + 10} ")
    os.kill(broker_b, signal.SIGKILL)
    program.wait_for("broker-b died")
    there = {each: [b"more"] for each, node in placed.items() if node != 1}
    assert len(send_to(at, "orders", there).places) == 4
    program.wait_for("broker-b serves again")
    assert leaders(f"127.0.0.1:{kafka + 1}", "orders") == placed
    read = read_all(f"127.0.0.1:{kafka}", "readers", "orders", 10)
    assert read == {each: values[each] + there.get(each, []) for each in range(6)}
    code, err = program.stop()
    assert code == 0, err


async def test_what_a_killed_broker_acknowledged_under_sync_flush_is_there_again(
    tmp_path: Path, programs: list[Program]
) -> None:
    program, _, broker = up(programs, tmp_path / "data", "--set", "store.flush=sync")
    acknowledged: list[int] = []
    enough = asyncio.Event()

    async def send_until_it_dies(number: int) -> None:
        one = await connected(broker)
        for n in range(100_000):
            answer = await one.send("t", b"%d-%d" % (number, n), e=number)
            assert answer.code == 0
            acknowledged.append(int(answer.ext["msgId"][16:], 16))
            if len(acknowledged) >= 400:
                enough.set()

    senders = [asyncio.create_task(send_until_it_dies(number)) for number in range(4)]
    async with asyncio.timeout(60):
        await enough.wait()
    program.child.kill()
    await asyncio.gather(*senders, return_exceptions=True)
    await asyncio.to_thread(program.child.wait)
    config = StoreConfig(segment_bytes=4 << 20, index_slots=1000, index_entries=4000)
    with MessageStore.open(tmp_path / "data" / "store", config) as store:
        assert not store.recovery.clean
        found = {
            int(message.log_offset)
            for queue_id in range(4)
            for message in store.messages("t", queue_id, 0, 1_000_000)
        }
    assert len(acknowledged) >= 400
    assert found.issuperset(acknowledged)

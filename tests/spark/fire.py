"""What is shot at: a broker and a driver in processes of their own, which can be started again."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from deltalake import DeltaTable

from onelog.client import Message, Producer, Queue
from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.topics import TopicChange
from onelog.store.readonly import open_readonly
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import ChildError, log_tail, spawn, stop, wait_until
from tests.e2e.remoting_probe import has_route, is_answering
from tests.spark.copying_driver import Copy

QUEUES = 4
MESSAGES_PER_SEND = 250
AT_THE_START = ("lookup_data_sources", "create_data_source", "plan_data_source_read")
"""What works only when a query begins, and is idle later."""
ROOT = Path(__file__).resolve().parent.parent.parent


class Cluster:
    """A name server, and a broker that may be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nameserver = OnelogPeer(folder / "nameserver")
        self.nameservers = self._nameserver.nameservers
        self.broker = OnelogPeer(folder / "broker", nameservers=self.nameservers)
        self.store = folder / "broker" / "data"

    def __enter__(self) -> Self:
        self._nameserver.start_nameserver()
        try:
            wait_until(lambda: is_answering(self.nameservers), "the name server", 60)
        except ChildError as error:
            raise ChildError(
                f"{error}\n{log_tail(self._folder / 'nameserver/onelog.log')}"
            ) from None
        self.broker.launch()
        self.broker.wait_until_ready(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.close()
        self._nameserver.close()

    def kill_broker(self) -> None:
        """And start it again, on the same folder."""
        self.broker.restart(signal.SIGKILL)

    def create(self, topic: str) -> None:
        """A topic with a few queues."""

        async def create() -> None:
            async with AsyncAdmin.connect(self.nameservers) as admin:
                change = TopicChange(read_queues=QUEUES, write_queues=QUEUES)
                await admin.topics.create(topic, change, cluster="DefaultCluster")

        asyncio.run(create())
        wait_until(lambda: has_route(self.nameservers, topic), f"the route of {topic}")

    def fill(self, topic: str, count: int, chance: random.Random) -> list[bytes]:
        """Send messages of many sizes, no two the same; what was sent."""
        bodies = [
            b"%d " % number + chance.randbytes(chance.randrange(200)) for number in range(count)
        ]
        with Producer("fire", nameserver=self.nameservers) as producer:
            for first in range(0, count, MESSAGES_PER_SEND):
                some = bodies[first : first + MESSAGES_PER_SEND]
                queue = Queue(topic, self.broker.broker_name, first // MESSAGES_PER_SEND % QUEUES)
                messages = [Message(topic, body, keys=[f"k{len(body)}"]) for body in some]
                producer.send_batch(messages, queue=queue)
        return bodies

    def bodies(self, topic: str) -> list[bytes]:
        """What a topic holds, by its files."""
        reader = open_readonly(self.store)
        return [
            bytes(message.body)
            for queue in range(QUEUES)
            for message in reader.messages(topic, queue, 0, 1 << 30)
        ]


def table_bodies(copy: Copy) -> list[bytes]:
    """What the table of a copy holds."""
    table = DeltaTable(Path(copy.folder) / copy.source)
    bodies: list[bytes] = table.to_pyarrow_table(columns=["body"]).column("body").to_pylist()
    return bodies


class Driver:
    """A Spark driver that copies (see `copying_driver`), with its JVM and its Python workers."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "driver.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._dead: list[subprocess.Popen[bytes]] = []

    def begin(self, copy: Copy) -> None:
        """Have it copy; a driver that was killed before is started again."""
        if self._child is None:
            command = [sys.executable, "-m", "tests.spark.copying_driver"]
            self._child = spawn(command, self._log, {"PYTHONPATH": str(ROOT)}, pipes=True)
        assert self._child.stdin is not None
        self._child.stdin.write(copy.line())
        self._child.stdin.flush()

    def batches(self, copy: Copy) -> int:
        """How many batches of the copy have begun."""
        self._check()
        return sum(path.name.isdigit() for path in copy.checkpoints.glob("*/offsets/*"))

    def is_done(self, copy: Copy) -> bool:
        """Whether everything is copied."""
        self._check()
        return copy.done.exists()

    def _check(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            raise ChildError(f"the driver ended by itself\n{self.log()}")

    def log(self) -> str:
        """The end of what it said."""
        return log_tail(self._log, 60)

    def kill(self, *, with_jvm: bool) -> None:
        """SIGKILL. Without its JVM, that one lives on until it notices, as a zombie would."""
        assert self._child is not None
        child, self._child = self._child, None
        if with_jvm:
            stop(child, signal.SIGKILL)
        else:
            child.kill()
            child.wait()
            self._dead.append(child)

    def kill_worker(self, chance: random.Random) -> str:
        """SIGKILL to one of the Python processes that Spark has started; what it was."""
        assert self._child is not None
        found: dict[str, list[int]] = {}
        for pid in _descendants(self._child.pid):
            module = _module(pid)
            if module and not module.endswith(AT_THE_START):
                found.setdefault(module, []).append(pid)
        module = chance.choice(sorted(found))
        os.kill(chance.choice(sorted(found[module])), signal.SIGKILL)
        return module

    def close(self) -> None:
        """Kill whatever is left."""
        for child in [*self._dead, *filter(None, [self._child])]:
            stop(child, signal.SIGKILL)
        self._dead.clear()
        self._child = None


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = [int(each) for each in children.read_text().split()]
        except OSError:
            continue  # The thread has ended meanwhile.
        for child in found:
            yield child
            yield from _descendants(child)


def _module(pid: int) -> str:
    """What a Python process of Spark runs; empty for any other."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    modules = [word for word in words if word.startswith("pyspark.")]
    return modules[-1] if modules else ""

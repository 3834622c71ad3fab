"""RocketMQ's own integration tests, of the package in which it publishes them, on OneLog's brokers.

python -m tests.e2e.test_java_originals client.consumer.pop.PopOrderlyIT#testReentrant ...
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.java_toolchain import JavaProgram, build
from tests.e2e.onelog_peer import OnelogPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(900)]

ROCKETMQ = "5.5.0"
PACKAGE = "rocketmq.test."
SUITES = (
    "client.consumer.pop.PopPriorityIT",
    "client.consumer.pop.PopOrderlyIT client.consumer.pop.BatchAckIT "
    "client.consumer.pop.NotificationIT client.consumer.pop.PopBigMessageIT "
    "client.consumer.pop.PopMessageAndForwardingIT",
    "client.producer.batch.BatchSendIT recall.SendAndRecallDelayMessageIT recall.RecallWithTraceIT",
    "offset.OffsetResetIT offset.OffsetResetForPopIT offset.LagCalculationIT#testCalculateLag "
    "retry.PopConsumerRetryIT",
    "route.CreateAndUpdateTopicIT#testCreateOrUpdateTopic smoke.NormalMessageSendAndRecvIT",
    "grpc.v2.ClusterGrpcIT",
)
"""What is left out needs RocketMQ's own code in the broker's process; or static topics, which are
refused here (`CreateAndUpdateTopicIT.testStaticTopicNotAffected`). `ClusterGrpcIT` runs RocketMQ's
own proxy in front of OneLog's brokers."""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[list[OnelogPeer]]:
    """Three brokers and a name server, set up as those of the tests."""
    settings = {"ONELOG_BROKER_PULL_COUNT_MAX": "1024"}
    with contextlib.ExitStack() as stack:
        found: list[OnelogPeer] = []
        for number in range(3):
            made = OnelogPeer(
                folder / str(number),
                settings=settings,
                broker_name=f"broker-{number}",
                nameservers=found[0].nameservers if found else None,
                may_stall=True,
            )
            found.append(stack.enter_context(made))
        yield found


def run(folder: Path, *tests: str, timeout_s: float = 800) -> dict[str, str | None]:
    """Each test by its name, and how it failed."""
    program = build("originals", ROCKETMQ, "onelog.originals.Main", folder)
    with cluster(folder) as brokers:
        places = ",".join(f"{each.broker_name}@{each.broker_address}" for each in brokers)
        port = brokers[0].nameservers.partition(":")[2]
        options = (f"-Donelog.brokers={places}", f"-Donelog.nameserver={port}")
        program = JavaProgram(program.main, program.classpath, program.home, options)
        lines = program.run(*tests, timeout_s=timeout_s)
    return {line["name"]: line["failed"] for line in lines}


@pytest.mark.parametrize("suite", SUITES)
def test_what_rocketmq_expects_of_itself(tmp_path: Path, suite: str) -> None:
    failed = {name: why for name, why in run(tmp_path, *suite.split()).items() if why}
    assert not failed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        for name, failed in run(Path(made), *sys.argv[1:]).items():
            told = [line for line in (failed or "").splitlines() if PACKAGE in line]
            print("FAILED" if failed else "passed", name, (failed or "").partition("\n")[0])
            print(*told, sep="\n", end="\n" if told else "")

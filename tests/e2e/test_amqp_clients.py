"""Other people's AMQP clients that are no Python: what they do with OneLog and with RabbitMQ."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.java_toolchain import JavaFailedError, JavaMissingError, build
from tests.e2e.onelog_amqp import OnelogAmqp
from tests.e2e.rabbitmq_peer import MISSING, RabbitmqPeer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
JAVA_CLIENT = "5.25.0"
GO_PROGRAM = Path(__file__).resolve().parent / "go" / "amqp"


@pytest.fixture(params=["onelog", "rabbitmq"])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OnelogAmqp | RabbitmqPeer]:
    """A broker, OneLog or the other."""
    if request.param == "onelog":
        with OnelogAmqp(tmp_path / "onelog") as ours:
            yield ours
    elif MISSING:
        pytest.skip(MISSING)
    else:
        with RabbitmqPeer(tmp_path / "rabbitmq") as theirs:
            yield theirs


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
def test_the_go_client_closes_channels_that_the_broker_closes(
    peer: OnelogAmqp | RabbitmqPeer, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    built = subprocess.run(
        ["go", "build", "-o", str(program), "."],
        cwd=GO_PROGRAM,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "dial tcp" in built.stderr or "403 Forbidden" in built.stderr:
        pytest.skip("the Go client cannot be downloaded here")
    assert built.returncode == 0, built.stderr
    # RabbitMQ itself ends a connection where two goroutines close channels at the same moment.
    workers = "4" if isinstance(peer, OnelogAmqp) else "1"
    ended = subprocess.run(
        [str(program), peer.url, "go", workers],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_java_client_casts_expires_commits_and_closes(
    peer: OnelogAmqp | RabbitmqPeer, tmp_path: Path
) -> None:
    try:
        program = build("amqp", JAVA_CLIENT, "onelog.amqp.Main", tmp_path)
    except JavaMissingError as error:
        pytest.skip(str(error))
    except JavaFailedError as error:
        if "Could not transfer" in str(error) or "Cannot access" in str(error):
            pytest.skip("the Java client cannot be downloaded here")
        raise
    got = {line["name"]: line["got"] for line in program.run(f"{peer.url}%2F")}
    assert got == {"deaths": 3, "expired": True, "transaction": [0, 12_000], "open": True}

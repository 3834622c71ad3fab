"""The broker is killed in each phase of a message's life: nothing confirmed is lost, nothing that
was acknowledged and recorded comes again, nothing comes that was never published."""

import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.e2e.amqp_crash import ALL, rounds
from tests.e2e.onelog_amqp import OnelogAmqp
from tests.gateways.amqp.live import connected, got, ready

PERSISTENT = pika.BasicProperties(delivery_mode=2)
RECORDED_SECONDS = 0.3
"""Acknowledgements are recorded after a few milliseconds."""


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[OnelogAmqp]:
    """A broker process on ports that it keeps."""
    with OnelogAmqp(tmp_path, {"store.segment_bytes": 16 << 20}) as broker:
        yield broker


def test_confirmed_is_kept_and_acknowledged_is_gone(killable: OnelogAmqp) -> None:
    with connected(killable.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(30):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        tags = [got(channel, "q", auto_ack=False)[0].delivery_tag for _ in range(10)]
        for tag in tags[:5]:
            channel.basic_ack(tag)
        ready(channel, "q")
        time.sleep(RECORDED_SECONDS)
        killable.kill()
    killable.start()
    killable.wait_until_ready()
    with connected(killable.url) as connection:
        channel = connection.channel()
        found = []
        while (one := channel.basic_get("q", auto_ack=True))[0] is not None:
            found.append((one[2], one[0].redelivered))
        assert [body for body, _ in found] == [b"%d" % number for number in range(5, 30)]
        assert [again for _, again in found][:5] == [True] * 5


def test_what_was_told_holds_after_a_kill(killable: OnelogAmqp) -> None:
    rounds(killable, 1, 7)


@pytest.mark.soak
@pytest.mark.timeout(1_400)
@pytest.mark.parametrize("phases", [ALL, *((phase,) for phase in ALL)], ids="-".join)
def test_what_was_told_holds_after_many_kills(
    killable: OnelogAmqp, phases: tuple[str, ...]
) -> None:
    print(f"{'-'.join(phases)}: {rounds(killable, 40, 11, phases)}")

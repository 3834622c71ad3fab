import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from onelog.client import AsyncProducer, Message
from onelog.embedded_broker import EmbeddedBroker

pytest_plugins = ["pytester"]


def test_a_test_has_a_broker(onelog_broker: EmbeddedBroker) -> None:
    with onelog_broker.producer("shop") as producer:
        assert producer.send(Message("orders", b"x")).offset == 0


def test_each_test_has_its_own(onelog_broker: EmbeddedBroker) -> None:
    with onelog_broker.producer("shop") as producer:
        assert producer.send(Message("orders", b"x")).offset == 0


async def test_a_test_that_is_a_coroutine_can_use_it(onelog_broker: EmbeddedBroker) -> None:
    async with AsyncProducer("shop", nameserver=onelog_broker.nameserver) as producer:
        receipts = await asyncio.gather(
            *(producer.send(Message("orders", b"x")) for _ in range(10))
        )
    assert len({receipt.message_id for receipt in receipts}) == 10


def test_loading_it_loads_nothing_else() -> None:
    code = (
        "import sys, onelog.pytest_plugin\n"
        "print([name for name in sys.modules if name.startswith('onelog.')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['onelog.pytest_plugin']"


def test_it_is_there_without_a_word(pytester: pytest.Pytester) -> None:
    """In a project that has never heard of it, but has OneLog installed."""
    pytester.makepyfile(
        """
        from onelog.client import Message

        def test_orders(onelog_broker):
            with onelog_broker.producer("shop") as producer:
                producer.send(Message("orders", b"42"))
            assert onelog_broker.folder.exists()
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert not list(Path(pytester.path).glob("*.sqlite"))

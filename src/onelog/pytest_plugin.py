"""The fixture `onelog_broker`: a broker of its own for each test, in the test's own process.

    def test_orders_are_billed(onelog_broker):
        with onelog_broker.producer("shop") as producer:
            producer.send(Message("orders", b"42"))

pytest loads this module in every run, before it measures coverage: so it imports nothing of OneLog
until a test asks for the fixture. Tests that are coroutines can use it, too: they give
`onelog_broker.nameserver` to the asyncio clients.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from onelog.embedded_broker import EmbeddedBroker


@pytest.fixture
def onelog_broker() -> "Iterator[EmbeddedBroker]":
    """A fresh broker and its name server, without sockets; gone when the test ends."""
    import onelog

    with onelog.embedded() as mq:
        yield mq

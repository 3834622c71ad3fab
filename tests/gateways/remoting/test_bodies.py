"""The core's values as bodies, and back."""

from pathlib import Path

import pytest

from onelog.config import BrokerConfig
from onelog.core.filters.tags import subscribe
from onelog.errors import InvalidRequestError, WireError
from onelog.gateways.remoting.bodies import (
    PAGE_MAX,
    broker_address,
    page,
    subscription_body,
)
from onelog.wire.remoting.clients import SubscriptionData
from onelog.wire.remoting.registration import DataVersion as WireVersion
from tests.core.world import World


def test_a_subscription() -> None:
    assert subscription_body(subscribe("t", "b || a", version=3)) == SubscriptionData(
        code_set=[97, 98], sub_string="b || a", sub_version=3, tags_set=["a", "b"], topic="t"
    )
    everything = subscription_body(subscribe("t"))
    assert (everything.sub_string, everything.code_set, everything.tags_set) == ("*", [], [])


def test_the_address_that_clients_are_told(tmp_path: Path) -> None:
    world = World(
        tmp_path / "store", broker_config=BrokerConfig(advertised_host="2001:db8::1", port=7)
    )
    assert broker_address(world.broker) == "[2001:db8::1]:7"
    world.close()


NAMES = [f"n{number:05}" for number in range(PAGE_MAX + 10)]
VERSION = WireVersion(counter=1)


def test_who_asks_for_all_gets_all() -> None:
    assert page(reversed(NAMES), {}, "seq", "count", VERSION) == NAMES


def test_who_asks_for_pages_gets_pages() -> None:
    version = VERSION.encode().decode()
    assert page(NAMES, {"seq": "0"}, "seq", "count", VERSION) == NAMES[:PAGE_MAX]
    first = {"seq": "0", "count": "7"}
    assert page(NAMES, first, "seq", "count", VERSION) == NAMES[:7]
    second = {"seq": "7", "count": "7", "dataVersion": version}
    assert page(NAMES, second, "seq", "count", VERSION) == NAMES[7:14]
    last = {"seq": str(PAGE_MAX), "count": "50", "dataVersion": version}
    assert page(NAMES, last, "seq", "count", VERSION) == NAMES[PAGE_MAX:]
    beyond = {"seq": "999999", "dataVersion": version}
    assert page(NAMES, beyond, "seq", "count", VERSION) == []


def test_a_page_of_an_older_version_is_the_first_again() -> None:
    for version in ("", " ", WireVersion(counter=2).encode().decode()):
        asked = {"seq": "7", "count": "3", "dataVersion": version}
        assert page(NAMES, asked, "seq", "count", VERSION) == NAMES[:3]
    assert page(NAMES, {"seq": "-7", "count": "-1"}, "seq", "count", VERSION) == []


def test_a_page_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        page(NAMES, {"seq": "x"}, "seq", "count", VERSION)
    with pytest.raises(WireError):
        page(NAMES, {"seq": "1", "dataVersion": "{"}, "seq", "count", VERSION)

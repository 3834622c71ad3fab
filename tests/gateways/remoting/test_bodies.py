"""The core's values as bodies, and back."""

from pathlib import Path

import pytest

from onelog.config import BrokerConfig
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.tables import DataVersion
from onelog.core.filters.tags import subscribe
from onelog.errors import InvalidRequestError, WireError
from onelog.gateways.remoting.bodies import (
    PAGE_MAX,
    broker_address,
    group_body,
    group_from_body,
    page,
    subscription_body,
    topic_body,
    version_body,
)
from onelog.wire.remoting.clients import SubscriptionData
from onelog.wire.remoting.groups import SubscriptionGroupConfig
from onelog.wire.remoting.registration import DataVersion as WireVersion
from onelog.wire.remoting.registration import TopicConfig as WireTopic
from tests.core.world import World


def test_a_group_survives_the_way_there_and_back() -> None:
    group = GroupConfig(
        "g", False, False, False, True, 2, 3, {"type": "EXPONENTIAL"}, 4, 5, False, 6, 7, {"a": "b"}
    )
    body = SubscriptionGroupConfig.decode(group_body(group).encode())
    assert group_from_body(body, {"a": "b"}) == group
    plain = GroupConfig("g")
    assert group_from_body(group_body(plain), {}) == plain


def test_a_topic_and_a_version() -> None:
    topic = TopicConfig("t", 1, 2, 4, "MULTI_TAG", True, 3, {"a": "b"})
    assert topic_body(topic) == WireTopic(
        attributes={"a": "b"},
        order=True,
        perm=4,
        read_queue_nums=1,
        topic_filter_type="MULTI_TAG",
        topic_name="t",
        topic_sys_flag=3,
        write_queue_nums=2,
    )
    version = WireVersion(counter=1, state_version=3, timestamp=2)
    assert version_body(DataVersion(1, 2, 3)) == version


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

"""Members that subscribe differently, by what brokers and members tell."""

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.groups import (
    GroupChange,
    differences,
    differences_of,
    filter_text,
    read_running_info,
)
from onelog.errors import WireError
from onelog.net.peer import Peer
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import ConsumerConnection, SubscriptionData
from onelog.wire.remoting.command import Command
from tests.client.live_cluster import LiveCluster
from tests.gateways.remoting.live import Client

RUNNING_INFO = (
    b'{"mqTable":{{"brokerName":"broker-a","queueId":1,"topic":"orders"}:{"cachedMsgCount":0}},'
    b'"properties":{},"subscriptionSet":[{"classFilterMode":false,"codeSet":[97],'
    b'"expressionType":"TAG","subString":"%s","subVersion":7,"tagsSet":["a"],"topic":"orders"},'
    b'{"expressionType":"SQL92","subString":"a > 1","topic":"bills"}]}'
)


def test_the_filters_of_each_member_are_those_of_all_brokers() -> None:
    silent = ConsumerConnection()
    told = ConsumerConnection(
        member_subscriptions={
            "c2": [SubscriptionData(topic="orders", sub_string="b")],
            "c1": [
                SubscriptionData(topic="orders", sub_string="a"),
                SubscriptionData(topic="bills", sub_string="x > 1", expression_type="SQL92"),
            ],
        }
    )
    assert differences_of([silent]) == {}
    assert differences_of([silent, told]) == {
        "c1": {"bills": "SQL92: x > 1", "orders": "a"},
        "c2": {"orders": "b"},
    }


def test_only_members_that_tell_can_differ() -> None:
    assert differences({}) == {}
    assert differences({"c1": {"orders": "a"}, "c2": None, "c3": {"orders": "a"}}) == {}
    assert differences({"c1": {"orders": "a"}, "c2": None, "c3": {"orders": "b"}}) == {
        "c1": {"orders": "a"},
        "c3": {"orders": "b"},
    }


def test_a_members_own_words() -> None:
    queues, filters = read_running_info(RUNNING_INFO % b"a")
    assert queues == [MessageQueue(broker_name="broker-a", queue_id=1, topic="orders")]
    assert filters == {"bills": "SQL92: a > 1", "orders": "a"}
    assert read_running_info(b"{}") == ([], None)
    for nonsense in (b"[]", b"", b"nonsense"):
        with pytest.raises(WireError):
            read_running_info(nonsense)


def test_a_condition_is_told_from_tags() -> None:
    assert filter_text("a || b", "TAG") == filter_text("a || b", None) == "a || b"
    assert filter_text("a > 1", "SQL92") == "SQL92: a > 1"


async def test_where_the_broker_tells_nothing_the_members_are_asked(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", 2)
    await admin.groups.create("readers", GroupChange())
    peers = []
    for client_id, expression in (("c1", b"a"), ("c2", b"b")):

        def respond(peer: Peer, command: Command, expression: bytes = expression) -> None:
            peer.reply(command, body=RUNNING_INFO % expression)

        peer = await Peer.connect(
            "127.0.0.1", cluster.brokers[0].config.broker.port, on_request=respond
        )
        peers.append(peer)
        # To the broker they all say the same, as it would seem to a RocketMQ broker.
        await Client(peer, []).heartbeat(client_id, "readers", "orders")
    assert (await admin.groups.describe("readers")).members.differing == {}
    found = await admin.groups.describe("readers", with_owners=True)
    assert {client_id: each["orders"] for client_id, each in found.members.differing.items()} == {
        "c1": "a",
        "c2": "b",
    }
    for peer in peers:
        await peer.close()

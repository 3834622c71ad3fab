"""A client that must be found is known to every master, whatever it sends to."""

from pathlib import Path

import pytest

from onelog.client.message import Message
from onelog.client.producer.producer import AsyncProducer
from onelog.client.producer.transactions import TransactionState
from onelog.message import encode_properties
from onelog.net.peer import Peer
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.registration import RegisterBrokerBody
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.watching import stored
from tests.waiting import eventually


async def is_known(cluster: LiveCluster, broker: int, group: str, client_id: str) -> bool:
    """Whether a broker has a producer of that group."""
    client = await cluster.client(broker)
    answer = await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup=group)
    return client_id.encode() in bytes(answer.body)


async def test_a_producer_with_a_checker_is_known_everywhere_before_it_sends(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster:
        async with AsyncProducer(
            "shop",
            nameserver=cluster.addresses,
            client_id="me",
            checker=lambda message: TransactionState.UNKNOWN,
        ):
            await eventually(lambda: is_known(cluster, 0, "shop", "me"), "being known to one")
            await eventually(lambda: is_known(cluster, 1, "shop", "me"), "being known to both")
        assert not await is_known(cluster, 0, "shop", "me")  # It said good-bye.
        async with AsyncProducer("plain", nameserver=cluster.addresses, client_id="you") as other:
            assert other.instance.presence.masters == ()


async def test_a_reply_arrives_through_a_broker_that_the_requester_never_sent_to(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster:
        await cluster.create_topic("questions", 1, broker=0)
        async with AsyncProducer("askers", nameserver=cluster.addresses) as producer:
            waiting = producer.instance.spawn(
                producer.request(Message("questions", b"?"), timeout=30)
            )
            await eventually(lambda: asked(cluster), "the request")
            (request,) = await stored(cluster, "questions", 1)
            client = await cluster.client(1)
            properties = request.properties + encode_properties({"MSG_TYPE": "reply"})
            ext = {
                "a": "repliers",
                "b": "DefaultCluster_REPLY_TOPIC",
                "c": "TBW102",
                "d": 4,
                "e": 0,
                "f": 0,
                "g": 1,
                "h": 0,
                "i": properties.decode(),
            }

            async def replied() -> bool:
                answer = await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, b"!", **ext)
                return answer.code == 0

            await eventually(replied, "the reply, pushed by the second broker")
            assert (await waiting).body == b"!"


async def asked(cluster: LiveCluster) -> bool:
    return bool(await stored(cluster, "questions", 1))


async def test_a_name_server_that_is_down_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with AsyncProducer("shop", nameserver="127.0.0.1:1") as producer:
        await producer.instance.presence.ensure()
        assert producer.instance.presence.masters == ()
    assert "127.0.0.1:1" in caplog.text


async def test_a_broker_that_is_down_keeps_nobody_from_the_others(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    nameserver = await Peer.connect(*cluster.nameservers[0].address)
    body = RegisterBrokerBody().encode()
    answer = await nameserver.ask(
        RequestCode.REGISTER_BROKER,
        {
            "brokerName": "a-dead-one",
            "brokerAddr": "127.0.0.1:1",
            "clusterName": "DefaultCluster",
            "haServerAddr": "",
            "brokerId": "0",
        },
        body,
    )
    assert answer.code == 0, answer.remark
    async with AsyncProducer("shop", nameserver=cluster.addresses, client_id="me") as producer:
        await producer.instance.presence.ensure()
        assert len(producer.instance.presence.masters) == 2
        await eventually(lambda: is_known(cluster, 0, "shop", "me"), "being known")
    assert "127.0.0.1:1" in caplog.text
    await nameserver.close()

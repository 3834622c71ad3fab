"""Queues of STOMP: what is sent is delivered, acknowledged, refused, and there after a restart."""

import json
from pathlib import Path

import pytest

import onelog
from onelog.embedded_broker import EmbeddedBroker
from tests.gateways.stomp.live import connected

VERSIONS = ["1.0", "1.1", "1.2"]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_sent_is_delivered_with_its_headers(
    onelog_stomp: EmbeddedBroker, version: str
) -> None:
    with connected(onelog_stomp.stomp_address, version) as client:
        client.subscribe("/queue/a")
        client.send("/queue/a", "héllo", color="red", priority="7", correlation__id="c-1")
        heard = client.get()
    assert heard.body == "héllo"
    expected = {
        "destination": "/queue/a",
        "subscription": "1",
        "color": "red",
        "priority": "7",
        "correlation-id": "c-1",
        "content-length": "6",
    }
    assert {name: heard.headers.get(name) for name in expected} == expected
    assert heard.headers["message-id"]


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_headers_may_have_any_signs(onelog_stomp: EmbeddedBroker, version: str) -> None:
    value = "a:b\\c\nd" + ("\r" if version == "1.2" else "")
    with connected(onelog_stomp.stomp_address, version) as client:
        client.subscribe("/queue/signs")
        client.send("/queue/signs", "x", odd=value)
        assert client.get().headers["odd"] == value


def test_messages_wait_for_a_subscriber_and_are_shared(onelog_stomp: EmbeddedBroker) -> None:
    address = onelog_stomp.stomp_address
    with connected(address) as one, connected(address) as two:
        for number in range(10):
            one.send("/queue/work", str(number))
        one.subscribe("/queue/work", ack="client-individual", prefetch__count="1")
        two.subscribe("/queue/work", ack="client-individual", prefetch__count="1")
        found = []
        for _ in range(5):
            for client in (one, two):
                heard = client.get()
                found.append(heard.body)
                client.ack(heard)
    assert sorted(found) == [str(number) for number in range(10)]


@pytest.mark.parametrize("version", VERSIONS)
def test_client_mode_acknowledges_all_before(onelog_stomp: EmbeddedBroker, version: str) -> None:
    address = onelog_stomp.stomp_address
    with connected(address, version) as client:
        client.subscribe("/queue/c", ack="client")
        for number in range(4):
            client.send("/queue/c", str(number))
        heard = [client.get() for _ in range(4)]
        client.ack(heard[2])
    with connected(address, version) as client:
        client.subscribe("/queue/c")
        again = client.get()
        assert again.body == "3"
        assert again.headers["redelivered"] == "true"
        assert client.is_quiet()


def test_individual_mode_acknowledges_one(onelog_stomp: EmbeddedBroker) -> None:
    address = onelog_stomp.stomp_address
    with connected(address) as client:
        client.subscribe("/queue/i", ack="client-individual")
        for number in range(3):
            client.send("/queue/i", str(number))
        heard = [client.get() for _ in range(3)]
        client.ack(heard[1])
    with connected(address) as client:
        client.subscribe("/queue/i")
        assert client.bodies(2) == ["0", "2"]
        assert client.is_quiet()


def test_nothing_more_comes_than_the_prefetch(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/p", ack="client", **{"activemq.prefetchSize": "2"})
        for number in range(5):
            client.send("/queue/p", str(number))
        first, second = client.get(), client.get()
        assert client.is_quiet()
        client.ack(first)
        assert client.get().body == "2"
        assert client.is_quiet()
        client.ack(second)
        assert client.get().body == "3"


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_refused_message_comes_again(onelog_stomp: EmbeddedBroker, version: str) -> None:
    with connected(onelog_stomp.stomp_address, version) as client:
        client.subscribe("/queue/n", ack="client-individual")
        client.send("/queue/n", "x")
        client.nack(client.get())
        again = client.get()
        assert (again.body, again.headers["redelivered"]) == ("x", "true")
        client.ack(again)


def test_a_rejected_message_is_a_dead_letter(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/graves", "graves")
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
        client.subscribe("/queue/d", "d", "client-individual", **dead)
        client.send("/queue/d", "x", mine="yes")
        client.nack(client.get(), requeue="false")
        buried = client.get()
    assert (buried.body, buried.headers["subscription"]) == ("x", "graves")
    assert buried.headers["mine"] == "yes"
    assert json.loads(buried.headers["x-death"])[0]["reason"] == "rejected"


def test_unsubscribing_gives_back_what_was_not_acknowledged(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/u", "one", "client")
        client.send("/queue/u", "x")
        client.get()
        client.connection.unsubscribe("one")
        client.subscribe("/queue/u", "two")
        assert client.get().headers["subscription"] == "two"


def test_messages_expire(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.send("/queue/e", "by RabbitMQ", expiration="1")
        client.send("/queue/e", "by ActiveMQ", expires="1")
        client.send("/queue/e", "stays", expires="0")
        client.is_quiet()
        client.subscribe("/queue/e")
        assert client.get().body == "stays"


def test_urgent_messages_come_first(onelog_stomp: EmbeddedBroker) -> None:
    most = {"x-max-priority": "9"}
    with connected(onelog_stomp.stomp_address) as client:
        for priority in ("1", "9", "4", "9"):
            client.send("/queue/urgent", priority, priority=priority, **most)
        client.subscribe("/queue/urgent", **most)
        assert client.bodies(4) == ["9", "9", "4", "1"]


def test_a_queue_that_is_full_refuses(onelog_stomp: EmbeddedBroker) -> None:
    full = {"x-max-length": "1", "x-overflow": "reject-publish"}
    with connected(onelog_stomp.stomp_address) as client:
        client.send("/queue/full", "1", **full)
        client.connection.send("/queue/full", "2", headers=full, receipt="no")
        error = client.errors.get(timeout=30)
    assert error.headers["message"] == "queue full"
    assert error.headers["receipt-id"] == "no"


def test_several_queues_at_a_time(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.send("/queue/x1,/queue/x2,x3", "to all")
        for name in ("x1", "x2", "x3"):
            client.subscribe(f"/queue/{name}", name)
            heard = client.get()
            assert (heard.body, heard.headers["destination"]) == ("to all", f"/queue/{name}")
            assert "BCC" not in heard.headers
        client.subscribe("/queue/y1,y2", "y")
        client.send("/queue/y1", "1")
        client.send("/queue/y2", "2")
        assert sorted(client.bodies(2)) == ["1", "2"]


def test_queues_by_pattern_also_those_that_come_later(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.send("/queue/price.stock.ibm", "1")
        client.send("/queue/price.fund.x", "2")
        client.subscribe("/queue/price.stock.*", "stocks")
        assert client.get().headers["destination"] == "/queue/price.stock.ibm"
        client.send("/queue/price.stock.sun", "3")
        assert client.get().headers["destination"] == "/queue/price.stock.sun"
        client.subscribe("/queue/price.>", "all")
        assert client.get().headers["destination"] == "/queue/price.fund.x"
        assert client.is_quiet()


def test_a_selector_leaves_the_others_for_others(onelog_stomp: EmbeddedBroker) -> None:
    address = onelog_stomp.stomp_address
    with connected(address) as client:
        for number in range(6):
            client.send("/queue/s", str(number), color="red" if number % 2 else "blue", size="5")
        client.subscribe("/queue/s", "red", "client-individual", selector="color = 'red'")
        heard = [client.get() for _ in range(3)]
        assert [each.body for each in heard] == ["1", "3", "5"]
        client.ack(heard[0])
        client.send("/queue/s", "6", color="blue")
        client.send("/queue/s", "7", color="red")
        assert client.get().body == "7"
        assert client.is_quiet()
        with connected(address) as other:
            other.subscribe("/queue/s", "rest", selector="color LIKE 'b%' AND size > 4")
            assert other.bodies(3) == ["0", "2", "4"]
            assert other.is_quiet()
            other.subscribe("/queue/s", "all")
            heard_last = other.get()
            assert (heard_last.body, heard_last.headers.get("redelivered")) == ("6", None)


def test_a_browser_sees_everything_and_takes_nothing(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        for number in range(3):
            client.send("/queue/b", str(number), n=str(number))
        client.subscribe("/queue/b", "look", browser="true", selector="n <> 1")
        assert client.bodies(2) == ["0", "2"]
        end = client.get()
        assert (end.headers["browser"], end.headers["subscription"]) == ("end", "look")
        client.subscribe("/queue/b", "take")
        assert client.bodies(3) == ["0", "1", "2"]


def test_only_queues_that_are_there(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.send("/queue/there", "x")
        client.subscribe("/amq/queue/there")
        assert client.get().body == "x"
        client.send("/amq/queue/there", "y")
        assert client.get().body == "y"
        client.connection.send("/amq/queue/not-there", "z", receipt="no")
        assert client.errors.get(timeout=30).headers["message"] == "not found"


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with onelog.embedded(tmp_path, stomp=True) as mq, connected(mq.stomp_address) as client:
        client.subscribe("/queue/r", ack="client-individual")
        for number in range(4):
            client.send("/queue/r", str(number), n=str(number))
        heard = [client.get() for _ in range(4)]
        client.ack(heard[0])
        client.ack(heard[2])
    with onelog.embedded(tmp_path, stomp=True) as mq, connected(mq.stomp_address) as client:
        client.subscribe("/queue/r")
        again = [client.get() for _ in range(2)]
        assert [(each.body, each.headers["n"]) for each in again] == [("1", "1"), ("3", "3")]
        assert client.is_quiet()


def test_bodies_are_bytes(onelog_stomp: EmbeddedBroker) -> None:
    body = bytes(range(256)) * 1000
    with connected(onelog_stomp.stomp_address, auto_decode=False) as client:
        client.subscribe("/queue/bytes")
        client.done(client.connection.send, "/queue/bytes", body)
        heard: object = client.get().body
        assert heard == body


def test_a_selector_with_a_prefetch_waits_for_room(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        red = {"selector": "color = 'red'", "prefetch-count": "1"}
        client.subscribe("/queue/s", "red", "client-individual", **red)
        for number in range(6):
            client.send("/queue/s", str(number), color="blue" if number % 2 else "red")
        found = []
        for _ in range(3):
            heard = client.get()
            assert client.messages.empty()
            found.append(heard.body)
            client.ack(heard)
        assert found == ["0", "2", "4"]
        client.subscribe("/queue/s", "rest")
        assert client.bodies(3) == ["1", "3", "5"]


def test_what_nobody_wanted_is_there_when_nobody_is(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/s", "none", selector="color = 'green'")
        for number in range(3):
            client.send("/queue/s", str(number), color="red")
        assert client.is_quiet()
        client.connection.unsubscribe("none")
        client.subscribe("/queue/s", "all")
        assert client.bodies(3) == ["0", "1", "2"]

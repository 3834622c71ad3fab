"""Topics and exchanges of STOMP: live and durable subscriptions, patterns, answers."""

from pathlib import Path

import onelog
from onelog.embedded_broker import EmbeddedBroker
from tests.gateways.stomp.live import connected


def test_everybody_who_is_there_gets_a_message(onelog_stomp: EmbeddedBroker) -> None:
    address = onelog_stomp.stomp_address
    with connected(address) as one, connected(address, "1.0") as two, connected(address) as late:
        one.send("/topic/news", "before")
        one.subscribe("/topic/news")
        two.subscribe("/topic/news")
        late.send("/topic/news", "now", mine="x")
        for client in (one, two):
            heard = client.get()
            assert (heard.body, heard.headers["destination"]) == ("now", "/topic/news")
            assert heard.headers["mine"] == "x"
        late.subscribe("/topic/news")
        assert late.is_quiet()


def test_patterns_of_both_kinds(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/topic/a.*", "one-word")
        client.subscribe("/topic/a.>", "activemq")
        client.subscribe("/topic/#.c", "rabbitmq")
        for key in ("a.b", "a.b.c", "d"):
            client.send(f"/topic/{key}", key)
        found = {
            (heard.headers["subscription"], heard.body)
            for heard in (client.get() for _ in range(4))
        }
        assert found == {
            ("one-word", "a.b"),
            ("activemq", "a.b"),
            ("activemq", "a.b.c"),
            ("rabbitmq", "a.b.c"),
        }
        assert client.is_quiet()


def test_several_topics_at_a_time(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/topic/t1,t2")
        client.subscribe("/queue/q", "q")
        client.send("/topic/t1,/topic/t2,/queue/q", "x")
        # Once for each subscription, however many of its topics a message is sent to.
        assert {client.get().headers["subscription"] for _ in range(2)} == {"1", "q"}
        client.send("/topic/t2", "y")
        assert client.get().body == "y"


def test_a_selector_of_a_topic(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/topic/t", "a", selector="JMSPriority > 5 OR kind IN ('x', 'y')")
        client.subscribe("/topic/t", "b", "client", selector="kind IS NULL", prefetch__count="1")
        client.send("/topic/t", "1", priority="9", kind="z")
        client.send("/topic/t", "2", kind="y")
        client.send("/topic/t", "3", kind="z")
        client.send("/topic/t", "4")
        found = {
            (heard.headers["subscription"], heard.body)
            for heard in (client.get() for _ in range(3))
        }
        assert found == {("a", "1"), ("a", "2"), ("b", "4")}


def test_a_durable_subscription_of_rabbitmq(tmp_path: Path) -> None:
    durable = {"durable": "true", "auto-delete": "false"}
    with onelog.embedded(tmp_path, stomp=True) as mq, connected(mq.stomp_address) as client:
        client.subscribe("/topic/d", "sub-1", "client-individual", **durable)
        client.send("/topic/d", "1")
        client.get()
    with onelog.embedded(tmp_path, stomp=True) as mq:
        with connected(mq.stomp_address) as client:
            client.send("/topic/d", "2")
            client.subscribe("/topic/d", "sub-1", **durable)
            assert client.bodies(2) == ["1", "2"]
            client.connection.unsubscribe("sub-1", headers=durable)
            client.send("/topic/d", "3")
        with connected(mq.stomp_address) as client:
            client.subscribe("/topic/d", "sub-1", **durable)
            assert client.is_quiet()


def test_a_durable_subscription_of_activemq(tmp_path: Path) -> None:
    login, durable = {"client-id": "shop"}, {"activemq.subscriptionName": "orders"}
    with onelog.embedded(tmp_path, stomp=True) as mq:
        with connected(mq.stomp_address, login=login) as client:
            client.subscribe("/topic/d", **durable)
        with connected(mq.stomp_address) as client:
            client.send("/topic/d", "while away")
    with onelog.embedded(tmp_path, stomp=True) as mq:
        with connected(mq.stomp_address, login=login) as client:
            client.subscribe("/topic/d", **durable)
            assert client.get().body == "while away"
            # To be subscribed to something else is to be subscribed to nothing else.
            client.connection.unsubscribe("1")
            client.subscribe("/topic/other", "2", **durable)
            client.send("/topic/d", "no")
            client.send("/topic/other", "yes")
            assert client.get().body == "yes"
        with connected(mq.stomp_address, login=login) as client:
            client.done(client.connection.unsubscribe, "2", headers=durable)
            client.send("/topic/other", "gone")
            client.subscribe("/topic/other", "3", **durable)
            assert client.is_quiet()


def test_any_exchange(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/exchange/amq.fanout", "all")
        client.subscribe("/exchange/amq.direct/key", "one")
        client.send("/exchange/amq.fanout", "1")
        client.send("/exchange/amq.direct/key", "2")
        client.send("/exchange/amq.direct/other", "3")
        found = {
            (heard.headers["subscription"], heard.body, heard.headers["destination"])
            for heard in (client.get() for _ in range(2))
        }
        assert found == {
            ("all", "1", "/exchange/amq.fanout/"),
            ("one", "2", "/exchange/amq.direct/key"),
        }
        assert client.is_quiet()
        client.connection.send("/exchange/none", "x", receipt="no")
        error = client.errors.get(timeout=30)
        assert (error.headers["message"], error.headers["receipt-id"]) == ("not found", "no")


def test_requests_are_answered_as_with_rabbitmq(onelog_stomp: EmbeddedBroker) -> None:
    address = onelog_stomp.stomp_address
    with connected(address) as server, connected(address) as client:
        server.subscribe("/queue/requests")
        client.send("/queue/requests", "2+2", reply__to="/temp-queue/answers", correlation__id="7")
        asked = server.get()
        assert asked.headers["reply-to"].startswith("/reply-queue/")
        server.send(asked.headers["reply-to"], "4", correlation__id="7")
        answer = client.get()
    assert (answer.body, answer.headers["correlation-id"]) == ("4", "7")
    assert answer.headers["subscription"] == "/temp-queue/answers"


def test_requests_are_answered_as_with_activemq(onelog_stomp: EmbeddedBroker) -> None:
    address = onelog_stomp.stomp_address
    with connected(address) as server, connected(address) as client:
        server.subscribe("/queue/requests")
        client.subscribe("/temp-queue/answers", "mine")
        client.send("/queue/requests", "2+2", reply__to="/temp-queue/answers")
        server.send(server.get().headers["reply-to"], "4")
        answer = client.get()
        assert (answer.body, answer.headers["subscription"]) == ("4", "mine")
        client.send("/temp-queue/answers", "to myself")
        assert client.get().body == "to myself"
        client.subscribe("/temp-topic/t", "t")
        client.send("/temp-topic/t", "also to myself")
        assert client.get().body == "also to myself"


def test_an_answer_to_who_is_gone_is_dropped(onelog_stomp: EmbeddedBroker) -> None:
    address = onelog_stomp.stomp_address
    with connected(address) as server:
        server.subscribe("/queue/requests")
        with connected(address) as client:
            client.send("/queue/requests", "2+2", reply__to="/temp-queue/answers")
            asked = server.get()
        server.send(asked.headers["reply-to"], "4")

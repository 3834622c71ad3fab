"""Messages of STOMP that come later, and again."""

import time
from pathlib import Path

import onelog
from onelog.embedded_broker import EmbeddedBroker
from tests.gateways.stomp.live import connected

DELAY, PERIOD, REPEAT, CRON = (
    f"AMQ_SCHEDULED_{name}" for name in ("DELAY", "PERIOD", "REPEAT", "CRON")
)


def test_a_delayed_message_comes_later(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/a", "a")
        client.subscribe("/topic/b", "b")
        began = time.monotonic()
        client.send("/queue/a", "late", **{DELAY: "1500", "mine": "x"})
        client.send("/topic/b", "late", **{DELAY: "1500"})
        client.send("/queue/a", "at once")
        assert client.get().body == "at once"
        heard = [client.get(), client.get()]
        assert time.monotonic() - began > 1.4
        assert {each.headers["subscription"] for each in heard} == {"a", "b"}
        mine = next(each for each in heard if each.headers["subscription"] == "a")
        assert mine.headers["mine"] == "x"
        assert DELAY not in mine.headers


def test_a_message_that_comes_again(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/a,b")
        client.send("/queue/a,b", "tick", **{DELAY: "100", PERIOD: "200", REPEAT: "2"})
        places = [client.get().headers["destination"] for _ in range(6)]
        assert sorted(places) == ["/queue/a"] * 3 + ["/queue/b"] * 3
        assert client.is_quiet()


def test_schedules_go_on_after_a_restart(tmp_path: Path) -> None:
    with onelog.embedded(tmp_path, stomp=True) as mq, connected(mq.stomp_address) as client:
        client.send("/queue/a", "again", **{DELAY: "200", PERIOD: "500", REPEAT: "-1"})
        client.send("/queue/a", "once", **{DELAY: "2500"})
        client.send("/queue/a", "each minute", **{CRON: "* * * * *"})
        client.subscribe("/queue/a")
        assert client.get().body == "again"
    with onelog.embedded(tmp_path, stomp=True) as mq, connected(mq.stomp_address) as client:
        client.subscribe("/queue/a")
        found = set()
        while "once" not in found:
            found.add(client.get().body)
        assert "again" in found


def test_what_is_no_schedule_is_refused(onelog_stomp: EmbeddedBroker) -> None:
    wrong = [
        {DELAY: "soon"},
        {REPEAT: "3"},
        {CRON: "* * *"},
        {CRON: "61 * * * *"},
        {DELAY: "-1"},
        {PERIOD: "10", REPEAT: "5", "transaction": "t"},
    ]
    for headers in wrong:
        with connected(onelog_stomp.stomp_address) as client:
            client.connection.send("/queue/a", "x", headers=headers, receipt="no")
            error = client.errors.get(timeout=30)
            assert (error.headers["message"], error.headers["receipt-id"]) == ("bad request", "no")

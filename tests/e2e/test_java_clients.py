"""The official Java clients, unchanged, against OneLog and against the real RocketMQ.

The Java program states what it saw; what it should have seen is said here, once for both servers.
"""

import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import RunScenario, Server
from tests.e2e.java_clients import Scenario

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(400)]

SUBSCRIPTION_PARSE_FAILED = 23


def test_what_is_sent_synchronously_is_stored_with_all_its_fields(scenario: RunScenario) -> None:
    done = scenario("sync", messages=200)[-1]
    assert done["sent_ok"] == 200
    assert done["message_ids"] == 200
    assert done["stored"] == 200
    assert done["wrong"] == []
    assert done["queues_used"] == 4
    assert done["viewed_by_offset_id"] == done["last"]


def test_every_asynchronous_send_is_answered_with_its_own_offset(scenario: RunScenario) -> None:
    done = scenario("async", messages=5_000)[-1]
    assert done["all_answered"]
    assert done["failed"] == 0
    assert done["distinct_offsets"] == 5_000
    assert done["distinct_numbers"] == done["stored"] == 5_000


def test_one_way_messages_are_stored(scenario: RunScenario) -> None:
    done = scenario("oneway", messages=1_000)[-1]
    assert done["distinct_numbers"] == done["stored"] == 1_000


def test_batches_keep_the_order_and_the_content_of_100_000_messages(scenario: RunScenario) -> None:
    done = scenario("batch", messages=100_000, batch=100)[-1]
    assert done["wrong_results"] == 0
    assert done["stored"] == 100_000
    assert done["wrong"] == 0


def test_a_queue_selector_decides_the_queue_and_keeps_the_order_of_a_key(
    scenario: RunScenario,
) -> None:
    done = scenario("selector", messages=1_000, orders=20)[-1]
    assert done["stored"] == 1_000
    assert done["misplaced"] == 0
    assert done["out_of_order"] == 0
    assert done["orders"] == 20


def test_no_message_is_lost_while_members_join_and_leave(scenario: RunScenario) -> None:
    done = scenario("concurrent", messages=5_000, rate=500, timeout_s=200)[-1]
    assert done["sent"] == done["received"] == 5_000
    assert done["corrupt"] == 0
    # A member that takes a queue over starts at the committed offset, behind what the other one
    # has handled since: these and only these come twice.
    assert done["unexplained"] == 0
    assert done["duplicates"] < 2_500
    assert all(count > 0 for count in done["per_member"].values()), done


def test_the_order_within_a_queue_is_kept_while_members_join_and_leave(
    scenario: RunScenario,
) -> None:
    done = scenario("orderly", messages=5_000, rate=500, timeout_s=300)[-1]
    assert done["sent"] == done["received"] == 5_000
    assert done["corrupt"] == 0
    assert done["overlaps"] == 0
    assert done["gaps"] == 0
    assert done["unexplained"] == 0


def test_broadcasting_gives_every_member_everything_and_a_returning_one_the_rest(
    scenario: RunScenario,
) -> None:
    done = scenario("broadcasting", messages=300)[-1]
    assert [done[f"received_by_{member}"] for member in "abc"] == [300, 300, 300]
    assert done["duplicates"] == 0
    assert done["after_return_new"] == 50
    assert done["after_return_old"] == 0


def test_a_lite_pull_consumer_with_assigned_queues_goes_on_at_the_committed_offset(
    scenario: RunScenario,
) -> None:
    done = scenario("litepull-assign", messages=200)[-1]
    assert done["first"] == done["committed"] == 200
    assert done["first_again"] == 0
    assert done["second_new"] == 40
    assert done["second_old"] == 0


def test_lite_pull_consumers_share_a_subscription(scenario: RunScenario) -> None:
    done = scenario("litepull-subscribe", messages=400)[-1]
    assert done["shared"]
    assert done["both"] == 400
    assert done["both_again"] == 0
    assert done["two"] == 200
    assert done["third_new"] == 40
    assert done["third_old"] == 0


def test_a_lite_pull_consumer_moves_about_in_its_queue(scenario: RunScenario) -> None:
    done = scenario("litepull-seek", messages=100)[-1]
    assert done["start"] == 0
    assert done["seek"] == 50
    assert done["begin"] == 0
    assert done["offset_of_moment"] == done["moment"] == 100
    assert done["end"] == -1
    assert done["after_end"] == 200
    assert done["refused"]


@pytest.mark.parametrize("kind", ["tags", "sql"])
def test_a_filtered_subscription_gets_exactly_what_it_asks_for(
    scenario: RunScenario, kind: str
) -> None:
    *subscriptions, done = scenario(kind, messages=210)
    assert len(subscriptions) >= 5
    for subscription in subscriptions:
        assert subscription["got"] == subscription["wanted"], subscription
        assert subscription["wrong"] == 0, subscription
    assert done["bad_expression_code"] == (SUBSCRIPTION_PARSE_FAILED if kind == "sql" else 0)


def test_a_new_broadcasting_group_starts_at_a_timestamp(scenario: RunScenario) -> None:
    done = scenario("timestamp", messages=100)[-1]
    assert done["broadcasting_new"] == 100
    assert done["broadcasting_old"] == 0
    assert done["clustering_new"] == 100
    # The broker of RocketMQ answers a new group's question for its offset with 0 as long as the
    # queue is whole and in memory, so a young topic is read from its begin whatever was asked for.
    assert done["clustering_old"] == 100


def test_a_restarted_consumer_goes_on_where_it_stopped(scenario: RunScenario) -> None:
    done = scenario("resume", messages=400)[-1]
    assert done["first"] == 200
    assert done["second_new"] == 200
    assert done["second_again"] == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_broker_restart_loses_nothing_and_clients_go_on_by_themselves(
    own_server: Server, client: str, tmp_path: Path, how: signal.Signals
) -> None:
    nameservers = own_server.nameservers
    with Scenario(
        tmp_path, client, "restart", nameservers, topic="restart", messages=2_000
    ) as running:
        for facts in running.lines(60):
            if facts["event"] == "progress" and facts["acknowledged"] > 600:
                break
        own_server.restart(how)
        own_server.wait_until_ready()
        done = running.wait_for("done", 200)
    assert done["failed"] > 0, "the restart went unnoticed: it happened after the last send"
    assert done["received"] == done["acknowledged"] == 2_000
    # A send without an answer may have been stored all the same; the client then repeats it.
    assert done["duplicates"] <= done["failed"] + 10

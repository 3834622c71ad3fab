"""`onelog cluster`, as people use it."""

from pathlib import Path

from onelog.core.access import SELF
from onelog.record.forms.amqp_fields import NO_PROPERTIES
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.commands.conftest import Run
from tests.commands.running import run_beside


async def test_clusters_and_brokers_are_listed(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster:
        at = ("-n", cluster.addresses)
        ended = await run_beside("cluster", "list", "--json", *at)
        assert ended.document == [
            {"cluster": "DefaultCluster", "brokers": ["broker-a", "broker-b"]}
        ]
        ended = await run_beside("cluster", "brokers", "--json", *at)
        assert ended.document == [
            {
                "cluster": "DefaultCluster",
                "broker": f"broker-{name}",
                "id": 0,
                "role": "master",
                "address": broker.address,
            }
            for name, broker in zip("ab", cluster.brokers, strict=True)
        ]
        for what in ("list", "brokers", "status"):
            shown = await run_beside("cluster", what, *at)
            assert (shown.code, shown.err) == (0, "")
            assert "broker-b" in shown.out


async def test_status_has_numbers_and_on_demand_all_of_them(
    onelog: Run, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await cluster.send("orders", b"x")
    (broker,) = (await onelog("cluster", "status", "--json")).document
    assert (broker["put_today"], broker["address"]) == (1, cluster.brokers[0].address)
    assert "details" not in broker
    (broker,) = (await onelog("cluster", "status", "--json", "--details")).document
    assert broker["details"]["msgPutTotalTodayNow"] == "1"
    assert "msgPutTotalTodayNow" in (await onelog("cluster", "status", "--details")).out
    assert "total" in (await onelog("cluster", "status")).out


async def test_status_shows_how_often_the_event_loop_was_held(
    onelog: Run, cluster: LiveCluster
) -> None:
    stalls = cluster.brokers[0].stalls
    stalls.count, stalls.longest_ms = 3, 60_000
    shown = (await onelog("cluster", "status")).out
    assert "stalls" in shown
    assert "60000 ms" in shown
    (broker,) = (await onelog("cluster", "status", "--json")).document
    assert (broker["stalls"] >= 3, broker["longest_stall_ms"]) == (True, 60_000)


async def test_status_names_the_queues_that_old_log_is_kept_for(
    onelog: Run, cluster: LiveCluster
) -> None:
    assert "is kept for" not in (await onelog("cluster", "status")).out
    broker = cluster.brokers[0].broker
    broker.queues.declared.declare(SELF, "/", "forgotten", durable=True)
    broker.publish.routing.publish(
        SELF, "/", "", "forgotten", NO_PROPERTIES, b"x", lambda token, where, error: None
    )
    cluster.brokers[0].core.writer.end_of_tick()
    assert "forgotten in /: 1 messages" in (await onelog("cluster", "status")).out
    (status,) = (await onelog("cluster", "status", "--json")).document
    assert status["log_held_by"].startswith("forgotten")


async def test_a_cluster_that_is_not_there_ends_with_1(onelog: Run) -> None:
    for what in ("status", "brokers"):
        ended = await onelog("cluster", what, "--cluster", "nope")
        assert (ended.code, ended.out) == (1, "")
        assert "'nope'" in ended.err


async def test_no_name_server_ends_with_2(onelog: Run) -> None:
    ended = await onelog("cluster", "list", "-n", "127.0.0.1:1;127.0.0.1:2")
    assert ended.code == 2
    assert "127.0.0.1:1" in ended.err
    assert "127.0.0.1:2" in ended.err


async def test_a_broker_that_does_not_answer_is_said_and_the_rest_is_shown(
    tmp_path: Path,
) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster:
        for listener in cluster.brokers[1]._listeners:
            await listener.close()
        ended = await run_beside("cluster", "status", "--json", "-n", cluster.addresses)
        assert ended.code == 2
        assert [broker["broker"] for broker in ended.document] == ["broker-a"]
        assert cluster.brokers[1].address in ended.err

"""A running client: who hears of it, what it is asked, and that its end ends everything."""

import asyncio
import os

import pytest

from onelog.client.connection import instance as instance_module
from onelog.client.connection.address import Address
from onelog.client.connection.instance import Instance
from onelog.client.credentials import Credentials
from onelog.errors import ClientClosedError, MessageError, WrongLoopError
from onelog.net.peer import Peer
from onelog.net.remoting import RemotingSession
from onelog.wire.remoting.clients import ConsumerData, HeartbeatData
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import FLAG_RESPONSE, Command
from onelog.wire.remoting.routes import BrokerData, TopicRouteData
from tests.client.forking import in_a_child
from tests.client.live_cluster import LiveCluster
from tests.client.scripted import ScriptedNode, hang_up, knowing, route_data, scripted, storing
from tests.waiting import eventually
from tests.wire.remoting.commands import encode_command

BROKER_VERSION = 409


def old_broker(session: RemotingSession, command: Command) -> None:
    """RocketMQ 4.9.8."""
    answer = Command(0, version=BROKER_VERSION, opaque=command.opaque, flag=FLAG_RESPONSE)
    session.connection.send(encode_command(answer))


def beats(node: ScriptedNode) -> list[HeartbeatData]:
    return [
        HeartbeatData.decode(command.body)
        for command in node.requests
        if command.code == RequestCode.HEART_BEAT
    ]


def two_members(master: ScriptedNode, slave: ScriptedNode) -> TopicRouteData:
    addresses = {0: str(master.address), 1: str(slave.address)}
    return TopicRouteData(broker_datas=[BrokerData(broker_name="a", broker_addrs=addresses)])


def test_clients_of_one_process_have_different_ids() -> None:
    first, second = Instance({}), Instance({})
    assert f"@{os.getpid()}#" in first.client_id
    assert first.client_id != second.client_id
    assert Instance({"client_id": "me"}).client_id == "me"


async def test_a_broker_hears_who_is_there_before_anything_else() -> None:
    async with scripted(storing) as broker:
        instance = Instance({"nameserver": "127.0.0.1:1"})
        instance.producer_groups.add("shop")
        await instance.start()
        await instance.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
        assert broker.codes() == [RequestCode.HEART_BEAT, RequestCode.GET_BROKER_RUNTIME_INFO]
        (beat,) = beats(broker)
        assert beat.client_id == instance.client_id
        assert [each.group_name for each in beat.producer_data_set] == ["shop"]
        assert broker.requests[0].language == "PYTHON"
        await eventually(lambda: instance.versions != {}, "the broker heard of it")
        await instance.close()


async def test_a_name_server_hears_nothing_of_that() -> None:
    async with scripted(knowing({"orders": route_data({})})) as nameserver:
        instance = Instance({"nameserver": str(nameserver.address)})
        instance.producer_groups.add("shop")
        await instance.start()
        await instance.routes.get("orders")
        await instance.close()
        assert nameserver.codes() == [RequestCode.GET_ROUTEINFO_BY_TOPIC]


async def test_slaves_hear_of_consumers_only() -> None:
    async with scripted(storing) as master, scripted(storing) as slave:
        async with scripted(knowing({"orders": two_members(master, slave)})) as nameserver:
            instance = Instance({"nameserver": str(nameserver.address)})
            await instance.start()
            await instance.routes.get("orders")
            await instance.heartbeat()
            assert (beats(master), beats(slave)) == ([], [])
            instance.producer_groups.add("shop")
            await instance.heartbeat()
            assert (len(beats(master)) > 0, beats(slave)) == (True, [])
            instance.consumers["billing"] = lambda: ConsumerData(group_name="billing")
            await instance.heartbeat()
            assert beats(slave)[0].consumer_data_set == [ConsumerData(group_name="billing")]
            await instance.close()


async def test_heartbeats_go_on_by_themselves_and_survive_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(instance_module, "HEARTBEAT_SECONDS", 0.01)
    async with scripted(hang_up) as broker:
        routes = {"orders": route_data({"a": broker.address})}
        async with scripted(knowing(routes)) as nameserver:
            instance = Instance({"nameserver": str(nameserver.address)})
            instance.producer_groups.add("shop")
            await instance.start()
            await instance.routes.get("orders")
            await eventually(lambda: len(beats(broker)) >= 3, "the broker heard of it")
            broker.answer = storing
            await eventually(lambda: broker.address in instance.versions, "the broker heard of it")
            await instance.close()


async def test_heartbeats_go_on_after_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_module, "HEARTBEAT_SECONDS", 0.001)
    instance = Instance({"nameserver": "127.0.0.1:1"})
    beating, failures = asyncio.Event(), [KeyError("a bug"), OSError(24, "Too many open files")]

    async def heartbeat() -> None:
        if failures:
            raise failures.pop()
        beating.set()

    monkeypatch.setattr(instance, "heartbeat", heartbeat)
    await instance.start()
    async with asyncio.timeout(30):
        await beating.wait()
    await instance.close()


async def test_the_end_is_told_to_those_who_are_connected() -> None:
    async with scripted(storing) as near, scripted(storing) as far:
        routes = {"orders": route_data({"a": near.address, "b": far.address})}
        async with scripted(knowing(routes)) as nameserver:
            instance = Instance({"nameserver": str(nameserver.address)})
            instance.producer_groups.add("shop")
            instance.consumers["billing"] = lambda: ConsumerData(group_name="billing")
            await instance.start()
            await instance.routes.get("orders")
            await instance.ask(near.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            await instance.close()
            await instance.close()
            assert far.requests == []
            left = [c.ext for c in near.requests if c.code == RequestCode.UNREGISTER_CLIENT]
            assert left == [
                {"clientID": instance.client_id, "producerGroup": "shop"},
                {"clientID": instance.client_id, "consumerGroup": "billing"},
            ]


async def test_a_broker_that_does_not_take_note_of_the_end_is_not_waited_for_long() -> None:
    def mute(session: RemotingSession, command: Command) -> None:
        if command.code != RequestCode.UNREGISTER_CLIENT:
            storing(session, command)

    async with scripted(mute) as broker:
        routes = {"orders": route_data({"a": broker.address})}
        async with scripted(knowing(routes)) as nameserver:
            instance = Instance({"nameserver": str(nameserver.address), "timeout": 60})
            instance.producer_groups.add("shop")
            await instance.start()
            await instance.routes.get("orders")
            await instance.heartbeat()
            async with asyncio.timeout(20):
                await instance.close()


async def test_requests_of_brokers_go_to_their_handlers_and_unknown_ones_are_refused() -> None:
    async with scripted(storing) as broker:
        instance = Instance({"nameserver": "127.0.0.1:1"})
        asked: list[Command] = []

        def handle(peer: Peer, command: Command) -> None:
            asked.append(command)
            peer.reply(command, remark="done")

        instance.handlers[RequestCode.GET_CONSUMER_RUNNING_INFO] = handle
        await instance.start()
        await instance.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
        answers: list[object] = []
        session = broker.sessions[0]
        for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CHECK_TRANSACTION_STATE):
            session.request(code, {"a": "b"}, b"body", 10_000, answers.append)
        await eventually(lambda: len(answers) == 2, "the broker heard of it")
        first, second = answers
        assert isinstance(first, Command)
        assert isinstance(second, Command)
        assert (first.code, first.remark) == (0, "done")
        assert second.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert [(command.ext, bytes(command.body)) for command in asked] == [({"a": "b"}, b"body")]
        await instance.close()


async def test_one_way_requests_connect_if_they_must_and_their_failures_are_nobodys() -> None:
    async with scripted(storing) as broker:
        instance = Instance({"nameserver": "127.0.0.1:1"})
        await instance.start()
        for _ in range(2):
            instance.oneway(broker.address, RequestCode.END_TRANSACTION, {"a": "b"})
            await eventually(lambda: bool(broker.requests), "the broker heard of it")
        await eventually(lambda: len(broker.requests) == 2, "the broker heard of it")
        assert all(command.is_oneway for command in broker.requests)
        instance.oneway(Address("127.0.0.1", 1), RequestCode.END_TRANSACTION, {})
        await asyncio.sleep(0.01)
        await instance.close()


async def test_every_request_is_signed_where_there_are_credentials() -> None:
    async with scripted(storing) as broker:
        routes = {"orders": route_data({"a": broker.address})}
        async with scripted(knowing(routes)) as nameserver:
            instance = Instance(
                {"nameserver": str(nameserver.address), "credentials": Credentials("me", "hush")}
            )
            instance.producer_groups.add("shop")
            await instance.start()
            await instance.routes.get("orders")
            await instance.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            instance.oneway(broker.address, RequestCode.END_TRANSACTION, {})
            await instance.close()
            requests = [*nameserver.requests, *broker.requests]
            assert len(requests) == 5
            for command in requests:
                assert command.ext["AccessKey"] == "me"
                assert len(command.ext["Signature"]) == 28


async def test_tasks_end_with_the_client_and_their_errors_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("a bug")

    instance = Instance({"nameserver": "127.0.0.1:1"})
    await instance.start()
    endless = instance.spawn(asyncio.sleep(3600))
    failed = instance.spawn(fail())
    await asyncio.wait([failed])
    await instance.close()
    assert endless.cancelled()
    assert "a bug" in caplog.text


async def test_a_client_that_is_not_open_says_what_it_is() -> None:
    instance = Instance({"nameserver": "127.0.0.1:1"})
    with pytest.raises(ClientClosedError, match="not started"):
        instance.check_open()
    await instance.start()
    instance.check_open()
    assert instance.is_open
    await instance.close()
    with pytest.raises(ClientClosedError, match="is closed"):
        instance.check_open()
    with pytest.raises(ClientClosedError, match="make a new one"):
        await instance.start()


@pytest.mark.parametrize("was_started", [True, False])
async def test_a_closed_client_does_not_connect_again(was_started: bool) -> None:
    async with scripted(knowing({})) as nameserver:
        instance = Instance({"nameserver": str(nameserver.address)})
        if was_started:
            await instance.start()
        await instance.close()
        with pytest.raises(ClientClosedError):
            await instance.routes.get("orders")
        with pytest.raises(ClientClosedError):
            await instance.ask(nameserver.address, RequestCode.HEART_BEAT)
        assert nameserver.sessions == []


def test_a_client_belongs_to_the_loop_it_was_started_on() -> None:
    instance = Instance({"nameserver": "127.0.0.1:1"})
    asyncio.run(instance.start())

    async def use() -> None:
        instance.check_open()

    with pytest.raises(WrongLoopError, match="which is closed: make one client for each loop"):
        asyncio.run(use())


async def test_a_forked_copy_is_of_no_use_and_does_not_disturb_the_parent(
    cluster: LiveCluster,
) -> None:
    instance = Instance({"nameserver": cluster.addresses})
    await instance.start()
    await instance.routes.get("TBW102")

    def use() -> str:
        instance.check_open()
        return "used"

    said = in_a_child(use)
    assert f"client {instance.client_id} was made before this process forked" in said
    assert said.startswith("ForkedError: ")
    await instance.routes.refresh("TBW102")
    await instance.close()


async def test_brokers_that_are_too_old_for_timers_are_known_by_their_version() -> None:
    async with scripted(old_broker) as old, scripted(storing) as new:
        instance = Instance({"nameserver": "127.0.0.1:1"})
        instance.producer_groups.add("shop")
        await instance.start()
        await instance.check_timers(new.address)
        with pytest.raises(MessageError, match=f"{old.address} would deliver .* at once"):
            await instance.check_timers(old.address)
        await instance.close()


async def test_names_are_wrapped_into_the_namespace() -> None:
    instance = Instance({"namespace": "shop"})
    assert instance.wrap("orders") == "shop%orders"
    assert instance.unwrap("%RETRY%shop%billing") == "%RETRY%billing"
    assert Instance({}).wrap("orders") == "orders"


async def test_a_real_broker_lists_the_client(cluster: LiveCluster) -> None:
    instance = Instance({"nameserver": cluster.addresses})
    instance.producer_groups.add("shop")
    await instance.start()
    route = await instance.routes.get("TBW102")
    await instance.heartbeat()

    async def members() -> list[str]:
        ext = {"producerGroup": "shop"}
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        answer = await (await cluster.client()).ask(code, **ext)
        return [answer.remark or ""] if answer.code else [bytes(answer.body).decode()]

    (listed,) = await members()
    assert instance.client_id in listed
    assert '"PYTHON"' in listed
    assert instance.versions[route.address("broker-a")] >= 413
    await instance.close()
    assert instance.client_id not in (await members())[0]

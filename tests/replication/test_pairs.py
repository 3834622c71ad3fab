"""A master and its slave, both real brokers on real sockets."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.config import Value
from onelog.config_sources import load
from onelog.nameserver.server import NameServer
from onelog.net.tls import write_self_signed
from onelog.replication.fixed import FixedRole
from onelog.server import BrokerServer, running_broker, running_nameserver
from onelog.store.message_store import MessageStore
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.stats import HaStatus
from tests.gateways.remoting.live import SMALL, client, messages
from tests.ports import free_port
from tests.waiting import eventually


@contextlib.asynccontextmanager
async def member(
    folder: Path, broker_id: int, names: NameServer | None = None, **settings: Value
) -> AsyncIterator[BrokerServer]:
    """One broker of a set; settings as `replication__ack="one"`."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    overrides: dict[str, Value] = {
        **SMALL,
        "broker.store_path": str(folder / f"store-{broker_id}"),
        "broker.nameservers": "{}:{}".format(*names.address) if names else "",
        "broker.broker_id": broker_id,
        "replication.replicas": 2,
        **given,
    }
    async with running_broker(load(overrides=overrides)) as server:
        yield server


def log_of(store: MessageStore) -> bytes:
    """All bytes of a log."""
    found, at = bytearray(), int(store.log.start)
    while at < store.log_end:
        data = store.tail.read_raw(at, 1 << 20)
        found += data
        at += len(data)
    return bytes(found)


async def send(server: BrokerServer, count: int, body: bytes = b"x" * 1_000) -> list[int]:
    """Send messages to the topic `orders`; the answers' codes."""
    async with client(server) as sender:
        answers = await asyncio.gather(
            *(sender.send("orders", body, {"KEYS": f"key-{number}"}) for number in range(count))
        )
    return [answer.code for answer in answers]


async def in_step(master: BrokerServer, slave: BrokerServer) -> None:
    """Wait until the slave has, and knows, all that the master has."""
    await eventually(
        lambda: slave.store.confirmed == slave.store.log_end == master.store.log_end,
        "the slave has it all",
    )
    assert log_of(slave.store) == log_of(master.store)


async def test_a_slave_finds_its_master_by_the_name_server_and_serves_its_messages(
    tmp_path: Path,
) -> None:
    settings: dict[str, Value] = {
        "nameserver.port": 0,
        "nameserver.kv_path": str(tmp_path / "kv.json"),
    }
    async with running_nameserver(load(overrides=settings)) as names:
        port = free_port()
        async with (
            member(tmp_path, 0, names, broker__port=port) as master,
            member(tmp_path, 1, names) as slave,
        ):
            assert await send(master, 2_000) == [ResponseCode.SUCCESS] * 2_000
            await in_step(master, slave)
            assert len(slave.store.log.segments) > 2
            async with client(master) as asking:
                answer = await asking.ask(RequestCode.GET_BROKER_HA_STATUS)
            (seen,) = HaStatus.decode_answer(answer.body).ha_connection_info
            assert seen["slaveAckOffset"] + seen["diff"] == master.store.log_end
            async with client(slave) as reader:
                pulled = messages(await reader.pull("orders", 0))
                assert [each.queue_offset for each in pulled] == list(range(32))
                answer = await reader.send("orders", b"to the wrong one")
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert f"127.0.0.1:{port}" in (answer.remark or "")


async def test_a_slave_that_calls_with_tls_gets_the_log_encrypted_and_a_plain_one_is_told_why_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = map(str, write_self_signed(tmp_path, ("127.0.0.1",)))
    port = free_port()
    own: dict[str, Value] = {"tls__cert_path": cert, "tls__key_path": key}
    async with member(tmp_path, 0, None, broker__port=port, **own) as master:
        await send(master, 2_000)
        line: dict[str, Value] = {"replication__master": f"127.0.0.1:{port + 1}"}
        async with member(
            tmp_path, 1, None, tls__outgoing="on", tls__ca_path=cert, **line
        ) as slave:
            await in_step(master, slave)
            assert isinstance(master.role, FixedRole)
            assert master.role._listener is not None
            assert [each.secure for each in master.role._listener.connections] == [True]
    async with (
        member(tmp_path, 0, None, broker__port=port, tls__mode="enforcing", **own),
        member(tmp_path, 1, None, **line),
    ):
        await eventually(lambda: "set tls.outgoing=on here" in caplog.text, "the slave says why")


async def test_either_side_can_go_and_come_back(tmp_path: Path) -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        slave = await stack.enter_async_context(
            member(tmp_path, 1, replication__master=f"127.0.0.1:{port + 1}")
        )
        for _ in range(2):
            async with member(tmp_path, 0, broker__port=port) as master:
                await send(master, 300)
                await in_step(master, slave)
    async with member(tmp_path, 0, broker__port=port) as master:
        await send(master, 300)
        async with member(tmp_path, 1, replication__master=f"127.0.0.1:{port + 1}") as slave:
            await in_step(master, slave)
            assert slave.store.max_offset("orders", 0) == 900


async def test_a_slave_goes_on_behind_log_files_that_were_copied_to_it(tmp_path: Path) -> None:
    port = free_port()
    async with member(tmp_path, 0, broker__port=port) as master:
        await send(master, 3_000)
        copied = tmp_path / "store-1" / "commitlog"
        copied.mkdir(parents=True)
        for segment in master.store.log.segments[:2]:
            shutil.copy(segment.path, copied)
        async with member(tmp_path, 1, replication__master=f"127.0.0.1:{port + 1}") as slave:
            assert slave.store.opened_end > master.store.log.segments[1].start
            await in_step(master, slave)
            assert slave.store.max_offset("orders", 0) == 3_000


@pytest.mark.parametrize("ack", ["one", "majority", "all"])
async def test_what_is_acknowledged_is_with_the_slave(tmp_path: Path, ack: str) -> None:
    port = free_port()
    async with member(
        tmp_path, 0, broker__port=port, replication__ack=ack, replication__timeout_ms=300
    ) as master:
        missing = ResponseCode.SLAVE_NOT_AVAILABLE
        assert set(await send(master, 3)) == {missing}
        async with member(tmp_path, 1, replication__master=f"127.0.0.1:{port + 1}") as slave:
            await eventually(
                lambda: master.role.leader is not None and master.role.leader.available(0),
                "the slave is in sync",
            )
            assert set(await send(master, 100)) == {ResponseCode.SUCCESS}
            assert slave.store.tail.raw_end >= master.store.confirmed - 10_000
            await in_step(master, slave)
        await eventually(
            lambda: master.role.leader is not None and not master.role.leader.available(0),
            "the slave is missed",
        )
        assert set(await send(master, 3)) == {missing}


async def test_nobody_reads_what_is_not_confirmed(tmp_path: Path) -> None:
    port = free_port()
    async with member(
        tmp_path, 0, broker__port=port, replication__ack="majority", replication__timeout_ms=300
    ) as master:
        await send(master, 3)
        async with client(master) as reader:
            answer = await reader.pull("orders", 0)
            assert messages(answer) == []
        async with member(tmp_path, 1, replication__master=f"127.0.0.1:{port + 1}") as slave:
            await in_step(master, slave)
            async with client(master) as reader:
                assert len(messages(await reader.pull("orders", 0))) == 3


async def test_a_slave_of_rocketmqs_asks_for_what_it_keeps_in_files(tmp_path: Path) -> None:
    port = free_port()
    async with member(tmp_path, 0, broker__port=port) as master, client(master) as asking:
        await send(master, 1)
        for code in (
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
            RequestCode.GET_TIMER_CHECK_POINT,
            RequestCode.GET_TIMER_METRICS,
        ):
            answer = await asking.ask(code)
            assert answer.code == ResponseCode.SUCCESS, code
            assert answer.body, code

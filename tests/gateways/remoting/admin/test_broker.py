"""The broker itself, as admin tools ask for it."""

import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from onelog.config_sources import SETTINGS
from onelog.core.membership.assignment import RequestMode as CoreMode
from onelog.store.damage import Damage
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.registration import DataVersion
from onelog.wire.remoting.routes import KVTable
from onelog.wire.remoting.stats import BrokerStatsData, HaStatus, RequestModes, TimerMetrics
from tests.gateways.remoting.desk import Desk, open_desk

UPDATE = RequestCode.UPDATE_BROKER_CONFIG
DAY_MS = 86_400_000


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        opened.world.topic("orders", 2)
        yield opened


async def runtime(desk: Desk) -> dict[str, str]:
    return KVTable.decode((await desk.told(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table


# -- how it runs ---------------------------------------------------------------------------------


async def test_runtime_info_has_every_key_that_tools_read(desk: Desk) -> None:
    table = await runtime(desk)
    keys = """
        brokerVersionDesc putTps getTransferredTps getTransferedTps sendThreadPoolQueueSize
        pullThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills
        pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills earliestMessageTimeStamp
        commitLogDiskRatio msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
        msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow timerReadBehind
        timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps brokerActive bootTimestamp
        runtime putMessageTimesTotal putMessageAverageSize putMessageDistributeTime getFoundTps
        getMissTps getTotalTps dispatchBehindBytes commitLogMinOffset commitLogMaxOffset
        consumeQueueDiskRatio commitLogDirCapacity remainHowManyDataToCommit
        remainHowManyDataToFlush remainTransientStoreBufferNumbs startAcceptSendRequestTimeStamp
        sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity queryThreadPoolQueueCapacity
    """.split()
    assert set(keys) <= set(table)
    for key in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps"):
        assert len([float(number) for number in table[key].split(" ")]) == 3
    for key in (
        "sendThreadPoolQueueSize",
        "earliestMessageTimeStamp",
        "timerReadBehind",
        "commitLogMaxOffset",
        "msgPutTotalTodayNow",
    ):
        int(table[key])
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert table["brokerActive"] == "true"


async def test_runtime_info_counts_what_goes_in_and_out(desk: Desk) -> None:
    world = desk.world
    first_ms = world.store.message_at(world.store.log_min).store_ms
    for _ in range(20):
        world.send("orders", body=b"x" * 100)
    world.pull(0, count_max=5)
    world.pull(99)
    world.advance(10_000)
    table = await runtime(desk)
    assert table["putMessageTimesTotal"] == table["msgPutTotalTodayNow"] == "20"
    assert table["msgGetTotalTodayNow"] == "5"
    assert float(table["putTps"].split()[0]) == pytest.approx(2.0)
    assert float(table["getTransferredTps"].split()[0]) == pytest.approx(0.5)
    assert float(table["getTotalTps"].split()[0]) == pytest.approx(0.2)
    assert 100 < float(table["putMessageAverageSize"]) < 300
    assert table["earliestMessageTimeStamp"] == str(first_ms)
    assert table["commitLogMaxOffset"] == str(world.store.log_end)
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 10 seconds ]"
    world.advance(DAY_MS)
    table = await runtime(desk)
    assert table["msgPutTotalTodayMorning"] == "20"
    assert table["msgPutTotalYesterdayMorning"] == "0"
    assert table["runtime"].startswith("[ 1 days, 0 hours")


async def test_runtime_info_shows_delayed_messages(desk: Desk) -> None:
    desk.world.send("orders", DELAY="3")
    table = await runtime(desk)
    assert table["scheduleMessageOffset_3"] == "0,1"
    assert "scheduleMessageOffset_4" not in table
    desk.world.advance(20_000)
    assert (await runtime(desk))["scheduleMessageOffset_3"] == "1,1"


async def test_runtime_info_of_bytes_is_for_people(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.world.store.flush()
    usage = Usage(3 << 49, (3 << 49) - 1023, 1023)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    table = await runtime(desk)
    assert table["remainHowManyDataToFlush"] == "0 B"
    assert table["commitLogDirCapacity"] == "Total : 1.5 PiB, Free : 1023 B."
    assert 0.99 < float(table["commitLogDiskRatio"]) < 1


async def test_runtime_info_counts_what_is_damaged(desk: Desk) -> None:
    table = await runtime(desk)
    assert (table["onelogDamagedRanges"], table["onelogDamagedBytes"]) == ("0", "0")
    desk.world.store.damage = (Damage(100, 150, "why"), Damage(500, 501, "why"))
    table = await runtime(desk)
    assert (table["onelogDamagedRanges"], table["onelogDamagedBytes"]) == ("2", "51")


async def test_runtime_info_of_a_broker_that_never_stored_anything(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as fresh:
        assert fresh.world.store.log_end == 0
        table = await runtime(fresh)
    assert table["earliestMessageTimeStamp"] == "-1"
    assert table["putMessageAverageSize"] == "0.0"


async def test_a_counter(desk: Desk) -> None:
    for _ in range(30):
        desk.world.send("orders")
    desk.world.advance(10_000)
    code = RequestCode.VIEW_BROKER_STATS_DATA
    answer = await desk.told(code, statsName="TOPIC_PUT_NUMS", statsKey="orders")
    data = BrokerStatsData.decode(answer.body)
    for item in (data.stats_minute, data.stats_hour, data.stats_day):
        assert item is not None
        assert item.sum == 30
    assert data.stats_minute is not None
    assert data.stats_minute.tps == pytest.approx(3.0)
    answer = await desk.ask(code, statsName="TOPIC_PUT_NUMS", statsKey="nowhere")
    assert answer.code == ResponseCode.SYSTEM_ERROR


# -- how it is configured ------------------------------------------------------------------------


async def test_the_configuration_under_both_names(desk: Desk) -> None:
    answer = await desk.told(RequestCode.GET_BROKER_CONFIG)
    lines = bytes(answer.body).decode().splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    assert properties["brokerName"] == properties["broker.name"] == "broker-a"
    assert properties["brokerIP1"] == "127.0.0.1"
    assert properties["autoCreateTopicEnable"] == "true"
    assert set(SETTINGS) <= set(properties)
    version = DataVersion.decode(answer.ext["version"].encode())
    assert version.timestamp == desk.gateway.started_ms


async def test_settings_that_may_change_are_changed_from_this_machine(desk: Desk) -> None:
    await desk.told(UPDATE, b"# a comment\nautoCreateTopicEnable=false\n\nbroker.trace = false\n")
    await desk.told(UPDATE, b"fileReservedTime=48\r\n")
    await desk.told(UPDATE)
    assert desk.changes == [
        {"broker.auto_create_topics": "false", "broker.trace": "false"},
        {"store.retention_ms": "172800000"},
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"listenPort=1", ResponseCode.NO_PERMISSION),
        (b"autoCreateTopicEnable=false\nstorePathRootDir=/tmp", ResponseCode.NO_PERMISSION),
        (b"broker.store_path=/tmp", ResponseCode.NO_PERMISSION),
        (b"rocketmqHome=/tmp", ResponseCode.NO_PERMISSION),
        (b"noSuchSetting=1", ResponseCode.SYSTEM_ERROR),
        (b"filterServerNums=1", ResponseCode.SYSTEM_ERROR),
        (b"trace", ResponseCode.SYSTEM_ERROR),
        (b"fileReservedTime=a day", ResponseCode.SYSTEM_ERROR),
        (b"\xff\xfe", ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_settings_that_may_not_change_are_refused(
    desk: Desk, body: bytes, code: ResponseCode
) -> None:
    answer = await desk.ask(UPDATE, body)
    assert answer.code == code
    assert answer.remark
    assert desk.changes == []


# -- its files -----------------------------------------------------------------------------------


async def test_old_files_are_deleted_when_asked_for(desk: Desk) -> None:
    world, code = desk.world, RequestCode.DELETE_EXPIRED_COMMITLOG
    world.store.retention.disk = lambda _: 10.0
    for _ in range(30):
        world.send("orders", body=b"x" * 100_000)
    await desk.told(code)
    assert world.store.log_min == 0
    world.advance(4 * DAY_MS)
    await desk.told(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    world.store.flush()
    await desk.told(code)
    assert world.store.log_min > 0
    assert world.store.min_offset("orders", 0) > 0
    world.restart()
    assert world.core.topics.get("orders") is not None


@pytest.mark.parametrize(
    "code", [RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE]
)
async def test_a_topic_that_is_kept_for_longer_is_so_also_when_somebody_asks(
    desk: Desk, code: RequestCode
) -> None:
    world = desk.world
    world.topic("archive", 1, attributes={"reserve.time": "1000"})
    world.store.retention.disk = lambda _: 80.0
    world.send("archive", body=b"keep me")
    for _ in range(30):
        world.send("orders", body=b"x" * 100_000)
    world.clock.advance(4 * DAY_MS)
    for _ in range(3):
        await desk.told(code)
        world.store.flush()
    assert world.bodies("archive") == [b"keep me"]
    world.clock.advance(1000 * 3_600_000)
    for _ in range(3):
        await desk.told(code)
        world.store.flush()
    assert world.bodies("archive") == []


# -- its place in the cluster --------------------------------------------------------------------


async def test_a_broker_without_slaves(desk: Desk) -> None:
    status = HaStatus.decode((await desk.told(RequestCode.GET_BROKER_HA_STATUS)).body)
    assert (status.master, status.in_sync_slave_nums) == (True, 0)
    assert status.master_commit_log_max_offset == desk.world.store.log_end


async def test_the_modes_of_groups_are_listed_by_topic_and_group(desk: Desk) -> None:
    answer = await desk.told(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert RequestModes.decode(answer.body) == RequestModes()
    for group, mode in (("readers", CoreMode("POP", 2)), ("others", CoreMode("PULL"))):
        desk.world.core.groups.require(group)
        desk.world.core.request_modes.set(group, "orders", mode)
    answer = await desk.told(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert msgspec.json.decode(bytes(answer.body)) == {
        "messageRequestModeMap": {
            "orders": {
                "readers": {
                    "consumerGroup": "readers",
                    "mode": "POP",
                    "popShareQueueNum": 2,
                    "topic": "orders",
                },
                "others": {
                    "consumerGroup": "others",
                    "mode": "PULL",
                    "popShareQueueNum": 0,
                    "topic": "orders",
                },
            }
        }
    }


async def test_leases_need_not_be_brought_back_from_rocksdb(desk: Desk) -> None:
    assert not (await desk.told(RequestCode.POP_ROLLBACK)).body


async def test_timer_metrics_count_what_waits_by_topic(desk: Desk) -> None:
    answer = await desk.told(RequestCode.GET_TIMER_METRICS)
    assert TimerMetrics.decode(answer.body).timing_count == {}
    world = desk.world
    world.topic("other")
    for number in range(5):
        world.send("orders", number % 2, TIMER_DELAY_MS=str(1_000 * (number + 1)))
    world.send("other", TIMER_DELAY_MS="9000")
    world.advance(1_500)
    answer = await desk.told(RequestCode.GET_TIMER_METRICS)
    metrics = TimerMetrics.decode(answer.body)
    assert {topic: each.count for topic, each in metrics.timing_count.items()} == {
        "orders": 4,
        "other": 1,
    }
    now_ms = world.clock.now_ms()
    assert {each.time_stamp for each in metrics.timing_count.values()} == {now_ms}
    assert metrics.data_version.timestamp == now_ms


async def test_the_timer_checkpoint_says_how_far_timed_messages_are_delivered(desk: Desk) -> None:
    world = desk.world
    world.topic("timed")
    world.send("timed", TIMER_DELAY_MS="100")
    world.send("timed", TIMER_DELAY_MS="5000")
    assert (await runtime(desk))["timerOffsetBehind"] == "2"
    world.advance(200)
    answer = await desk.told(RequestCode.GET_TIMER_CHECK_POINT)
    read_ms, _, position, *_ = struct.unpack(">7q", bytes(answer.body))
    assert (read_ms, position) == (world.begin_ms + 100, 0)
    table = await runtime(desk)
    assert (table["timerOffsetBehind"], table["timerCongestNum"]) == ("0", "2")

"""The broker itself, as admin tools ask for it: how it runs, how it is configured, its counters.

Anybody who can connect may look. Settings may be changed from this machine only, and only those
that are declared as changeable while running: RocketMQ's broker once took any setting from anybody,
and with it commands to run (CVE-2023-33246).

ASK_OPERATION and RUN_OPERATION name an operation of `onelog.admin`, with its arguments as JSON, and
are answered with its result; RUN is for those that change something.
"""

import asyncio
import logging
import shutil
import struct
from functools import partial

from onelog import __version__
from onelog.config_sources import SETTINGS
from onelog.core.admin import BrokerState, LogState
from onelog.core.stats import Statistic
from onelog.errors import (
    ConfigError,
    InvalidRequestError,
    NotPermittedError,
    OnelogError,
    PeerTimeoutError,
    WireError,
)
from onelog.gateways.remoting.admin.setting_names import as_properties, as_settings
from onelog.gateways.remoting.session import BrokerSession, Gateway, Handler, Success
from onelog.message import Buffer
from onelog.rocketmq.tables import modes_body
from onelog.wire.remoting import fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.registration import DataVersion
from onelog.wire.remoting.routes import KVTable
from onelog.wire.remoting.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    HaStatus,
    TimerMetrics,
    TimingCount,
)

_running: set[asyncio.Task[bytes]] = set()
"""The loop itself does not hold them."""


def operate(session: BrokerSession, command: Command) -> None:
    work = session.gateway.context.operate(
        session.principal,
        command.ext.get("operation", ""),
        bytes(command.body),
        command.code == RequestCode.RUN_OPERATION,
        session.connection.remote,
    )
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(partial(_ended, session, command))


def _ended(session: BrokerSession, command: Command, task: asyncio.Task[bytes]) -> None:
    _running.discard(task)
    error = None if task.cancelled() else task.exception()
    if session.connection.closing or task.cancelled():
        return
    if error is None:
        session.answer(command, Success(body=task.result()))
    elif isinstance(error, TimeoutError):
        session.fail(command, PeerTimeoutError("it took too long: look whether it was done"))
    elif isinstance(error, OnelogError):
        session.fail(command, error)
    else:
        log.error("an operation of %s failed", session.connection, exc_info=error)
        session.reply(command, ResponseCode.SYSTEM_ERROR, remark=type(error).__name__)


log = logging.getLogger(__name__)

VERSION_NAME = "V5_5_0"
"""The RocketMQ that OneLog answers as; see `codes.VERSION`."""
FORBIDDEN = frozenset(("brokerConfigPath", "rocketmqHome", "configBlackList"))
"""Settings of RocketMQ through which others took brokers over. There are none of them here."""
_TIMER_CHECKPOINT = struct.Struct(">7q")
BUFFERS_UNLIMITED = 2**31 - 1
CONFIG_BYTES_MAX = 256 << 10
QUEUES = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}
"""RocketMQ's thread pools, and how many requests may wait for each. Here none ever waits: requests
are handled as they are read, and a peer that is too fast is not read from."""


# -- how it runs ---------------------------------------------------------------------------------


def runtime_info(session: BrokerSession, command: Command) -> None:
    session.look_up(
        command,
        lambda: _disk(session.broker.admin.log_state(session.principal)),
        lambda disk: _runtime_info(session, disk),
    )


def _runtime_info(session: BrokerSession, disk: dict[str, str]) -> Success:
    state = session.broker.admin.state(session.principal)
    table = {
        **_life(session.gateway, state),
        **_traffic(state),
        **disk,
        **_waiting_requests(),
        **_delayed(state),
        **_troubles(state),
        **_stalls(session.gateway),
        **_held_back(session),
    }
    return Success(body=KVTable(table=table).encode())


def _held_back(session: BrokerSession) -> dict[str, str]:
    """Which queues the log has to be kept for, the one that keeps most of it first."""
    holds = session.broker.admin.log_holds(session.principal)
    return (
        {
            "onelogLogHeldBy": "; ".join(
                f"{pin.queue} in {pin.vhost}: {pin.messages} messages from {pin.log_offset} on"
                for pin in holds
            )
        }
        if holds
        else {}
    )


def _life(gateway: Gateway, state: BrokerState) -> dict[str, str]:
    return {
        "bootTimestamp": str(state.started_ms),
        "runtime": _span(gateway.clock.now_ms() - state.started_ms),
        "brokerActive": "true",
        "brokerVersionDesc": VERSION_NAME,
        "onelogVersion": __version__,
        "onelogEtcd": gateway.context.loaded.config.replication.etcd,
        "startAcceptSendRequestTimeStamp": "0",
    }


def _span(ms: int) -> str:
    seconds = max(0, ms) // 1000
    return (
        f"[ {seconds // 86_400} days, {seconds // 3_600 % 24} hours, {seconds // 60 % 60} minutes, "
        f"{seconds % 60} seconds ]"
    )


def _traffic(state: BrokerState) -> dict[str, str]:
    totals, rates = state.totals, state.rates
    requested = [
        found + missed for found, missed in zip(rates["found"], rates["missed"], strict=True)
    ]
    transferred = _numbers(rates["transferred"])
    return {
        "putMessageTimesTotal": str(totals.put_count),
        "putMessageFailedTimes": str(totals.put_failed),
        "putMessageSizeTotal": str(totals.put_bytes),
        "putMessageAverageSize": str(totals.put_bytes / max(1, totals.put_count)),
        # How long each send took is not measured; this is what RocketMQ shows before it is.
        "putMessageDistributeTime": "null",
        "putTps": _numbers(rates["put"]),
        "getFoundTps": _numbers(rates["found"]),
        "getMissTps": _numbers(rates["missed"]),
        "getTotalTps": _numbers(requested),
        "getTransferredTps": transferred,
        "getTransferedTps": transferred,  # What tools up to 4.9 read, and cannot do without.
        "msgPutTotalYesterdayMorning": str(state.yesterday_morning.put_count),
        "msgPutTotalTodayMorning": str(state.today_morning.put_count),
        "msgPutTotalTodayNow": str(totals.put_count),
        "msgGetTotalYesterdayMorning": str(state.yesterday_morning.get_count),
        "msgGetTotalTodayMorning": str(state.today_morning.get_count),
        "msgGetTotalTodayNow": str(totals.get_count),
    }


def _numbers(rates: tuple[float, ...] | list[float]) -> str:
    return " ".join(str(rate) for rate in rates)


def _disk(log: LogState) -> dict[str, str]:
    usage = shutil.disk_usage(log.folder)
    ratio = str(log.disk_percent / 100)
    free = usage.total - usage.used  # As Java counts it: with what is reserved for the system.
    return {
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{log.folder / 'commitlog'}": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {_size(usage.total)}, Free : {_size(free)}.",
        "commitLogMinOffset": str(log.min_offset),
        "commitLogMaxOffset": str(log.end),
        "earliestMessageTimeStamp": str(log.first_ms),
        # Queues are entered in the same tick as the log, which is written without a lock.
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "pageCacheLockTimeMills": "0",
        "remainHowManyDataToFlush": _size(log.end - log.flushed),
        "remainHowManyDataToCommit": _size(0),
        "remainTransientStoreBufferNumbs": str(BUFFERS_UNLIMITED),
    }


def _size(count: int) -> str:
    """A number of bytes, for people."""
    if count < 1024:
        return f"{count} B"
    power = (count.bit_length() - 1) // 10
    return f"{count / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"


def _waiting_requests() -> dict[str, str]:
    found = {
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "100000",
    }
    for name, capacity in QUEUES.items():
        found[f"{name}ThreadPoolQueueSize"] = "0"
        found[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
        found[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return found


def _delayed(state: BrokerState) -> dict[str, str]:
    levels = {
        f"scheduleMessageOffset_{level}": f"{position},{end}"
        for level, (position, end) in state.delayed.items()
        if end
    }
    return {
        **levels,
        "timerReadBehind": "0",
        "timerOffsetBehind": str(state.timed_behind),
        "timerCongestNum": str(state.timed_count),
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
    }


def _troubles(state: BrokerState) -> dict[str, str]:
    """Consumer groups whose members subscribe differently: now, and how often they began to.

    And what recovery had to leave out of the log; `onelog store inspect` says why. And how many
    entries of tables cannot be read; the log says which.
    """
    return {
        "onelogMismatchedGroups": " ".join(sorted(state.mismatched_groups)),
        "onelogMismatchesTotal": str(state.mismatches_total),
        "onelogDamagedRanges": str(len(state.damaged_sizes)),
        "onelogDamagedBytes": str(sum(state.damaged_sizes)),
        "onelogQueueEntriesMended": str(state.entries_mended),
        "onelogEntriesSetAside": str(len(state.set_aside)),
    }


def _stalls(gateway: Gateway) -> dict[str, str]:
    """How often the event loop was held for over 20 ms, and for how long; see `stall_watch`."""
    stalls = gateway.context.stalls
    return {
        "onelogStallsTotal": str(stalls.count),
        "onelogStallsTotalMs": str(stalls.total_ms),
        "onelogStallLongestMs": str(stalls.longest_ms),
    }


def statistic(session: BrokerSession, command: Command) -> Success:
    """VIEW_BROKER_STATS_DATA."""
    name, key = fields.text(command.ext, "statsName"), fields.text(command.ext, "statsKey")
    found = session.broker.admin.statistic(session.principal, name, key)
    minute, hour, day = map(_statistic_body, found)
    data = BrokerStatsData(stats_day=day, stats_hour=hour, stats_minute=minute)
    return Success(body=data.encode())


def _statistic_body(found: Statistic) -> BrokerStatsItem:
    return BrokerStatsItem(avgpt=found.per_call, sum=found.total, tps=found.per_second)


# -- how it is configured ------------------------------------------------------------------------


def get_config(session: BrokerSession, command: Command) -> Success:
    session.broker.users.check(session.principal, "describe", ("broker", "names"))
    gateway = session.gateway
    properties = as_properties(gateway.loaded.config)
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    version = DataVersion(timestamp=gateway.started_ms)
    return Success({"version": version.encode().decode()}, text.encode())


def update_config(session: BrokerSession, command: Command) -> Success | None:
    """UPDATE_BROKER_CONFIG: what may change while running."""
    _require_owner(session)
    if len(command.body) > CONFIG_BYTES_MAX:
        raise InvalidRequestError(f"settings of more than {CONFIG_BYTES_MAX} bytes")
    properties = _properties(command.body)
    if properties.keys() & FORBIDDEN:
        raise NotPermittedError("Can not update config in black list.")
    changes = as_settings(properties)
    for key in changes:
        if not SETTINGS[key].reloadable:
            raise NotPermittedError(f"{key} cannot change while the broker runs: restart it")
        if key.startswith("security.") and not session.is_local:
            raise NotPermittedError(f"{key} can be changed on the broker's own machine only")
    if not changes:
        return Success()

    def changed(error: ConfigError | None) -> None:
        if error is not None:
            session.fail(command, error)
            return
        log.info("%s changed settings: %s", session.connection, changes)
        session.broker.users.audit.note(
            session.principal, "alter", f"settings {[*changes]}", "done"
        )
        session.answer(command, Success())

    session.gateway.context.reconfigure(changes, changed)
    return None


def _require_owner(session: BrokerSession) -> None:
    """`NotPermittedError` if they may not change the broker itself."""
    session.broker.users.check(session.principal, "alter", ("broker", "settings"))


def _properties(body: Buffer) -> dict[str, str]:
    try:
        lines = bytes(body).decode().splitlines()
    except UnicodeDecodeError:
        raise WireError("the configuration is not UTF-8") from None
    pairs = [line.partition("=") for line in lines if line.strip() and line[0] not in "#!"]
    return {name.strip(): value.strip() for name, _, value in pairs}


# -- its files -----------------------------------------------------------------------------------


def delete_expired_files(session: BrokerSession, command: Command) -> None:
    """DELETE_EXPIRED_COMMITLOG: what is old enough, at any hour."""
    _require_owner(session)
    session.gateway.context.retain(True, partial(session.conclude, command, Success()))


def clean_expired_queues(session: BrokerSession, command: Command) -> None:
    """CLEAN_EXPIRED_CONSUMEQUEUE. Queues follow the log, so this is an ordinary round."""
    _require_owner(session)
    session.gateway.context.retain(False, partial(session.conclude, command, Success()))


# -- its place in the cluster --------------------------------------------------------------------


def ha_status(session: BrokerSession, command: Command) -> Success:
    broker, replica_status = session.broker, session.gateway.context.replica_status
    broker.users.check(session.principal, "describe", ("broker", "names"))
    followers = replica_status.followers()
    status = HaStatus(
        ha_connection_info=[
            {
                "addr": each.address,
                "slaveAckOffset": each.acknowledged,
                "diff": each.behind_bytes,
                "inSync": each.in_sync,
                "transferFromWhere": each.acknowledged,
                "transferredByteInSecond": 0,
            }
            for each in followers
        ],
        in_sync_slave_nums=sum(each.in_sync for each in followers),
        master=not broker.admin.is_follower,
        master_commit_log_max_offset=broker.admin.log_end,
    )
    return Success(body=status.encode())


def request_modes(session: BrokerSession, command: Command) -> Success:
    """GET_ALL_MESSAGE_REQUEST_MODE: the groups that do not consume by the default."""
    return Success(body=modes_body(session.broker.groups.request_modes(session.principal)).encode())


def timer_checkpoint(session: BrokerSession, command: Command) -> Success:
    """GET_TIMER_CHECK_POINT: how far timed messages are delivered, as RocketMQ's slaves ask."""
    read_ms, position = session.broker.admin.timer_checkpoint(session.principal)
    return Success(body=_TIMER_CHECKPOINT.pack(read_ms, 0, position, position, 0, 0, 0))


def timer_metrics(session: BrokerSession, command: Command) -> None:
    """GET_TIMER_METRICS: how many timed messages of each topic wait."""

    def counted(counts: dict[str, int]) -> None:
        now_ms = session.gateway.clock.now_ms()
        metrics = TimerMetrics(
            data_version=DataVersion(timestamp=now_ms),
            timing_count={
                topic: TimingCount(count=count, time_stamp=now_ms)
                for topic, count in counts.items()
            },
        )
        session.answer(command, Success(body=metrics.encode()))

    session.broker.admin.count_timed(session.principal, counted)


def pop_rollback(session: BrokerSession, command: Command) -> Success:
    """POP_ROLLBACK: bring open leases from RocksDB back to files. They are nowhere else here."""
    session.broker.users.check(
        session.principal, "alter", ("broker", session.broker.admin.config.name)
    )
    return Success()


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
    RequestCode.VIEW_BROKER_STATS_DATA: statistic,
    RequestCode.GET_BROKER_CONFIG: get_config,
    RequestCode.UPDATE_BROKER_CONFIG: update_config,
    RequestCode.DELETE_EXPIRED_COMMITLOG: delete_expired_files,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean_expired_queues,
    RequestCode.GET_BROKER_HA_STATUS: ha_status,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: request_modes,
    RequestCode.GET_TIMER_CHECK_POINT: timer_checkpoint,
    RequestCode.GET_TIMER_METRICS: timer_metrics,
    RequestCode.POP_ROLLBACK: pop_rollback,
    RequestCode.ASK_OPERATION: operate,
    RequestCode.RUN_OPERATION: operate,
}

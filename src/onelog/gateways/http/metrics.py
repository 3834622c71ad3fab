"""`/metrics`: everything that is counted, in Prometheus' text format.

Names are those that people's dashboards know: `rocketmq_*` as RocketMQ 5 and its exporter have
them, `kafka_*` as kafka_exporter has them, `onelog_*` for the rest. It is all read from what the
core counts anyway, a few thousand samples at a time, so that the loop goes on meanwhile.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onelog import __version__
from onelog.core.access import Principal
from onelog.core.admin import BrokerState, LogState
from onelog.gateways import GatewayContext
from onelog.gateways.http.requests import principal_of
from onelog.metrics import CONTENT_TYPE, Page, escaped, process_state

STEP_SECONDS = 0.005
"""How long the loop is held at a time."""
SAMPLES_TOGETHER = 200
_NAMES = {"broker": "remoting"}

Labels = dict[str, str]
Offsets = dict[str, list[tuple[int, int]]]
"""Per topic, from where to where each queue is."""


def routes(context: GatewayContext) -> list[BaseRoute]:
    """What Prometheus asks."""

    async def metrics(request: Request) -> Response:
        page = Page()
        parts: list[bytes] = []
        began = time.perf_counter()
        steps = _steps(context, principal_of(request), page)
        for made in itertools.chain(steps, page.parts()):
            if made is not None:
                parts.append(made)
            if time.perf_counter() - began > STEP_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return Response(b"".join(parts), media_type=CONTENT_TYPE)

    return [Route("/metrics", metrics)]


def _steps(context: GatewayContext, principal: Principal, page: Page) -> Iterator[None]:
    _process(page)
    yield
    _broker(context, principal, page)
    _connections(context, page)
    yield
    offsets: Offsets = {}
    yield from _topics(context, principal, page, offsets)
    yield from _groups(context, principal, page, offsets)
    yield from _counts(context, principal, page)


def _process(page: Page) -> None:
    memory, processor, files = process_state()
    page.one("process_resident_memory_bytes", "gauge", "Memory of the process.", memory)
    page.one("process_cpu_seconds_total", "counter", "Processor time.", processor)
    page.one("process_open_fds", "gauge", "Open files, connections among them.", files)


def _broker(context: GatewayContext, principal: Principal, page: Page) -> None:
    admin, config = context.broker.admin, context.broker.admin.config
    state, log = admin.state(principal), admin.log_state(principal)
    measures = admin.measures(principal)
    where = {"cluster": config.cluster, "node_type": "broker", "node_id": config.name}
    page.one("onelog_build_info", "gauge", "The version.", 1, {"version": __version__})
    started_s = state.started_ms / 1000
    page.one("onelog_start_time_seconds", "gauge", "When the broker started.", started_s)
    page.one(
        "onelog_writable", "gauge", "1 if messages are taken.", int(not admin.refusal(principal))
    )
    page.one(
        "onelog_master", "gauge", "1 if it is master.", int(not context.replica_status.broker_id)
    )
    _totals(page, state, where)
    for what, text in (
        ("append", "Time to append the messages of a tick."),
        ("confirm", "Time until the messages of a tick were safe."),
        ("flush", "Time of a flush."),
    ):
        page.histogram(f"onelog_{what}_seconds", text, getattr(measures, f"{what}_seconds"))
    page.one(
        "rocketmq_timing_messages", "gauge", "Timed messages that wait.", state.timed_count, where
    )
    page.one(
        "onelog_messages_passed_over_total",
        "counter",
        "Messages that could not be read, and that readers of other protocols did not get.",
        context.broker.cursors.messages_passed_over,
    )
    delayed = sum(end - done for done, end in state.delayed.values())
    page.one("onelog_delayed_messages", "gauge", "Messages of delay levels that wait.", delayed)
    page.one(
        "onelog_queue_entries_mended_total",
        "counter",
        "Entries of queues that did not lead to their records, and were written anew.",
        state.entries_mended,
    )
    page.one(
        "onelog_entries_set_aside",
        "gauge",
        "Entries of tables (topics, queues, users and so on) that are recorded and cannot be read.",
        len(state.set_aside),
    )
    stalls = context.stalls
    page.one("onelog_loop_stalls_total", "counter", "Holds of the loop over 20 ms.", stalls.count)
    page.one(
        "onelog_loop_stalled_seconds_total",
        "counter",
        "How long these were.",
        stalls.total_ms / 1000,
    )
    _store(context, page, log, where)
    _replication(context, page)


def _totals(page: Page, state: BrokerState, where: Labels) -> None:
    totals = state.totals
    for name, text, value in (
        ("put_messages", "Messages that were stored.", totals.put_count),
        ("put_bytes", "Bytes of messages that were stored.", totals.put_bytes),
        ("put_failed", "Messages that could not be stored.", totals.put_failed),
        ("get_messages", "Messages that were handed out.", totals.get_count),
        ("fetches_found", "Fetches that found something.", totals.found),
        ("fetches_missed", "Fetches that found nothing.", totals.missed),
    ):
        page.one(f"onelog_{name}_total", "counter", text, value)
    page.one(
        "rocketmq_broker_tps", "gauge", "Messages put per second.", state.rates["put"][0], where
    )
    page.one(
        "rocketmq_broker_qps",
        "gauge",
        "Messages got per second.",
        state.rates["transferred"][0],
        where,
    )


def _store(context: GatewayContext, page: Page, log: LogState, where: Labels) -> None:
    behind = log.end - log.flushed
    page.one("rocketmq_storage_flush_behind_bytes", "gauge", "Not flushed yet.", behind, where)
    page.one("rocketmq_storage_size", "gauge", "Bytes of the log.", log.end - log.min_offset, where)
    reserve_ms = max(0, context.clock.now_ms() - log.first_ms) if log.first_ms > 0 else 0
    page.one(
        "rocketmq_storage_message_reserve_time",
        "gauge",
        "Age of the oldest message, in ms.",
        reserve_ms,
        where,
    )
    page.one(
        "onelog_disk_used_ratio", "gauge", "Of the store's disk.", round(log.disk_percent / 100, 4)
    )


def _replication(context: GatewayContext, page: Page) -> None:
    followers = context.replica_status.followers()
    page.one(
        "onelog_epoch", "gauge", "Which master of its set this is.", context.replica_status.epoch
    )
    page.one("onelog_followers", "gauge", "Nodes that follow this one.", len(followers))
    named = [({"node": str(each.node_id), "address": each.address}, each) for each in followers]
    for name, text, value in (
        ("behind_bytes", "How far a follower is behind.", lambda each: each.behind_bytes),
        ("behind_seconds", "The same in time.", lambda each: each.behind_ms / 1000),
        ("in_sync", "1 if it is waited for.", lambda each: int(each.in_sync)),
    ):
        samples = [(labels, value(each)) for labels, each in named]
        page.many(f"onelog_follower_{name}", "gauge", text, samples)


def _connections(context: GatewayContext, page: Page) -> None:
    counts: dict[str, int] = {}
    for section, _ in context.connections():
        counts[section] = counts.get(section, 0) + 1
    samples = [({"protocol": _NAMES.get(each, each)}, count) for each, count in counts.items()]
    page.many("onelog_connections", "gauge", "Open connections.", samples)


def _topics(
    context: GatewayContext, principal: Principal, page: Page, offsets: Offsets
) -> Iterator[None]:
    broker = context.broker
    _, topics = broker.topics.all(principal)
    page.one("rocketmq_topic_number", "gauge", "Topics.", len(topics))
    page.one(
        "kafka_brokers",
        "gauge",
        "Brokers of the set: this one, and who follows it.",
        1 + len(context.replica_status.followers()),
    )
    oldest, current, partitions = [], [], []
    done = 0
    for config in topics:
        name = config.name
        queues = [
            (
                broker.topics.min_offset(principal, name, each),
                broker.topics.max_offset(principal, name, each, rough=True),
            )
            for each in range(config.queues)
        ]
        offsets[name] = queues
        topic = escaped(name)
        partitions.append(f'kafka_topic_partitions{{topic="{topic}"}} {len(queues)}')
        for number, (start, end) in enumerate(queues):
            labels = f'{{topic="{topic}",partition="{number}"}}'
            oldest.append(f"kafka_topic_partition_oldest_offset{labels} {start}")
            current.append(f"kafka_topic_partition_current_offset{labels} {end}")
        done += len(queues)
        if done >= SAMPLES_TOGETHER:
            done = 0
            yield
    page.about("kafka_topic_partitions", "gauge", "Queues of a topic.", partitions)
    page.about("kafka_topic_partition_oldest_offset", "gauge", "Where a queue begins.", oldest)
    page.about("kafka_topic_partition_current_offset", "gauge", "Where a queue ends.", current)
    yield


def _groups(
    context: GatewayContext, principal: Principal, page: Page, offsets: Offsets
) -> Iterator[None]:
    broker = context.broker
    _, groups = broker.groups.all(principal)
    page.one("rocketmq_consumer_group_number", "gauge", "Consumer groups.", len(groups))
    yield
    _, positions = broker.cursors.positions(principal)
    yield
    lags, group_offsets, sums = [], [], []
    lag_sums, offset_sums = [], []
    done = 0
    where = f'cluster="{broker.admin.config.cluster}",node_id="{broker.admin.config.name}"'
    for (group, topic), queues in positions.items():
        ends = offsets.get(topic)
        if ends is None:
            continue
        ours = f'consumergroup="{escaped(group)}",topic="{escaped(topic)}"'
        total = 0
        for number, position in queues.items():
            lag = max(0, ends[number][1] - position) if number < len(ends) else 0
            total += lag
            lags.append(f'kafka_consumergroup_lag{{{ours},partition="{number}"}} {lag}')
            group_offsets.append(
                f'kafka_consumergroup_current_offset{{{ours},partition="{number}"}} {position}'
            )
        shown = f'consumer_group="{escaped(group)}",topic="{escaped(topic)}"'
        sums.append(f"rocketmq_consumer_lag_messages{{{where},{shown}}} {total}")
        lag_sums.append(f"kafka_consumergroup_lag_sum{{{ours}}} {total}")
        reached = sum(queues.values())
        offset_sums.append(f"kafka_consumergroup_current_offset_sum{{{ours}}} {reached}")
        done += len(queues)
        if done >= SAMPLES_TOGETHER:
            done = 0
            yield
    page.about(
        "kafka_consumergroup_lag", "gauge", "Messages that a group has to read, per queue.", lags
    )
    page.about(
        "kafka_consumergroup_current_offset", "gauge", "Where a group is in a queue.", group_offsets
    )
    page.about(
        "rocketmq_consumer_lag_messages", "gauge", "Messages that a group has to read.", sums
    )
    page.about(
        "kafka_consumergroup_lag_sum", "gauge", "The same, of all queues of a topic.", lag_sums
    )
    page.about(
        "kafka_consumergroup_current_offset_sum",
        "gauge",
        "Where a group is, summed up.",
        offset_sums,
    )
    yield
    yield from _members(context, principal, page, [group.name for group in groups])


def _members(
    context: GatewayContext, principal: Principal, page: Page, groups: list[str]
) -> Iterator[None]:
    broker = context.broker
    samples = []
    for number, group in enumerate(groups, 1):
        found = broker.groups.live(principal, group)
        if found is not None:
            samples.append(({"consumergroup": group}, len(found.members)))
        if number % SAMPLES_TOGETHER == 0:
            yield
    page.many("kafka_consumergroup_members", "gauge", "Live members of a group.", samples)
    producers = broker.groups.producers(principal)
    counts = [({"producer_group": group}, len(found)) for group, found in producers.items()]
    page.many("rocketmq_producer_connections", "gauge", "Live producers of a group.", counts)


def _counts(context: GatewayContext, principal: Principal, page: Page) -> Iterator[None]:
    """What came in and went out since the start, per topic, and per topic and group."""
    measures = context.broker.admin.measures(principal)
    for text, counter in (
        ("in", measures.topic_put),
        ("out", measures.group_get),
        ("back", measures.sent_back),
    ):
        names = [f"rocketmq_{what}_{text}_total" for what in ("messages", "throughput")]
        lines: tuple[list[str], list[str]] = ([], [])
        for number, key in enumerate(counter.keys(), 1):
            topic, group = (key, "") if isinstance(key, str) else key
            labels = f'topic="{escaped(topic)}"'
            if group:
                labels += f',consumer_group="{escaped(group)}"'
            for name, made, value in zip(names, lines, counter.sums(key), strict=True):
                made.append(f"{name}{{{labels}}} {value}")
            if number % SAMPLES_TOGETHER == 0:
                yield
        for name, made, what in zip(names, lines, ("Messages", "Bytes"), strict=True):
            page.about(name, "counter", f"{what} that went {text} since the start.", made)

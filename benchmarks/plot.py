"""docs/speed.svg: how fast OneLog is beside its peers, drawn from what was measured.

    python -m benchmarks.plot

A bar is a ratio: 1 is the peer, more is in OneLog's favour. Nothing is drawn that is not in a file
of results, and what is slower than the peer is drawn, too.
"""

import json
import math
from html import escape
from typing import NamedTuple

from benchmarks.table import RESULTS

TARGET = RESULTS.parents[1] / "docs" / "speed.svg"
WIDTH, LABEL_WIDTH, ROW_HEIGHT, MARGIN = 860, 430, 22, 12
RATIO_MAX = 16.0
FASTER, SLOWER, TEXT, LINE = "#2563eb", "#d97706", "#475569", "#94a3b8"


class Bar(NamedTuple):
    """One measurement of a file of results, and what the plot calls it."""

    results: str
    measurement: str
    label: str


BARS = (
    Bar("rocketmq-2026-11-16", "sync sends, 64 threads", "RocketMQ: sends, 64 threads"),
    Bar("rocketmq-2026-11-16", "batches of 16, 16 threads", "RocketMQ: batches of 16"),
    Bar("rocketmq-2026-11-16", "push consumer", "RocketMQ: push consumer"),
    Bar("kafka-2026-11-17", "produce, 4 partitions, 100 bytes", "Kafka: produce, 100 bytes"),
    Bar("kafka-2026-11-17", "consume, 4 partitions, 1024 bytes", "Kafka: consume, 1 KiB"),
    Bar(
        "kafka-2026-11-17",
        "broker CPU, consume: a million messages of each cell",
        "Kafka: broker CPU of consumers",
    ),
    Bar(
        "amqp-2026-11-17",
        "persistent, confirms (1,000 at most), acks, 1 KiB",
        "RabbitMQ: persistent, with confirms, 1 KiB",
    ),
    Bar(
        "amqp-2026-11-17",
        "1,000 durable queues in turn, autoack, 16 bytes",
        "RabbitMQ: 1,000 durable queues",
    ),
    Bar(
        "amqp-2026-11-17",
        "p99, publish to deliver, at 10,000 msg/s",
        "RabbitMQ: p99 at 10,000 messages a second",
    ),
    Bar("mqtt-2026-11-17", "QoS 1, 1:1", "Mosquitto: QoS 1"),
)


def ratio(bar: Bar) -> float:
    """What was measured."""
    rows = json.loads((RESULTS / f"{bar.results}.json").read_text())["rows"]
    found = next(row for row in rows if row["measurement"] == bar.measurement)
    return float(found["ratio"])


def draw() -> str:
    """The picture; its scale is logarithmic, so that twice and half are as far from 1."""
    unit = (WIDTH - LABEL_WIDTH - 60) / math.log2(RATIO_MAX * 2)
    one = LABEL_WIDTH + unit
    height = 2 * MARGIN + ROW_HEIGHT * (len(BARS) + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13" fill="{TEXT}">',
        f'<text x="{one:.0f}" y="{MARGIN + 10}" text-anchor="middle">the peer = 1</text>',
        f'<path d="M{one:.0f} {MARGIN + 16}V{height - MARGIN}" stroke="{LINE}"/>',
    ]
    for number, bar in enumerate(BARS, 1):
        value, top = ratio(bar), MARGIN + ROW_HEIGHT * number
        end = one + unit * math.log2(value)
        left, right = sorted((one, end))
        lines += [
            f'<text x="{LABEL_WIDTH - 10}" y="{top + 15}" text-anchor="end">'
            f"{escape(bar.label)}</text>",
            f'<rect x="{left:.1f}" y="{top + 3}" width="{right - left:.1f}" '
            f'height="{ROW_HEIGHT - 7}" fill="{FASTER if value >= 1 else SLOWER}"/>',
            f'<text x="{max(end, one) + 6:.1f}" y="{top + 15}">{value:.2f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    TARGET.write_text(draw())

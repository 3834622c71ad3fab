"""Log lines made clean."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog.spark.jobs import clean_logs
from onelog.spark.jobs.queries import run
from tests.commands.running import run as onelog
from tests.spark.jobs.stored import bodies, link, messages
from tests.spark.threaded_cluster import ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD = [
    (
        '{"time": "2026-05-01T10:30:00Z", "level": "warning", "logger": "shop", "msg": "slow"}',
        {"time": "2026-05-01T10:30:00.000Z", "level": "WARN", "origin": "shop", "text": "slow"},
    ),
    (
        '10.0.0.7 - - [01/May/2026:10:30:00 +0200] "GET /cart HTTP/1.1" 503 512 "-" "curl"',
        {
            "time": "2026-05-01T08:30:00.000Z",
            "level": "ERROR",
            "origin": "10.0.0.7",
            "text": "GET /cart HTTP/1.1",
            "status": 503,
            "bytes": 512,
        },
    ),
    (
        "2026-05-01 10:30:00,123 ERROR shop.cart: no stock for 4711",
        {
            "time": "2026-05-01T10:30:00.123Z",
            "level": "ERROR",
            "origin": "shop.cart",
            "text": "no stock for 4711",
        },
    ),
    (
        "2026-05-01T10:30:00Z [info] \x1b[31mjoe@example.org\x1b[0m  password=hunter2\ttook 5 ms"
        " Authorization: Bearer abc",
        {
            "time": "2026-05-01T10:30:00.000Z",
            "level": "INFO",
            "text": "<mail> password=*** took 5 ms Authorization: ***",
        },
    ),
]
BAD = {
    "what is this": "a form that is not known",
    "2026-13-41 10:30:00 INFO x": "a time that is none",
    '{"level": "info"}': "no message",
    "2026-05-01 10:30:00 LOUD x": "level LOUD",
}


@pytest.fixture
def lines(cluster: ThreadedCluster) -> ThreadedCluster:
    for topic in ("lines", "clean", "rejects"):
        cluster.topic(topic, 1)
    raw = [line for line, _ in GOOD] + list(BAD) + ["   "]
    cluster.send("lines", [line.encode() for line in raw])
    return cluster


def test_good_lines_become_uniform_and_bad_ones_rejects(
    spark: "SparkSession", lines: ThreadedCluster, tmp_path: Path
) -> None:
    for _ in range(2):
        run(clean_logs.start(spark, link(lines), "lines", "clean", "rejects", tmp_path))
    assert [json.loads(body) for body in bodies(lines, "clean")] == [clean for _, clean in GOOD]
    assert [message.tags for message in messages(lines, "clean")] == [
        "WARN",
        "ERROR",
        "ERROR",
        "INFO",
    ]
    assert [body.decode() for body in bodies(lines, "rejects")] == list(BAD)
    for message, reason in zip(messages(lines, "rejects"), BAD.values(), strict=True):
        assert f"reason\x01{reason}".encode() in message.properties


def test_statistics_say_who_writes_what(spark: "SparkSession", lines: ThreadedCluster) -> None:
    lines.send("lines", [b"2026-05-01 10:30:01 ERROR shop.cart: no stock for 12"])
    found = clean_logs.statistics(spark, link(lines), "lines")
    assert (found.lines, found.rejected) == (9, 4)
    assert found.levels == {"ERROR": 3, "INFO": 1, "WARN": 1}
    assert found.origins[0] == ("shop.cart", 2, 2)
    assert found.patterns[0] == ("no stock for #", 2)
    shown = onelog("job", "clean-logs", "lines", "-n", lines.nameserver).out
    assert "lines: 9 lines" in shown
    assert "no stock for #" in shown

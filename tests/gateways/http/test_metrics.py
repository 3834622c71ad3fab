"""`/metrics`: what Prometheus reads, and that it is true."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from onelog.metrics import Histogram, Page
from tests.console.traffic import busy
from tests.gateways.http.live import http
from tests.gateways.remoting.live import client

MONITORING = Path(__file__).resolve().parents[3] / "examples" / "monitoring"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(client: httpx.AsyncClient) -> Samples:
    """What a scrape finds, read by Prometheus' own parser."""
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def of(found: Samples, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    wanted = set(labels.items())
    values = [value for (each, has), value in found.items() if each == name and wanted <= has]
    assert values, f"{name} {labels} is not there"
    return sum(values)


async def test_messages_lag_and_latencies_are_told(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, web), client(server) as peer:
        for number in range(10):
            await peer.send("orders", b"x" * 100, e=number % 2)
        broker = server.broker
        from onelog.core.access import SELF

        broker.groups.require(SELF, "billing")
        broker.cursors.commit(SELF, "billing", "orders", 0, 2)
        broker.cursors.commit(SELF, "billing", "orders", 1, 5)
        found = await scraped(web)
        assert of(found, "rocketmq_messages_in_total", topic="orders") == 10
        assert of(found, "rocketmq_throughput_in_total", topic="orders") > 1_000
        assert of(found, "kafka_topic_partition_current_offset", topic="orders") == 10
        assert of(found, "kafka_consumergroup_lag", consumergroup="billing", partition="0") == 3
        lag = of(found, "rocketmq_consumer_lag_messages", consumer_group="billing", topic="orders")
        assert lag == 3
        assert of(found, "onelog_append_seconds_count") >= 1
        assert of(found, "onelog_append_seconds_bucket", le="+Inf") >= 1
        assert of(found, "onelog_connections", protocol="remoting") >= 1
        assert of(found, "onelog_connections", protocol="http") >= 1
        assert of(found, "onelog_writable") == 1
        assert of(found, "process_resident_memory_bytes") > 10 << 20
        server.core.stats.topic_put.newest.clear()
        await peer.send("orders", b"y")
        again = await scraped(web)
        assert of(again, "onelog_put_messages_total") == of(found, "onelog_put_messages_total") + 1


async def test_what_any_protocol_hands_out_is_counted(tmp_path: Path) -> None:
    async with busy(tmp_path) as (server, web, _):
        before = of(await scraped(web), "onelog_get_messages_total")
        assert before >= 1, "a consumer of Kafka has had some"

        def consume() -> int:
            import pika

            at = pika.ConnectionParameters("127.0.0.1", server.config.amqp.port)
            with pika.BlockingConnection(at) as connection:
                had = 0
                messages = connection.channel().consume("jobs", auto_ack=True, inactivity_timeout=1)
                for method, _, _ in messages:
                    had += method is not None  # Else nothing came for a second.
                    if had == 9:
                        break
                return had

        had = await asyncio.to_thread(consume)
        assert of(await scraped(web), "onelog_get_messages_total") >= before + had


async def test_counts_since_the_start_survive_the_buckets_they_were_made_in() -> None:
    from onelog.core.stats import Counter

    counter = Counter(0)
    for now in range(0, 100_000, 10_000):
        counter.add("t", 1, 10)
        counter.add(("t", "g"), 2, 20)
        seen = counter.sums("t")
        for _ in counter.roll(now + 10_000):
            assert counter.sums("t") == seen
        assert counter.sums("t") == seen
    assert counter.sums("t") == (10, 100)
    assert counter.keys() == {"t", ("t", "g")}
    for _ in counter.forget("t"):
        pass
    assert counter.keys() == set()


async def test_names_with_quotes_and_newlines_do_not_break_the_page() -> None:
    page = Page()
    page.one("a", "gauge", "A.", 1, {"topic": 'x"\n\\y'})
    family = next(iter(text_string_to_metric_families(page.text().decode())))
    assert family.samples[0].labels == {"topic": 'x"\n\\y'}


def test_a_histogram_counts_by_size() -> None:
    measured = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        measured.observe(value)
    assert measured.counts == [2, 1, 1]
    assert measured.total == pytest.approx(3.65)
    assert measured.quantile(0.5) == 0.1
    assert measured.quantile(1.0) == 1.0


async def test_the_dashboard_and_the_alerts_ask_for_what_is_there(tmp_path: Path) -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    asked += re.findall(r"^\s+expr: (.*)$", (MONITORING / "alerts.yml").read_text(), re.MULTILINE)
    assert len(asked) > 15
    async with http(tmp_path) as (_, web):
        text = (await web.get("/metrics")).text
        known = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        for expression in asked:
            for name in re.findall(r"\b(?:rocketmq|kafka|onelog|process)_\w+", expression):
                plain = re.sub(r"_(bucket|sum|count)$", "", name)
                assert plain in known, f"{name} of {expression}"

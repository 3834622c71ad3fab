"""The shop of the demonstration, and a server for it."""

import contextlib
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from onelog.client import PullConsumer, Queue
from onelog.errors import OnelogError, TopicNotFoundError
from onelog_examples.shop import CATEGORIES, Shop, order, running_server


def test_an_order_says_what_it_costs() -> None:
    chance = random.Random(7)
    for number in range(100):
        body, cents = order(number, chance, 1_777_000_000.5)
        fields = json.loads(body)
        assert round(fields["amount"] * 100) == cents > 0
        assert fields["category"] in CATEGORIES
        assert fields["order_id"] == f"A{number:08d}"
        assert fields["ordered_at"] == "2026-04-24T03:06:40.500+00:00"


def test_a_shop_counts_what_a_server_has_taken_and_ends_by_itself(tmp_path: Path) -> None:
    with running_server(tmp_path) as nameserver:
        with Shop(nameserver, "orders", rate=5_000, orders_max=600) as shop:
            shop.wait()
            assert not shop.is_open
        assert shop.orders == 600
        with PullConsumer("readers", nameserver=nameserver) as reader:
            queues = reader.queues("orders")
            reader.assign(queues)
            reader.seek_to_begin(*queues)
            found: list[dict[str, Any]] = []
            while len(found) < 600:
                found += [json.loads(each.body) for each in reader.poll(timeout=30)]
        assert len({each["order_id"] for each in found}) == 600
        assert sum(round(each["amount"] * 100) for each in found) == shop.cents


def test_a_shop_waits_after_its_first_orders_until_it_is_told_to_begin(tmp_path: Path) -> None:
    with (
        running_server(tmp_path) as nameserver,
        Shop(nameserver, "orders", rate=100_000, orders_max=600, first=10) as shop,
        PullConsumer("readers", nameserver=nameserver) as reader,
    ):
        found: set[tuple[Queue, int]] = set()
        while len(found) < 10:
            with contextlib.suppress(TopicNotFoundError):
                queues = reader.queues("orders")
                reader.assign(queues)
                reader.seek_to_begin(*queues)
                found |= {(each.queue, each.offset) for each in reader.poll(timeout=30)}
        while shop.orders < 10:  # It counts when it hears that the broker has them.
            time.sleep(0.01)
        assert shop.is_open
        assert not shop.has_begun
        assert (len(found), shop.orders) == (10, 10)
        shop.begin()
        shop.wait()
        assert shop.orders == 600


def test_a_shop_that_waits_can_be_closed(tmp_path: Path) -> None:
    with running_server(tmp_path) as nameserver:
        with Shop(nameserver, "orders", rate=10, orders_max=600, first=10) as shop:
            shop.close()
        assert shop.orders == 10


def test_what_stops_a_shop_is_raised_when_it_closes() -> None:
    shop = Shop("127.0.0.1:1", "orders", rate=10, orders_max=10)
    with pytest.raises(OnelogError):
        with shop:
            shop.wait()
    assert shop.orders == 0

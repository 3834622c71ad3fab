import pytest

from onelog.clock import ManualClock
from onelog.core.stats import _KEYS_TOGETHER, DAY, HOUR, MINUTE, Counter, Stats


class Watched:
    """Counters that are ticked every ten seconds, as the broker does it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.stats = Stats(self.clock, "DefaultCluster")

    def run(self, seconds: int, per_second: int = 0) -> None:
        for _ in range(seconds // 10):
            if per_second:
                self.stats.put("orders", per_second * 10, per_second * 1_000)
            self.clock.advance(10_000)
            self.stats.tick()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_was_counted_is_seen_over_a_minute_an_hour_and_a_day(watched: Watched) -> None:
    watched.run(60, per_second=5)
    found = watched.stats.find("TOPIC_PUT_NUMS", "orders")
    assert found is not None
    assert [each.total for each in found] == [300, 300, 300]
    assert found[0].per_second == pytest.approx(5)
    sizes = watched.stats.find("TOPIC_PUT_SIZE", "orders")
    assert sizes is not None
    assert sizes[0].total == 30_000
    assert sizes[0].per_call == pytest.approx(100)


def test_what_is_old_leaves_the_minute_then_the_hour_then_the_day(watched: Watched) -> None:
    watched.run(60, per_second=5)
    watched.run(120)
    counter = watched.stats.topic_put
    now = watched.clock.now_ms
    assert counter.over(MINUTE, "orders", now()).total == 0
    assert counter.over(HOUR, "orders", now()).total == 300
    watched.run(2 * 3_600)
    assert counter.over(HOUR, "orders", now()).total == 0
    assert counter.over(DAY, "orders", now()).total == 300
    watched.run(26 * 3_600)
    assert counter.over(DAY, "orders", now()).total == 0
    assert watched.stats.find("TOPIC_PUT_NUMS", "orders") is None


def test_nothing_is_counted_twice_while_buckets_are_poured_on(watched: Watched) -> None:
    watched.run(3 * 3_600, per_second=2)
    counter = watched.stats.topic_put
    assert counter.over(DAY, "orders", watched.clock.now_ms()).total == 3 * 3_600 * 2
    assert counter.over(HOUR, "orders", watched.clock.now_ms()).per_second == pytest.approx(2, 0.2)


def test_a_rate_right_after_the_start_does_not_explode() -> None:
    clock = ManualClock()
    counter = Counter(clock.now_ms())
    counter.add("k", 100, 0)
    assert counter.over(MINUTE, "k", clock.now_ms()).per_second == pytest.approx(10)


def test_the_brokers_own_counters_go_by_the_clusters_name(watched: Watched) -> None:
    watched.run(30, per_second=1)
    found = watched.stats.find("BROKER_PUT_NUMS", "DefaultCluster")
    assert found is not None
    assert found[0].total == 30
    assert watched.stats.find("BROKER_GET_NUMS", "DefaultCluster") is None


def test_unknown_names_and_keys_are_none(watched: Watched) -> None:
    watched.run(10, per_second=1)
    assert watched.stats.find("TOPIC_PUT_NUMS", "bills") is None
    assert watched.stats.find("NO_SUCH_NAME", "orders") is None


def test_got_messages_are_counted_per_group_and_topic(watched: Watched) -> None:
    watched.stats.got("readers", "orders", 32, 4_096)
    found = watched.stats.find("GROUP_GET_NUMS", "orders@readers")
    assert found is not None
    assert (found[0].total, found[0].per_call) == (32, 32)
    assert watched.stats.get_rate("readers", "orders") == pytest.approx(3.2)
    assert watched.stats.totals.found == 1


def test_a_deleted_topic_takes_its_counters_along(watched: Watched) -> None:
    watched.stats.put("orders", 1, 1)
    watched.stats.got("orders-fans", "orders", 1, 1)
    watched.stats.got("readers", "bills", 1, 1)
    watched.stats.forget("orders")
    assert watched.stats.find("TOPIC_PUT_NUMS", "orders") is None
    assert watched.stats.find("GROUP_GET_NUMS", "orders@orders-fans") is None
    assert watched.stats.find("GROUP_GET_NUMS", "bills@readers") is not None


def test_rates_over_ten_seconds_a_minute_and_ten_minutes(watched: Watched) -> None:
    watched.run(600, per_second=10)
    watched.run(60)
    ten_seconds, minute, ten_minutes = watched.stats.rates()["put"]
    assert ten_seconds == 0
    assert minute == pytest.approx(0)
    assert ten_minutes == pytest.approx(9, 0.1)


def test_midnight_moves_the_mornings_totals(watched: Watched) -> None:
    watched.run(2 * 86_400, per_second=1)
    today, yesterday = watched.stats.today_morning, watched.stats.yesterday_morning
    assert today.put_count - yesterday.put_count == 86_400
    assert 0 < yesterday.put_count < 86_400


def test_very_many_keys_are_rolled_and_forgotten_some_at_a_time(watched: Watched) -> None:
    count = 3 * _KEYS_TOGETHER
    for number in range(count):
        watched.stats.put(f"topic-{number}", 1, 10)
    watched.clock.advance(10_000)
    parts = 1
    while watched.stats.tick():
        parts += 1
    assert parts > 3
    watched.stats.forget("topic-1")
    assert watched.stats.find("TOPIC_PUT_NUMS", "topic-1") is not None, "it is on its way"
    while watched.stats.tick():
        pass
    assert watched.stats.find("TOPIC_PUT_NUMS", "topic-1") is None
    for key in ("topic-2", f"topic-{count - 1}"):
        found = watched.stats.find("TOPIC_PUT_NUMS", key)
        assert found is not None
        assert [each.total for each in found] == [1, 1, 1]

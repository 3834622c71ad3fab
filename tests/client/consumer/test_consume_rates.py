"""Rates are of the last minute, and failures of the last hour."""

from onelog.client.consumer.consume_rates import LOOK_SECONDS, ConsumeRates
from onelog.wire.remoting.clients import ConsumeStatus


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_topic_that_nothing_is_known_of_has_no_rates() -> None:
    assert ConsumeRates().status("t") == ConsumeStatus()


def test_rates_are_those_of_the_last_minute() -> None:
    time = Time()
    rates = ConsumeRates(time)
    for _ in range(30):
        rates.look()
        rates.pulled("t", 0.004, 100)
        rates.consumed("t", 90)
        rates.failed("t", 10)
        rates.took("t", 0.5, 100)
        time.now += LOOK_SECONDS
    status = rates.status("t")
    assert status.pull_tps == 10.0
    assert status.consume_ok_tps == 9.0
    assert status.consume_failed_tps == 1.0
    assert round(status.pull_rt, 6) == 4.0
    assert round(status.consume_rt, 6) == 5.0
    assert status.consume_failed_msgs == 300


def test_what_was_long_ago_does_not_count() -> None:
    time = Time()
    rates = ConsumeRates(time)
    rates.look()
    rates.consumed("t", 1000)
    rates.failed("t", 7)
    for _ in range(10):
        time.now += LOOK_SECONDS
        rates.look()
    assert rates.status("t").consume_ok_tps == 0.0
    assert rates.status("t").consume_failed_msgs == 7
    for _ in range(360):
        time.now += LOOK_SECONDS
        rates.look()
    assert rates.status("t").consume_failed_msgs == 0

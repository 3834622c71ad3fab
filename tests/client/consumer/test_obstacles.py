"""Saying what keeps a consumer from its messages."""

import pytest

from onelog.client.consumer.fetching import Obstacles
from onelog.errors import PeerTimeoutError, TopicNotFoundError


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


def test_a_reason_is_a_warning_once_until_it_is_another(caplog: pytest.LogCaptureFixture) -> None:
    obstacles = Obstacles()
    for _ in range(3):
        obstacles.report("orders", PeerTimeoutError("10.0.0.1:10911 did not answer"))
    assert len(warnings(caplog)) == 1
    assert "orders" in caplog.text
    assert "10.0.0.1:10911 did not answer" in caplog.text
    obstacles.report("orders", PeerTimeoutError("10.0.0.2:10911 did not answer"))
    obstacles.report("others", PeerTimeoutError("10.0.0.2:10911 did not answer"))
    assert len(warnings(caplog)) == 3


def test_after_it_went_well_a_reason_is_new_again(caplog: pytest.LogCaptureFixture) -> None:
    obstacles = Obstacles()
    for _ in range(2):
        obstacles.report("orders", PeerTimeoutError("no answer"))
        obstacles.settle("orders")
    assert len(warnings(caplog)) == 2


def test_topics_that_do_not_exist_yet_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    obstacles = Obstacles()
    obstacles.report("orders", TopicNotFoundError("no such topic"))
    obstacles.report("%RETRY%billing", PeerTimeoutError("no answer"))
    assert warnings(caplog) == []

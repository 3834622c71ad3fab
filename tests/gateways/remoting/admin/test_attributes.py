"""Attributes of topics and groups."""

import pytest

from onelog.errors import InvalidRequestError
from onelog.gateways.remoting.admin.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    alter,
    parse_changes,
)


def test_changes_are_read() -> None:
    assert parse_changes(None) == parse_changes("") == {}
    assert parse_changes("+a=1,-b,+c=x=y") == {"+a": "1", "-b": "", "+c": "x=y"}


@pytest.mark.parametrize("text", ["a", "a=1", "-a=1", "+a", "+a=", "+a=1,+a=2", "-a,-a", "="])
def test_changes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_changes(text)


def test_attributes_are_set_changed_and_taken_away() -> None:
    created = alter(TOPIC_ATTRIBUTES, None, {"+queue.type": "SimpleCQ", "+message.type": "FIFO"})
    assert created == {"queue.type": "SimpleCQ", "message.type": "FIFO"}
    changes = {"+message.type": "DELAY", "+reserve.time": "-1"}
    changed = alter(TOPIC_ATTRIBUTES, created, changes)
    assert changed == {"queue.type": "SimpleCQ", "message.type": "DELAY", "reserve.time": "-1"}
    assert alter(TOPIC_ATTRIBUTES, changed, {"-message.type": ""}) == {
        "queue.type": "SimpleCQ",
        "reserve.time": "-1",
    }


@pytest.mark.parametrize(
    ("current", "changes"),
    [
        (None, {"-message.type": ""}),
        (None, {"+no.such": "1"}),
        (None, {"message.type": "FIFO"}),
        (None, {"+message.type": "fifo"}),
        (None, {"+reserve.time": "-2"}),
        (None, {"+reserve.time": str(2**63)}),
        (None, {"+reserve.time": "soon"}),
        (None, {"": ""}),
        ({}, {"-message.type": ""}),
        ({}, {"+queue.type": "SimpleCQ"}),
        ({"queue.type": "SimpleCQ"}, {"-queue.type": ""}),
        ({"message.type": "FIFO"}, {"+message.type": "DELAY", "-message.type": ""}),
    ],
)
def test_changes_that_cannot_be_made_are_refused(
    current: dict[str, str] | None, changes: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequestError):
        alter(TOPIC_ATTRIBUTES, current, changes)


@pytest.mark.parametrize(
    "text",
    [
        "queue.type=Other",
        "cleanup.policy=NEVER",
        "message.type=OTHER",
        "lite.bind.topic=x",
        "no.such=1",
    ],
)
def test_what_this_broker_does_not_implement_is_refused_by_name(text: str) -> None:
    name, _, value = text.partition("=")
    for known in (TOPIC_ATTRIBUTES, GROUP_ATTRIBUTES):
        with pytest.raises(InvalidRequestError, match=f"{name}.*this broker (?:does not )?impl"):
            alter(known, None, {f"+{name}": value})


def test_what_a_store_of_rocketmq_brought_stays_and_can_be_taken_away() -> None:
    brought = {"priority.factor": "50", "lite.sub.model": "Shared"}
    assert alter(GROUP_ATTRIBUTES, brought, {}) == brought
    left = alter(GROUP_ATTRIBUTES, brought, {"-priority.factor": ""})
    assert left == {"lite.sub.model": "Shared"}

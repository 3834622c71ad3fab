"""What a client's filters grant for a topic, however many it has."""

from random import Random

import pytest

from onelog.gateways.mqtt import subscriptions
from onelog.gateways.mqtt.filters import Filter, read_filter
from onelog.gateways.mqtt.outgoing import Grant
from onelog.gateways.mqtt.subscriptions import Subscribed, Subscriptions

LEVELS = ("a", "b", "", "$x", "+")


def filters(random: Random) -> list[str]:
    found = []
    for _ in range(60):
        levels = random.choices(LEVELS, k=random.randint(1, 4))
        text = "/".join([*levels, *random.choice(([], ["#"]))]) or "/"
        found.append(random.choice(("", "", "$share/g/")) + text)
    return [*found, "#", "+/#", "$x/#"]


@pytest.mark.parametrize("seed", range(20))
def test_many_filters_grant_what_the_same_ones_grant_that_are_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(subscriptions, "FEW", 1_000)
    few = Subscriptions("me")
    monkeypatch.setattr(subscriptions, "FEW", 8)
    many = Subscriptions("me")
    for number, text in enumerate(filters(random)):
        subscribed = Subscribed(read_filter(text), random.choice((0, 1, 2, 6, 9)), number)
        monkeypatch.setattr(subscriptions, "FEW", 1_000)
        few.set(text, subscribed)
        monkeypatch.setattr(subscriptions, "FEW", 8)
        many.set(text, subscribed)
    for _ in range(2):
        for _ in range(50):
            levels = random.choices(("a", "b", "", "$x", "c"), k=random.randint(1, 4))
            topic = "/".join(levels).encode()
            for publisher in (b"me", b"you"):
                one, other = few.grant(topic, publisher), many.grant(topic, publisher)
                assert (one is None) == (other is None), topic
                if one is not None and other is not None:
                    assert one._replace(ids=()) == other._replace(ids=())
                    assert sorted(one.ids) == sorted(other.ids)
        for text in random.sample(list(few.by_filter), len(few.by_filter) // 2):
            assert few.drop(text) == many.drop(text)


def test_of_many_filters_those_that_cannot_match_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Filter, "matches", None)
    many = Subscriptions("me")
    for number in range(1_000):
        many.set(f"a/{number}/+", Subscribed(read_filter(f"a/{number}/+"), 1, 0))
    assert many.grant(b"a/7/x", b"you") == Grant(1, False, ())
    assert many.grant(b"b/7/x", b"you") is None

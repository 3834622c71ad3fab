"""Patterns that take for ever: none of a peer's regular expressions, selectors or bindings does."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.core.access import SELF
from onelog.core.filters.patterns import compile_pattern
from onelog.core.filters.selectors import compile_selector
from onelog.core.filters.sql92 import compile_sql
from onelog.core.membership.consumers import Beat
from onelog.core.queues.policies import Policy
from onelog.core.routing.topic_trie import TopicTrie
from onelog.errors import FilterSyntaxError, InvalidRegexError, PreconditionFailedError
from onelog.wire.kafka.codes import ApiKey
from tests.core.membership.test_consumers import Room
from tests.core.queues.yard import Yard
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import raw

A_WHILE = 1.5
"""Seconds of CPU time: many times what is needed where others share the caches, and a small part
of what was."""
KEY = ".".join(["a"] * 127)
"""As many words as 255 bytes hold."""
EVIL = [r"(a+)+$", r"(a|aa)+$", r"(.*a){12}$", r"(a*)*b", r"([a-z]+)*-$", r"^(\w+\s?)*$"]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path / "store")
    yield made
    made.close()


def cpu_seconds(call: Callable[[], object]) -> float:
    """What a call takes, whatever else this machine does."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


@pytest.mark.parametrize("regex", EVIL)
def test_a_subscription_by_a_regular_expression_does_not_backtrack(regex: str) -> None:
    room = Room()
    room.topics = {"a" * 28 + "!" + str(number): 1 for number in range(3)}
    beat = Beat("g", "a", 0, rebalance_ms=1_000, regex=regex, owned=())
    assert cpu_seconds(lambda: room.groups.heartbeat(beat)) < A_WHILE


def test_a_thousand_members_with_one_pattern_look_at_each_topic_once() -> None:
    room = Room()
    room.topics = {f"orders-{number}": 1 for number in range(2_000)}
    first = Beat("g", "m0", 0, rebalance_ms=1_000, regex="order.*", owned=())
    room.groups.heartbeat(first)
    pattern = compile_pattern("order.*")
    assert cpu_seconds(lambda: [pattern.is_all_of(name) for name in room.topics]) < 0.05


@pytest.mark.parametrize("regex", [r"(?!amq\.).*", r"(a)\1", r"(?<=a)b", r"(?>a+)b"])
def test_what_no_linear_engine_can_do_is_refused_with_the_reason(regex: str) -> None:
    beat = Beat("g", "a", 0, rebalance_ms=1_000, regex=regex, owned=())
    with pytest.raises(InvalidRegexError, match="look-ahead, look-behind and references"):
        Room().groups.heartbeat(beat)


@pytest.mark.parametrize("regex", ["(.{0,30}){0,30}", "(((a{9}){9}){9}){9}", "x{1001}"])
def test_a_pattern_that_repeats_itself_too_often_is_refused(regex: str) -> None:
    with pytest.raises(FilterSyntaxError, match=r"is too large|is no pattern"):
        compile_pattern(regex)


async def test_kafka_s_clients_are_told_what_is_wrong_with_a_pattern(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        fields = {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout_ms": 1_000,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": r"(a)\1",
            "topic_partitions": [],
        }
        answer = await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
        assert answer["error_code"] == 128  # INVALID_REGULAR_EXPRESSION
        assert "references to groups are not served" in answer["error_message"]


@pytest.mark.parametrize("pattern", EVIL)
def test_a_policy_does_not_backtrack(yard: Yard, pattern: str) -> None:
    for number in range(3):
        yard.queue("a" * 28 + "!" + str(number))
    policy = Policy("/", "p", pattern, {"max-length": 2})
    assert cpu_seconds(lambda: yard.works.policies.put(SELF, "policy", policy)) < A_WHILE


def test_a_policy_with_look_ahead_is_refused_with_the_reason(yard: Yard) -> None:
    policy = Policy("/", "p", r"^(?!amq\.).*", {"max-length": 2})
    with pytest.raises(PreconditionFailedError, match="look-ahead"):
        yard.works.policies.put(SELF, "policy", policy)


def test_a_policy_of_an_older_version_counts_for_nothing_and_stops_nothing(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {
        "pattern": "(?!x).*",
        "definition": {"max-length": 1},
        "priority": 0,
        "apply_to": "all",
    }
    tables = yard.works._tables
    tables._take([("policies", "policy@/@old", kept)])  # As a start does.
    assert yard.works.policies.of_queue("policy", yard.queue("q")) is None
    assert tables.is_aside("policies", "policy@/@old")
    assert "look-ahead, look-behind and references to groups are not served" in caplog.text


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("%a" * 300 + "%b", "a" * 30_000),
        ("%a_" * 100 + "%b%", "a" * 30_000),
        ("%" * 4_000 + "b", "a" * 30_000),
        ("%aa%aa%aa%aa%aa%b", "a" * 30_000),
        ("_%" * 200 + "b", "a" * 30_000),
        ("%" + "a" * 8_000 + "b%", "a" * 30_000),
    ],
    ids=["letters", "any-letter", "signs", "pairs", "both", "long"],
)
def test_a_selector_with_like_goes_through_a_header_once(pattern: str, text: str) -> None:
    selected = compile_selector(f"x LIKE '{pattern}'")
    assert cpu_seconds(lambda: selected({"x": text})) < A_WHILE


def test_many_places_for_any_letter_are_too_many_conditions() -> None:
    with pytest.raises(FilterSyntaxError, match="more than 500 conditions"):
        compile_selector("x LIKE '%" + "_a" * 1_000 + "b%'")


@pytest.mark.parametrize(
    "text",
    [
        "0" * 15_999,
        "(" * 15_000,
        "NOT " * 3_900 + "a",
        "a IN (" + "'a'," * 3_900 + "'b')",
        "-" * 7_900 + "1",
        "a = 1" + " = 1" * 3_000,
        "''" * 7_999,
        "/*" * 7_999,
    ],
    ids=["zeros", "open", "not", "in", "minus", "equal", "quotes", "comments"],
)
def test_a_filter_is_compiled_or_refused_at_once(text: str) -> None:
    def attempt() -> None:
        for compiled in (compile_sql, compile_selector):
            try:
                compiled(text)
            except FilterSyntaxError:
                continue

    assert cpu_seconds(attempt) < A_WHILE


def _bindings(kind: str) -> list[str]:
    rand = random.Random(1)
    if kind == "hashes":
        return [
            "#."
            + ".".join("#" if at % 2 else rand.choice("a*") for at in range(61))
            + f".x{number}"
            for number in range(1_000)
        ]
    if kind == "stars":
        return [
            ".".join(rand.choice("a*") for _ in range(125)) + f".x{number}"
            for number in range(4_000)
        ]
    return [
        "#." + ".".join("#" if at % 2 else f"w{number}-{at}" for at in range(61))
        for number in range(1_000)
    ]


@pytest.mark.parametrize("kind", ["hashes", "stars", "words"])
def test_a_thousand_bindings_of_wildcards_cost_a_long_key_little(kind: str) -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number, pattern in enumerate(_bindings(kind)):
        trie.add(pattern, number)

    def publish() -> None:
        for number in range(10):
            trie.match(f"{KEY}.k{number}")

    assert cpu_seconds(publish) < 4 * A_WHILE  # It was three quarters of a second for each key.


def test_a_thousand_filters_that_overlap_cost_a_deep_topic_little() -> None:
    trie: TopicTrie[int] = TopicTrie("/", "+", "#")
    rand = random.Random(1)
    for number in range(5_000):
        levels = [rand.choice("a+") for _ in range(rand.randrange(1, 190))]
        trie.add("/".join([*levels, "#"]), number)

    def publish() -> None:
        for number in range(5):
            trie.match("/".join(["a"] * 199 + [str(number)]))

    assert cpu_seconds(publish) < A_WHILE

"""One random program, done by OneLog and by RabbitMQ side by side: they say the same."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.e2e.amqp_sides import Side, Step
from tests.e2e.onelog_amqp import OnelogAmqp
from tests.e2e.rabbitmq_peer import MISSING, RabbitmqPeer

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.timeout(1_400),
]
SHORT_STEPS, SOAK_STEPS, PROGRAM_STEPS = 600, 10_000, 40
QUEUES = ["q0", "q1", "q2"]
EXCHANGES = ["e0", "e1", "e2"]
KEYS = ["q0", "q1", "a", "a.b", "a.*", "#", ""]

clients = st.sampled_from([0, 0, 0, 1, 2])
queues = st.sampled_from(QUEUES)
exchanges = st.sampled_from([*EXCHANGES, "amq.topic", "amq.fanout", "amq.headers"])
any_exchange = st.sampled_from([*EXCHANGES, "", "amq.direct", "amq.topic"])
keys = st.sampled_from(KEYS)
seldom = st.sampled_from([False] * 7 + [True])
binding_arguments = st.sampled_from(
    [
        None,
        None,
        None,
        {"x-match": "any", "h": 1},
        {"x-match": "all", "h": 1, "t": "x"},
        {"h": None},
    ]
)
queue_arguments = st.one_of(
    st.none(),
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "x-max-length": st.sampled_from([0, 1, 3]),
            "x-max-length-bytes": st.sampled_from([10]),
            "x-overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
            "x-dead-letter-exchange": st.sampled_from(["", "e0", "e1"]),
            "x-dead-letter-routing-key": st.sampled_from(["q1", "a"]),
            "x-max-priority": st.sampled_from([1, 3]),
            "x-message-ttl": st.sampled_from([0, 600_000]),
            "x-single-active-consumer": st.booleans(),
        },
    ),
    st.sampled_from(
        [
            {"x-max-length": -1},
            {"x-max-length": "1"},
            {"x-message-ttl": "x"},
            {"x-expires": 0},
            {"x-overflow": "no"},
            {"x-max-priority": 256},
            {"x-unknown": 7},
            {"x-dead-letter-exchange": 7},
            {"x-queue-type": "none"},
        ]
    ),
)


def _step(name: str, **arguments: Any) -> st.SearchStrategy[Step]:
    fixed = st.fixed_dictionaries({"client": clients, **arguments})
    return st.tuples(st.just(name), fixed)


publishing = _step(
    "publish",
    exchange=any_exchange,
    key=keys,
    mandatory=st.booleans(),
    body=st.binary(max_size=8),
    headers=st.sampled_from([None, None, {"h": 1}, {"h": 1, "t": "x"}, {"h": 2}, {"CC": ["q1"]}]),
    priority=st.sampled_from([None, None, 0, 2, 9]),
    delivery_mode=st.sampled_from([None, 1, 2]),
    expiration=st.sampled_from([None] * 6 + ["0", "600000", "x"]),
)
to_default = _step(
    "publish", exchange=st.just(""), key=queues, mandatory=seldom, body=st.binary(max_size=8)
)
getting = _step("get", queue=queues, auto_ack=seldom)
declaring = _step(
    "declare_queue",
    queue=queues,
    durable=st.sampled_from([True, True, False]),
    passive=seldom,
    exclusive=seldom,
    auto_delete=seldom,
    arguments=queue_arguments,
)
settling = _step(
    "settle",
    how=st.sampled_from(["ack", "nack", "nack", "reject"]),
    at=st.sampled_from([0, 0, 1, 2, 3, 4, -1, -2]),
    multiple=st.booleans(),
    requeue=st.booleans(),
)
steps = st.one_of(
    declaring,
    to_default,
    to_default,
    publishing,
    publishing,
    getting,
    getting,
    getting,
    settling,
    settling,
    _step("declare_queue", queue=queues, durable=st.just(True), arguments=st.none()),
    _step(
        "declare_exchange",
        exchange=exchanges,
        passive=seldom,
        auto_delete=seldom,
        exchange_type=st.sampled_from(["direct", "fanout", "topic", "headers"]),
        durable=st.booleans(),
        internal=seldom,
        arguments=st.sampled_from([None, None, None, {"alternate-exchange": "e1"}]),
    ),
    _step(
        "bind",
        to=st.sampled_from([*QUEUES, *QUEUES, *EXCHANGES]),
        exchange=any_exchange,
        key=keys,
        arguments=binding_arguments,
    ),
    _step("bind", to=queues, exchange=exchanges, key=keys),
    _step(
        "unbind",
        to=st.sampled_from([*QUEUES, *EXCHANGES]),
        exchange=any_exchange,
        key=keys,
        arguments=binding_arguments,
    ),
    _step(
        "consume",
        queue=queues,
        prefetch=st.sampled_from([0, 1, 3]),
        auto_ack=seldom,
        exclusive=seldom,
    ),
    _step("cancel", queue=queues),
    _step("purge", queue=queues),
    _step("delete_queue", queue=queues, if_unused=seldom, if_empty=st.booleans()),
    _step("delete_exchange", exchange=exchanges, if_unused=st.booleans()),
    _step("recover"),
    _step("close"),
)
BEGINNING: list[Step] = [
    ("declare_queue", {"queue": "q0", "durable": True}),
    ("declare_exchange", {"exchange": "e0", "exchange_type": "topic", "durable": True}),
    ("bind", {"to": "q0", "exchange": "e0", "key": "#"}),
]
"""Without it many steps would do nothing."""
programs = st.lists(
    steps, min_size=PROGRAM_STEPS - len(BEGINNING), max_size=PROGRAM_STEPS - len(BEGINNING)
).map(lambda program: BEGINNING + program)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """OneLog and RabbitMQ."""
    folder: Path = tmp_path_factory.mktemp("oracle")
    with OnelogAmqp(folder / "onelog") as ours, RabbitmqPeer(folder / "rabbitmq") as theirs:
        both = Side(ours.url), Side(theirs.url)
        yield both
        for side in both:
            side.close()


_numbers = itertools.count()


def _same(ours: Side, theirs: Side, program: list[Step]) -> None:
    prefix = f"p{next(_numbers)}."
    for side in (ours, theirs):
        side.begin(prefix)
    try:
        for number, step in enumerate(program):
            here, there = ours.do(step), theirs.do(step)
            note(f"{number}: {step} -> {there}")
            assert here == there, f"step {number}, {step}"
            counts = ours.counts(QUEUES), theirs.counts(QUEUES)
            assert counts[0] == counts[1], f"after step {number}, {step}"
            assert ours.heard() == theirs.heard(), f"delivered after step {number}, {step}"
    finally:
        for side in (ours, theirs):
            side.clean(QUEUES, EXCHANGES)


def _programs(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )


@pytest.mark.e2e
def test_a_short_program_has_the_same_answers(sides: tuple[Side, Side]) -> None:
    @_programs(SHORT_STEPS // PROGRAM_STEPS)
    @given(program=programs)
    def check(program: list[Step]) -> None:
        _same(*sides, program)

    check()


@pytest.mark.soak
def test_ten_thousand_steps_have_the_same_answers(sides: tuple[Side, Side]) -> None:
    @_programs(SOAK_STEPS // PROGRAM_STEPS)
    @given(program=programs)
    def check(program: list[Step]) -> None:
        _same(*sides, program)

    check()

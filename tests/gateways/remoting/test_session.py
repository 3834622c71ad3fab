"""Every error has a code of its own choosing; what is too long is refused before it does harm."""

import ast
from pathlib import Path

import pytest

import onelog
from onelog import errors
from onelog.errors import OnelogError, PeerClosedError, StoreClosedError
from onelog.gateways.remoting.session import ERROR_CODES, response_code
from onelog.server import BrokerServer
from onelog.wire.remoting.clients import (
    ConsumerData,
    HeartbeatData,
    LockRequest,
    ProducerData,
    RequestMode,
    SubscriptionData,
)
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.gateways.remoting.live import broker, client
from tests.gateways.remoting.popping import GROUP, TOPIC, Popper, popping

SOURCE = Path(onelog.__file__).parent
REACHED = ("core", "store", "gateways/remoting", "wire/remoting", "net/remoting.py", "message.py")
"""What runs while a request is handled."""
COMMIT = 4 | 1
LONG = "n" * 500_000
HUGE = "n" * 5_000_000


def errors_named_in(path: Path) -> set[str]:
    """The errors that a module imports, to raise or to handle them."""
    return {
        alias.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "onelog.errors"
        for alias in node.names
    }


def modules() -> list[Path]:
    found = []
    for place in REACHED:
        path = SOURCE / place
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


REACHABLE = sorted(set[str]().union(*map(errors_named_in, modules())) - {"OnelogError"})


def test_the_errors_are_found_at_all() -> None:
    assert {"TopicNotFoundError", "StoreFullError", "WireError", "PeerTimeoutError"} <= set(
        REACHABLE
    )


@pytest.mark.parametrize("name", REACHABLE)
def test_every_error_that_a_request_can_end_in_has_a_code(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, OnelogError)
    assert set(kind.__mro__[: kind.__mro__.index(OnelogError)]) & set(ERROR_CODES)
    assert response_code(kind("reason")) != ResponseCode.SUCCESS


def test_an_error_without_a_code_has_that_of_its_nearest_parent() -> None:
    class OneOfTheirsError(StoreClosedError):
        pass

    assert response_code(OneOfTheirsError("")) == ERROR_CODES[errors.StoreError]
    assert response_code(OnelogError("")) == ResponseCode.SYSTEM_ERROR


# -- texts that are too long -----------------------------------------------------------------------


async def test_a_pop_with_a_long_attempt_id_is_refused_and_the_next_one_answered(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path) as (_, member):
        await member.send(b"0")
        refused = await member.ask_pop(attemptId=LONG, order="true")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == (
            "the custom field <attemptId> has 500000 characters; the limit is 1024"
        )
        leased = await member.pop()
        assert (await member.ack(leased[0])).code == ResponseCode.SUCCESS


async def test_who_sends_a_huge_attempt_id_is_sent_away_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path) as (server, member), client(server) as hostile:
        await member.send(b"0")
        with pytest.raises(PeerClosedError):
            await Popper(hostile).ask_pop(attemptId=HUGE, order="true")
        leased = await member.pop()
        assert (await member.ack(leased[0])).code == ResponseCode.SUCCESS


async def test_a_pull_with_a_long_group_name_commits_nothing(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send(TOPIC, b"0")
        refused = await both.pull(TOPIC, 0, consumerGroup=LONG, sysFlag=COMMIT, commitOffset=1)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        _commits_go_on(server)


@pytest.mark.parametrize(
    "changed",
    [
        {"queueId": 4},
        {"queueId": -1},
        {"topic": "nowhere"},
        {"consumerGroup": "n" * 121},
        {"consumerGroup": "no@group"},
        {"consumerGroup": ""},
    ],
)
async def test_a_pull_that_is_refused_commits_nothing(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send(TOPIC, b"0")
        asked = {"sysFlag": COMMIT, "commitOffset": 1, "topic": TOPIC, **changed}
        refused = await both.pull(str(asked.pop("topic")), 0, **asked)
        assert refused.code != ResponseCode.SUCCESS
        assert server.broker.offsets.all() == {}
        _commits_go_on(server)


def _commits_go_on(server: BrokerServer) -> None:
    broker = server.broker
    assert broker.offsets.all() == {}
    broker.groups.require(GROUP)
    broker.commit_offset(GROUP, TOPIC, 0, 1)
    broker.offsets.flush()
    broker.admin.reset_offsets(GROUP, TOPIC, -1)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.HEART_BEAT, HeartbeatData(client_id=HUGE)),
        (
            RequestCode.HEART_BEAT,
            HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name=HUGE)]),
        ),
        (
            RequestCode.HEART_BEAT,
            HeartbeatData(
                client_id="c",
                consumer_data_set=[
                    ConsumerData(
                        group_name=GROUP, subscription_data_set=[SubscriptionData(topic=HUGE)]
                    )
                ],
            ),
        ),
        (RequestCode.LOCK_BATCH_MQ, LockRequest(client_id="c", consumer_group=HUGE)),
        (RequestCode.SET_MESSAGE_REQUEST_MODE, RequestMode(consumer_group=HUGE, topic=TOPIC)),
    ],
)
async def test_huge_names_in_bodies_are_refused(
    tmp_path: Path, code: RequestCode, body: HeartbeatData | LockRequest | RequestMode
) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send(TOPIC, b"0")
        refused = await both.ask(code, body.encode())
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark is not None
        assert "length" in refused.remark
        assert server.broker.members.producer_groups() == []
        assert server.broker.members.live_groups() == []


async def test_offsets_are_cloned_to_groups_that_can_exist_only(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as both:
        await both.send(TOPIC, b"0")
        _commits_go_on(server)
        refused = await both.ask(
            RequestCode.CLONE_GROUP_OFFSET, srcGroup=GROUP, destGroup="n" * 300, topic=TOPIC
        )
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert server.broker.offsets.groups_of(TOPIC) == [GROUP]

"""Membership, locks, positions, look-ups."""

from pathlib import Path

import pytest

from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import (
    CheckClientRequest,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockAnswer,
    LockRequest,
    ProducerData,
    SubscriptionData,
)
from onelog.wire.remoting.codes import VERSION, RequestCode, ResponseCode
from tests.gateways.remoting.live import Client, bodies, broker, client
from tests.waiting import eventually


async def members(asker: Client, group: str) -> list[str]:
    answer = await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    return ConsumerList.decode(answer.body).consumer_id_list if answer.code == 0 else []


async def test_a_heartbeat_makes_a_member_and_tells_the_others(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as first:
        answer = await first.heartbeat("c1", "g", "t")
        assert (answer.code, answer.version) == (0, VERSION)
        async with client(server) as second:
            await second.heartbeat("c2", "g", "t")
            assert await members(first, "g") == ["c1", "c2"]
            assert [c.code for c in first.asked] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] * 2
            assert first.asked[-1].ext == {"consumerGroup": "g"}
        await eventually(lambda: len(first.asked) == 3)
        assert await members(first, "g") == ["c1"]
        assert len(first.asked) == 3
        assert server.core.topics.require("%RETRY%g").read_queues == 1


async def test_leaving_a_group(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        await one.heartbeat("c1", "g", "t")
        await one.ask(RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="g")
        answer = await one.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_heartbeat_that_is_none_is_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        for body in (b"", b"[]", b"{}", b"\xff\xfe"):
            answer = await one.ask(RequestCode.HEART_BEAT, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_heartbeat_whose_references_grow_without_end_is_refused(tmp_path: Path) -> None:
    references = ",".join(['{"$ref":"$.a"}'] * 1_000)
    body = f"{{'clientID':'c','a':[{'0,' * 9_999}0],'b':[{references}]}}".encode()
    async with broker(tmp_path) as server, client(server) as one:
        answer = await one.ask(RequestCode.HEART_BEAT, body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "references counted as what they stand for" in str(answer.remark)


@pytest.mark.parametrize(
    ("groups", "subscriptions", "characters", "code"),
    [
        (500, 0, 0, ResponseCode.SUCCESS),
        (501, 0, 0, ResponseCode.SYSTEM_ERROR),
        (1, 2_000, 0, ResponseCode.SUCCESS),
        (1, 2_001, 0, ResponseCode.SYSTEM_ERROR),
        (1, 4, 16_000, ResponseCode.SUCCESS),
        (1, 5, 16_000, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
async def test_a_heartbeat_has_a_size_up_to_which_it_is_read(
    tmp_path: Path, groups: int, subscriptions: int, characters: int, code: ResponseCode
) -> None:
    wanted = [
        SubscriptionData(
            topic=f"t{number}",
            sub_string=f"a = {number}".ljust(characters) if characters else "*",
            expression_type="SQL92" if characters else "TAG",
        )
        for number in range(subscriptions)
    ]
    data = HeartbeatData(
        client_id="c",
        consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=wanted)],
        producer_data_set=[ProducerData(group_name="p")] * (groups - 1),
    )
    async with broker(tmp_path) as server, client(server) as one:
        answer = await one.ask(RequestCode.HEART_BEAT, data.encode())
        assert answer.code == code
        if code != ResponseCode.SUCCESS:
            assert "use several clients" in str(answer.remark)


async def test_locks_are_given_to_one_client_of_a_group(tmp_path: Path) -> None:
    queues = [MessageQueue(topic="t", broker_name="broker-a", queue_id=n) for n in range(3)]

    def request(client_id: str, wanted: list[MessageQueue]) -> bytes:
        return LockRequest(consumer_group="g", client_id=client_id, mq_set=wanted).encode()

    async with broker(tmp_path) as server, client(server) as one:
        first = await one.ask(RequestCode.LOCK_BATCH_MQ, request("c1", queues[:2]))
        assert LockAnswer.decode(first.body).lock_ok_mq_set == queues[:2]
        second = await one.ask(RequestCode.LOCK_BATCH_MQ, request("c2", queues))
        assert LockAnswer.decode(second.body).lock_ok_mq_set == queues[2:]
        await one.ask(RequestCode.UNLOCK_BATCH_MQ, request("c1", queues))
        third = await one.ask(RequestCode.LOCK_BATCH_MQ, request("c2", queues))
        assert LockAnswer.decode(third.body).lock_ok_mq_set == queues


async def test_positions_are_kept_over_a_restart(tmp_path: Path) -> None:
    where = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    async with broker(tmp_path) as server, client(server) as one:
        await one.heartbeat("c1", "g", "t")
        for n in range(5):
            await one.send("t", b"%d" % n)
        missing = await one.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, **where, setZeroIfNotFound="false"
        )
        assert missing.code == ResponseCode.QUERY_NOT_FOUND
        await one.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **where, commitOffset=3)
    async with broker(tmp_path) as server, client(server) as one:
        answer = await one.ask(RequestCode.QUERY_CONSUMER_OFFSET, **where)
        assert answer.ext["offset"] == "3"


async def test_offsets_and_times_of_a_queue(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        for n in range(5):
            await one.send("t", b"%d" % n)
        at = {"topic": "t", "queueId": 0}
        stored_ms = server.store.store_time("t", 0, 0)
        assert stored_ms is not None
        asked = {
            "max": await one.ask(RequestCode.GET_MAX_OFFSET, **at),
            "min": await one.ask(RequestCode.GET_MIN_OFFSET, **at),
            "early": await one.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **at, timestamp=0),
            "late": await one.ask(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **at, timestamp=stored_ms + 10**9
            ),
            "upper": await one.ask(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                **at,
                timestamp=stored_ms + 10**9,
                boundaryType="upper",
            ),
        }
        offsets = {name: answer.ext["offset"] for name, answer in asked.items()}
        assert offsets == {"max": "5", "min": "0", "early": "0", "late": "5", "upper": "4"}
        earliest = await one.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **at)
        assert earliest.ext["timestamp"] == str(stored_ms)


async def test_messages_are_found_by_place_and_by_key(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        sent = await one.send("t", b"find me", {"KEYS": "a b", "UNIQ_KEY": "U"})
        offset = int(sent.ext["msgId"][16:], 16)
        assert bodies(await one.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)) == [b"find me"]
        missing = await one.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset + 1)
        assert missing.code != 0
        span = {"topic": "t", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 50}
        for key in ("a", "b", "U"):
            answer = await one.ask(RequestCode.QUERY_MESSAGE, key=key, **span)
            assert bodies(answer) == [b"find me"]
            assert answer.ext["indexLastUpdatePhyoffset"] == str(server.store.log_end)
        nothing = await one.ask(RequestCode.QUERY_MESSAGE, key="c", **span)
        assert nothing.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_query_by_key_gives_as_many_as_asked_for_up_to_rocketmqs_64(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        for n in range(70):
            await one.send("t", b"%d" % n, {"KEYS": "k", "UNIQ_KEY": f"U{n}"})
        span = {"topic": "t", "key": "k", "beginTimestamp": 0, "endTimestamp": 1 << 50}
        for asked, given in ((1, 1), (40, 40), (64, 64), (100, 64), (2**31 - 1, 64)):
            answer = await one.ask(RequestCode.QUERY_MESSAGE, maxNum=asked, **span)
            assert len(bodies(answer)) == given
            assert b"69" in bodies(answer)
        unique = await one.ask(
            RequestCode.QUERY_MESSAGE, maxNum=64, _UNIQUE_KEY_QUERY="true", **span
        )
        assert len(bodies(unique)) == 32


async def test_a_filter_is_checked_before_it_is_used(tmp_path: Path) -> None:
    def request(kind: str, expression: str) -> bytes:
        data = SubscriptionData(topic="t", sub_string=expression, expression_type=kind)
        return CheckClientRequest(client_id="c", group="g", subscription_data=data).encode()

    async with broker(tmp_path) as server, client(server) as one:
        check = RequestCode.CHECK_CLIENT_CONFIG
        assert (await one.ask(check, request("SQL92", "a > 1"))).code == 0
        assert (await one.ask(check, request("TAG", "x"))).code == 0
        bad = await one.ask(check, request("SQL92", "a >"))
        assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    async with broker(tmp_path, broker__property_filter=False) as server, client(server) as one:
        answer = await one.ask(check, request("SQL92", "a > 1"))
        assert "does not support" in (answer.remark or "")


async def test_an_unknown_request_is_answered_as_rocketmq_answers_it(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, client(server) as one:
        answer = await one.ask(RequestCode.REGISTER_MESSAGE_FILTER_CLASS)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == " request type 302 not supported"

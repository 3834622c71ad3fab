"""Who may commit positions, who may delete a group, and how long a new one waits."""

import asyncio
import time
from pathlib import Path

from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.commit_walk import EXPECTED, walk
from tests.gateways.kafka.live import address, kafka
from tests.gateways.kafka.raw import RawClient, raw


async def test_positions_are_taken_from_those_from_whom_kafka_takes_them(tmp_path: Path) -> None:
    async with kafka(tmp_path, kafka__heartbeat_ms=5_000) as server:
        assert await walk(address(server), "walkers") == EXPECTED


def joining(member: str, group: str = "readers") -> Fields:
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


async def delete(client: RawClient, group: str = "readers") -> int:
    told = await client.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [group]})
    code: int = told["results"][0]["error_code"]
    return code


async def leave(client: RawClient, member: str) -> None:
    members = [{"member_id": member, "group_instance_id": None}]
    await client.ask(ApiKey.LEAVE_GROUP, 3, {"group_id": "readers", "members": members})


async def test_a_group_can_be_deleted_as_soon_as_its_last_member_has_left(tmp_path: Path) -> None:
    """A client that was told an id, and never joined with it, is no member."""
    async with kafka(tmp_path) as server, raw(server) as client:
        ann, bob = [
            (await client.ask(ApiKey.JOIN_GROUP, 5, joining("")))["member_id"] for _ in range(2)
        ]
        client.tell(ApiKey.JOIN_GROUP, 5, joining(ann))
        async with raw(server) as other:
            await other.ask(ApiKey.JOIN_GROUP, 5, joining(""))
            assert await delete(other) == ErrorCode.NON_EMPTY_GROUP
            await leave(other, ann)
            assert await delete(other) == 0
            told = await other.ask(ApiKey.JOIN_GROUP, 5, joining(bob))
            assert told["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_new_group_waits_for_its_first_members_and_shares_out_once(tmp_path: Path) -> None:
    async def join(number: int) -> tuple[int, int, float]:
        async with raw(server) as client:
            await asyncio.sleep(number * 0.15)
            told = await client.ask(ApiKey.JOIN_GROUP, 2, joining(""))
            return told["generation_id"], len(told["members"]), time.monotonic() - begun

    async with kafka(tmp_path, kafka__initial_rebalance_delay_ms=400) as server:
        begun = time.monotonic()
        joined = await asyncio.gather(*(join(number) for number in range(3)))
        assert {generation for generation, _, _ in joined} == {1}, "one generation for all"
        assert sorted(members for _, members, _ in joined) == [0, 0, 3]
        # As long again, because some came meanwhile, and then no longer.
        assert all(seconds > 0.75 for _, _, seconds in joined)


async def test_a_group_that_lost_all_who_joined_while_it_waited_begins_anew(tmp_path: Path) -> None:
    async with kafka(tmp_path, kafka__initial_rebalance_delay_ms=300) as server:
        async with raw(server) as client, raw(server) as other:
            ann = (await client.ask(ApiKey.JOIN_GROUP, 5, joining("")))["member_id"]
            client.tell(ApiKey.JOIN_GROUP, 5, joining(ann))
            await asyncio.sleep(0.1)
            await leave(other, ann)
            gone = await client.hear(ApiKey.JOIN_GROUP, 5)
            assert gone["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
            begun = time.monotonic()
            told = await other.ask(ApiKey.JOIN_GROUP, 2, joining(""))
            assert (told["error_code"], len(told["members"])) == (0, 1)
            assert time.monotonic() - begun > 0.28


async def test_a_group_with_members_does_not_wait_for_more(tmp_path: Path) -> None:
    async with kafka(tmp_path, kafka__initial_rebalance_delay_ms=100) as server:
        async with raw(server) as client, raw(server) as other:
            ann = (await client.ask(ApiKey.JOIN_GROUP, 2, joining("")))["member_id"]
            server.reconfigure({"kafka.initial_rebalance_delay_ms": "60000"})
            other.tell(ApiKey.JOIN_GROUP, 2, joining(""))
            await asyncio.sleep(0.1)
            told = await client.ask(ApiKey.JOIN_GROUP, 2, joining(ann))
            assert (told["generation_id"], len(told["members"])) == (2, 2)

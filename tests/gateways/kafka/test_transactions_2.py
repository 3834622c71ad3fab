"""Transactions of version 2 (KIP-890): an epoch for each, and nothing to add beforehand."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import RawClient, batch_of, raw
from tests.gateways.kafka.test_transactions import (
    ID,
    TRANSACTIONAL,
    Teller,
    committed,
    position,
)


class NewTeller(Teller):
    """A producer that speaks version 2, word by word."""

    async def begin(self, timeout_ms: int = 60_000) -> Fields:
        fields = {"transactional_id": self.name, "transaction_timeout_ms": timeout_ms}
        told = await self.client.ask(ApiKey.INIT_PRODUCER_ID, 6, fields)
        self.id, self.epoch = told["producer_id"], told["producer_epoch"]
        return told

    async def send(self, *values: bytes, partition: int = 0) -> int:
        (code,) = await self.send_all({partition: values})
        return code

    async def send_all(
        self, wanted: Mapping[int, tuple[bytes, ...]], version: int = 12
    ) -> list[int]:
        """A batch to each of some partitions, in one request; the codes."""
        data = []
        for partition, values in wanted.items():
            number = self.sequence.get(partition, 0)
            identity = self.id, self.epoch, number
            batch = batch_of(*values, producer=identity, attributes=TRANSACTIONAL)
            data.append({"index": partition, "records": batch})
        fields = {
            "transactional_id": self.name,
            "acks": -1,
            "timeout_ms": 1_000,
            "topic_data": [{"name": "orders", "partition_data": data}],
        }
        told = await self.client.ask(ApiKey.PRODUCE, version, fields)
        codes = [each["error_code"] for each in told["responses"][0]["partition_responses"]]
        for (partition, values), code in zip(wanted.items(), codes, strict=True):
            if not code:
                self.sequence[partition] = self.sequence.get(partition, 0) + len(values)
        return codes

    async def move(self, offset: int, version: int = 5) -> int:
        """Commit a position of a group."""
        moved = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        fields = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "group_id": "readers",
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": "orders", "partitions": [moved]}],
        }
        told = await self.client.ask(ApiKey.TXN_OFFSET_COMMIT, version, fields)
        code: int = told["topics"][0]["partitions"][0]["error_code"]
        return code

    async def told_at_end(self, commit: bool) -> Fields:
        fields = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        return await self.client.ask(ApiKey.END_TXN, 5, fields)

    async def end(self, commit: bool, version: int = 5) -> int:
        """End it, and become who the broker says."""
        told = await self.told_at_end(commit)
        if not told["error_code"]:
            self.become(told)
        code: int = told["error_code"]
        return code

    def become(self, told: Fields) -> None:
        self.id, self.epoch = told["producer_id"], told["producer_epoch"]
        self.sequence.clear()


async def teller_of(client: RawClient, partitions: int = 1) -> NewTeller:
    await client.make_topic("orders", partitions)
    teller = NewTeller(client)
    assert (await teller.begin())["error_code"] == 0
    return teller


async def test_batches_and_positions_need_no_announcement(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        teller = await teller_of(client, 2)
        for number, commit in enumerate((True, False, True)):
            value = b"%d" % number
            assert await teller.send_all({0: (value,), 1: (value, value)}) == [0, 0]
            assert await teller.send(value) == 0
            assert await teller.move(number + 1) == 0
            assert (await position(client, stable=True))[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert await teller.end(commit) == 0
            assert teller.epoch == number + 1
        assert await committed(client) == [b"0", b"0", b"2", b"2"]
        assert await committed(client, 1) == [b"0", b"0", b"2", b"2"]
        assert await position(client, stable=True) == (0, 3)


async def test_an_end_whose_answer_was_lost_is_answered_again(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        teller = await teller_of(client)
        await teller.send(b"one")
        told = await teller.told_at_end(commit=True)
        assert (told["producer_id"], told["producer_epoch"]) == (teller.id, teller.epoch + 1)
        assert await teller.told_at_end(commit=True) == told
        wrong = await teller.told_at_end(commit=False)
        assert wrong["error_code"] == ErrorCode.INVALID_TXN_STATE
        assert (wrong["producer_id"], wrong["producer_epoch"]) == (-1, -1)
        late = NewTeller(client)
        late.id, late.epoch = teller.id, teller.epoch
        assert await late.send(b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
        teller.become(told)
        await teller.send(b"two")
        assert (await late.told_at_end(commit=True))["error_code"] == ErrorCode.PRODUCER_FENCED
        assert await teller.end(commit=True) == 0
        assert await committed(client) == [b"one", b"two"]


async def test_nothing_can_be_aborted_and_not_be_committed(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        teller = await teller_of(client)
        assert await teller.end(commit=True) == ErrorCode.INVALID_TXN_STATE
        assert await teller.end(commit=False) == 0
        assert teller.epoch == 1
        assert await teller.send(b"one") == 0
        assert await teller.end(commit=True) == 0
        assert await committed(client) == [b"one"]


async def test_what_is_outside_of_a_transaction_says_that_it_can_be_aborted(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        teller = await teller_of(client)
        abortable, older = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE
        one = {0: (b"one",)}
        assert await teller.send_all(one, version=11) == [abortable]
        assert await teller.send_all(one, version=10) == [older]
        assert await teller.move(1, version=4) == abortable
        assert await teller.move(1, version=3) == older
        nameless = NewTeller(client, "")
        nameless.id, nameless.epoch = teller.id, teller.epoch
        assert await nameless.send_all(one) == [ErrorCode.INVALID_REQUEST]
        other = NewTeller(client, "other")
        other.id, other.epoch = teller.id, teller.epoch
        assert await other.send_all(one) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        nowhere = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await teller.send_all({**one, 9: (b"x",)}) == [0, nowhere]
        assert await teller.end(commit=True) == 0


@pytest.mark.parametrize("asked", ["enable2_pc", "keep_prepared_txn"])
async def test_what_is_prepared_for_others_is_refused(tmp_path: Path, asked: str) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        fields = {"transactional_id": ID, "transaction_timeout_ms": 1_000, asked: True}
        told = await client.ask(ApiKey.INIT_PRODUCER_ID, 6, fields)
        assert told["error_code"] in (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            ErrorCode.UNSUPPORTED_VERSION,
        )
        assert told["producer_id"] == -1


async def test_a_producer_may_change_the_version_between_transactions(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        new = await teller_of(client)
        old = Teller(client)
        for number in range(3):
            assert await new.send(b"new %d" % number) == 0
            assert await new.end(commit=True) == 0
            old.id, old.epoch, old.sequence = new.id, new.epoch, {}
            assert await old.add(0) == 0
            assert await old.send(b"old %d" % number) == 0
            assert await old.end(commit=True) == 0
            new.sequence = old.sequence
        expected = [b"%s %d" % (word, number) for number in range(3) for word in (b"new", b"old")]
        assert await committed(client) == expected


async def test_after_a_restart_the_answer_is_the_same(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        teller = await teller_of(client)
        await teller.send(b"one")
        told = await teller.told_at_end(commit=True)
    async with kafka(tmp_path) as server, raw(server) as client:
        teller.client = client
        assert await teller.told_at_end(commit=True) == told
        teller.become(told)
        assert await teller.send(b"two") == 0
    async with kafka(tmp_path) as server, raw(server) as client:
        teller.client = client
        assert await teller.send(b"three") == 0
        assert await teller.end(commit=True) == 0
        assert await committed(client) == [b"one", b"two", b"three"]

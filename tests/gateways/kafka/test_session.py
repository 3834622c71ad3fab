"""A connection: what is told first, answers in order, and peers that do not keep to the rules."""

import asyncio
import struct
from pathlib import Path

import pytest

import onelog
from onelog import errors
from onelog.errors import OnelogError, StoreClosedError
from onelog.gateways.kafka.error_codes import ERROR_CODES, error_code
from onelog.gateways.kafka.handlers import HANDLERS, VERSIONS
from onelog.wire.kafka import schema
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import batch_of, fetch_fields, raw
from tests.gateways.remoting.test_session import errors_named_in
from tests.waiting import eventually

SOURCE = Path(onelog.__file__).parent
REACHED = (
    "core/cursors",
    "core/membership/coordinator.py",
    "core/membership/classic.py",
    "core/membership/consumers.py",
    "core/transactions/in_place.py",
    "core/transactions/producers.py",
    "core/catalog",
    "core/publish.py",
    "store",
    "gateways/kafka",
    "wire/kafka",
)
"""What runs while a request is handled."""
OF_OTHERS = {"OnelogError", "FilterDisabledError"}


def reachable() -> set[str]:
    found: set[str] = set()
    for place in REACHED:
        path = SOURCE / place
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found |= errors_named_in(module)
    return found - OF_OTHERS


@pytest.mark.parametrize("name", sorted(reachable()))
def test_every_error_that_a_request_can_end_in_has_a_code(name: str) -> None:
    kind = getattr(errors, name)
    assert set(kind.__mro__[: kind.__mro__.index(OnelogError)]) & set(ERROR_CODES)
    assert error_code(kind("reason")) != ErrorCode.NONE


def test_an_error_without_a_code_has_that_of_its_nearest_parent() -> None:
    class OneOfTheirsError(StoreClosedError):
        pass

    assert error_code(OneOfTheirsError("")) == ERROR_CODES[errors.StoreError]
    assert error_code(OnelogError("")) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_is_advertised_is_served_and_described() -> None:
    assert VERSIONS.keys() == HANDLERS.keys()
    for key, served in VERSIONS.items():
        known = schema.apis()[key].versions
        assert served[-1] in known, key
        assert served[0] in known, key


@pytest.mark.parametrize("version", range(5))
async def test_a_client_is_told_what_is_served(tmp_path: Path, version: int) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        software = {"client_software_name": "raw", "client_software_version": "1.0"}
        answer = await client.ask(ApiKey.API_VERSIONS, version, software if version > 2 else {})
        assert answer["error_code"] == 0
        told = {each["api_key"]: each for each in answer["api_keys"]}
        assert told.keys() == {int(key) for key in VERSIONS}
        assert (told[0]["min_version"], told[11]["min_version"]) == (0, 0), "traps of librdkafka"
        if version >= 3:
            (feature,) = answer["finalized_features"]
            assert (feature["name"], feature["max_version_level"]) == ("transaction.version", 2)
            assert answer["finalized_features_epoch"] >= 0
            assert len(answer["supported_features"]) == (version >= 4), "KAFKA-17011"


async def test_versions_that_are_too_new_are_told_in_the_oldest_words(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        client.send(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1) + b"anything")
        answer = await client.hear(ApiKey.API_VERSIONS, 0)
        assert answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION
        assert any(each["api_key"] == ApiKey.API_VERSIONS for each in answer["api_keys"])
        bad = {"client_software_name": "-", "client_software_version": "1"}
        answer = await client.ask(ApiKey.API_VERSIONS, 3, bad)
        assert answer["error_code"] == ErrorCode.INVALID_REQUEST


async def test_answers_come_in_the_order_of_requests_also_behind_one_that_waits(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client, raw(server) as other:
        await client.make_topic("orders")
        held = client.tell(ApiKey.FETCH, 12, fetch_fields("orders", [(0, 0)], max_wait_ms=20_000))
        behind = [client.tell(ApiKey.METADATA, 9, {"topics": None}) for _ in range(3)]
        await eventually(lambda: len(server.core.waiting) == 1, "held")
        await other.produce("orders", batch_of(b"x"))
        await client.hear(ApiKey.FETCH, 12)
        assert client.last_number == held
        for number in behind:
            await client.hear(ApiKey.METADATA, 9)
            assert client.last_number == number


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", ApiKey.METADATA, 99, 1, -1),
        struct.pack(">hhih", ApiKey.PRODUCE, 13, 1, -1),
        struct.pack(">hhih", ApiKey.METADATA, 1, 1, 500),
        struct.pack(">hhihi", ApiKey.METADATA, 1, 1, -1, 1 << 30),
        struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1),
        struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\x01\x01\xff\xff\xff\xff\x0f",
    ],
    ids=["api", "version", "new produce", "client id", "array", "cut", "tags"],
)
async def test_what_is_no_request_closes_the_connection_and_no_other(
    tmp_path: Path, frame: bytes
) -> None:
    async with kafka(tmp_path) as server, raw(server) as good, raw(server) as bad:
        bad.send(frame)
        assert await bad.is_closed()
        assert (await good.ask(ApiKey.API_VERSIONS, 0))["error_code"] == 0


@pytest.mark.parametrize("size", [-1, 3, (16 << 20) + 1, (1 << 31) - 1])
async def test_a_hostile_length_closes_the_connection(tmp_path: Path, size: int) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        client.writer.write(struct.pack(">i", size))
        assert await client.is_closed()


async def test_a_client_that_asks_without_reading_is_not_read_from(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        held = fetch_fields("orders", [(0, 0)], max_wait_ms=30_000)
        client.tell(ApiKey.FETCH, 12, held)
        for _ in range(1_500):
            client.tell(ApiKey.API_VERSIONS, 0)
        await eventually(lambda: len(server.core.waiting) == 1, "held")
        async with raw(server) as other:
            await other.produce("orders", batch_of(b"x"))
        await client.hear(ApiKey.FETCH, 12)
        for _ in range(1_500):
            await client.hear(ApiKey.API_VERSIONS, 0)


async def test_a_thousand_partitions_in_one_request_are_a_thousand_answers(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 4)
        places = [(each, 0) for each in range(1_000)]
        answer = await client.ask(ApiKey.FETCH, 12, fetch_fields("orders", places))
        codes = [each["error_code"] for each in answer["responses"][0]["partitions"]]
        assert codes == [0] * 4 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 996


async def test_a_fetch_of_a_client_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        async with raw(server) as client:
            await client.make_topic("orders")
            held = fetch_fields("orders", [(0, 0)], max_wait_ms=60_000)
            client.tell(ApiKey.FETCH, 12, held)
            await eventually(lambda: len(server.core.waiting) == 1, "held")
        await eventually(lambda: len(server.core.waiting) == 0, "forgotten")
        await asyncio.sleep(0)


async def test_a_long_request_counts_as_unread_only_until_it_is_served(tmp_path: Path) -> None:
    """What it is read to takes many times its bytes."""
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        fields = fetch_fields("orders", [(each, 0) for each in range(2_000)])
        answer = await client.ask(ApiKey.FETCH, 12, fields)
        assert len(answer["responses"][0]["partitions"]) == 2_000
        assert server._capacity.unread.total == 0

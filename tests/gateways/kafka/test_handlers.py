"""Requests of every API that make sense, or none at all: an answer, or a closed connection."""

import asyncio
import contextlib
import logging
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onelog.gateways.kafka.handlers import VERSIONS
from onelog.net import stall_watch
from onelog.wire.kafka import schema
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import RawClient, batch_of, raw

REQUESTS = 200
TEXTS = ["orders", "readers", "", "new-topic", "a/b", "payments", "%RETRY%readers", "x" * 300, "é"]
NUMBERS = [-(1 << 7), -2, -1, 0, 1, 2, 5, 100, (1 << 7) - 1]
WIDE = [-(1 << 31), -1, 0, 0, 1, 1, 7, 60_000, (1 << 31) - 1]
WIDER = [-(1 << 63), -1, 0, 1, 5, (1 << 63) - 1]
BYTES = [b"", b"x", b"\0\1\0\0\0\1\0\6orders\0\0\0\0", bytes(50)]
RECORDS = [None, b"", bytes(70), batch_of(b"x"), batch_of(b"x", producer=(0, 0, 0)), batch_of(b"y")]


def value(each: Any, version: int, random: Random) -> Any:
    """Something for a field."""
    if version in each.nullable and random.random() < 0.2:
        return None
    if each.is_array:
        return [element(each, version, random) for _ in range(random.choice([0, 1, 1, 2]))]
    return element(each, version, random)


def element(each: Any, version: int, random: Random) -> Any:
    choices: dict[str, list[Any]] = {
        "string": TEXTS,
        "bytes": BYTES,
        "records": RECORDS,
        "bool": [True, False],
        "int8": NUMBERS,
        "int16": NUMBERS,
        "int32": WIDE,
        "int64": WIDER,
        "float64": [0.0, 1.5],
        "uuid": [bytes(16), b"0123456789abcdef"],
    }
    if each.kind == "{}":
        return request(each.fields, version, random)
    return random.choice(choices[each.kind])


def request(fields: list[Any], version: int, random: Random) -> Fields:
    """A request of a version."""
    return {each.name: value(each, version, random) for each in fields if version in each.versions}


async def settles(client: RawClient) -> None:
    """Everything that was asked is answered, or held, or the connection is closed."""
    with contextlib.suppress(asyncio.IncompleteReadError, TimeoutError, ConnectionError):
        number = client.tell(ApiKey.API_VERSIONS, 0)
        async with asyncio.timeout(0.3):
            while (await client.hear_frame())[0] != number:
                pass


@pytest.mark.parametrize("key", VERSIONS, ids=lambda key: key.name.lower())
async def test_whatever_a_request_says_the_broker_goes_on(
    tmp_path: Path, key: ApiKey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    random = Random(int(key))
    api = schema.apis()[key]
    async with kafka(tmp_path) as server:
        async with raw(server) as client:
            await client.make_topic("orders", 2)
            await client.produce("orders", batch_of(b"x", b"y"))
        for at in range(0, REQUESTS, 10):
            async with raw(server) as client:
                for _ in range(10):
                    version = random.choice(VERSIONS[key])
                    fields = request(api.request, version, random) if at else {}
                    client.tell(key, version, fields)
                await settles(client)
        for at in range(10):
            async with raw(server) as client:
                version = random.choice(VERSIONS[key])
                body = b"".join(schema.encode_request(key, version, {}))
                cut = body[: random.randrange(len(body) + 1)] + bytes(
                    random.choices(range(256), k=at)
                )
                head = int(key).to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4)
                client.send(head + b"\xff\xff" + (b"\0" if version in api.flexible else b"") + cut)
                await settles(client)
        async with raw(server) as client:
            assert (await client.ask(ApiKey.METADATA, 9, {"topics": None}))["brokers"]
    said = [each.getMessage() for each in caplog.records if each.name != stall_watch.log.name]
    assert said == []

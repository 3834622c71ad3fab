"""REST under requests that are made from its own OpenAPI document (schemathesis).

Whatever comes: no status of 500, and every answer is as the document says.
"""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from onelog.admin.openapi import EXAMPLES
from onelog.admin.table import OPERATIONS
from tests.console.live import cluster
from tests.gateways.http.live import url

TRIES = 5
CHECKS: list[Any] = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
NOT_FUZZED = {"close_connection"}
"""Its own connection is among those."""


def fuzz(at: str, examples: int) -> int:
    """Send so many requests of each kind; how many that were."""
    schema = schemathesis.openapi.from_url(f"{at}/v1/openapi.json")
    sent = 0
    operations = [cast(Any, found).ok() for found in schema.get_all_operations()]
    # Once there is a user, everybody else is told to log in.
    operations.sort(key=lambda each: each.definition.raw["operationId"] == "create_user")
    for operation in operations:
        if operation.definition.raw["operationId"] in NOT_FUZZED:
            continue

        @given(case=operation.as_strategy())
        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send(case: Any) -> None:
            nonlocal sent
            sent += 1
            response = case.call(timeout=60)
            case.validate_response(response, checks=CHECKS)

        send()
    return sent


async def seeded(web: Any) -> None:
    """Something to find under the names of the document's examples."""
    for number in range(3):
        await web.post("/v1/topics", json={"name": "orders", "queues": 2})
        await web.post("/v1/topics/orders/messages", json={"body": "x", "keys": [f"k{number}"]})
    await web.post("/v1/groups", json={"name": "billing"})


async def test_answers_are_as_the_document_says(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, web, _):
        await seeded(web)
        sent = await asyncio.to_thread(fuzz, url(server), TRIES)
        assert sent >= len(OPERATIONS) - len(NOT_FUZZED)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_answers_are_as_the_document_says_many_times(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, web, _):
        await seeded(web)
        assert await asyncio.to_thread(fuzz, url(server), 500) > 5_000


async def test_the_document_is_whole(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, web, _names):
        made = (await web.get("/v1/openapi.json")).json()
        assert made["openapi"] == "3.1.0"
        described = {
            (method.upper(), path) for path, each in made["paths"].items() for method in each
        }
        assert described == {(each.method, each.path) for each in OPERATIONS}
        for operation in OPERATIONS:
            assert operation.summary
            if operation.takes_body:
                assert operation.name in EXAMPLES, f"{operation.name} has no example"

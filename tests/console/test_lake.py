"""Lake tables, the queries that keep them fresh, and what Spark reads, by REST."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateways.http.live import http


def checkpoint(folder: Path, batch: int, offsets: dict[str, dict[str, int]], done: bool) -> None:
    """What Spark writes down of a query."""
    place = folder / "_checkpoints" / "orders-1a2b3c4d"
    for name in ("offsets", "commits"):
        (place / name).mkdir(parents=True, exist_ok=True)
    lines = ["v1", json.dumps({"batchTimestampMs": 1}), json.dumps({"offsets": offsets})]
    (place / "offsets" / str(batch)).write_text("\n".join(lines))
    if done:
        (place / "commits" / str(batch)).write_text("v1\n{}")


async def test_queries_say_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(folder: str) -> Any:
        return [], f"{folder} has no tables"

    monkeypatch.setattr("onelog.admin.broker.lake._listed", listed)
    lake = tmp_path / "lake"
    checkpoint(lake, 9, {"orders": {"broker-a:0": 0}}, done=True)
    checkpoint(lake, 10, {"orders": {"broker-a:0": 2, "elsewhere:0": 5}, "gone": {}}, done=False)
    async with http(tmp_path, http__lake=str(lake)) as (_, web):
        await web.post("/v1/topics", json={"name": "orders", "queues": 1})
        for _ in range(5):
            await web.post("/v1/topics/orders/messages", json={"body": "x"})
        found = (await web.get("/v1/lake")).json()
        (query,) = found["queries"]
        assert (query["topics"], query["batch"]) == (["gone", "orders"], 10)
        assert (query["is_open"], query["lag"]) == (True, 3)
        assert found["trouble"].endswith("has no tables")


async def test_without_a_folder_there_are_no_tables(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, web):
        found = (await web.get("/v1/lake")).json()
        assert (found["folder"], found["tables"], found["trouble"]) == ("", [], None)


@pytest.mark.e2e
async def test_tables_are_listed(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    lake = tmp_path / "lake"
    write_deltalake(str(lake / "orders"), pa.table({"offset": [1, 2, 3]}))
    async with http(tmp_path, http__lake=str(lake)) as (_, web):
        found = (await web.get("/v1/lake")).json()
        assert found["trouble"] is None
        (table,) = found["tables"]
        assert (table["name"], table["form"], table["rows"]) == ("orders", "delta", 3)

"""Staged batches over a socket."""

import json
from pathlib import Path

import pytest

from onelog.core.transactions import prepared_batches
from onelog.message import encode_properties
from onelog.record.inner_batch import encode_batch
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from tests.gateways.remoting import live


def batch(*bodies: bytes, **properties: str) -> bytes:
    return encode_batch([(0, body, encode_properties(properties)) for body in bodies])


async def stage(client: live.Client, body: bytes, /, **changed: object) -> Command:
    ext: dict[str, object] = {"query": "q", "batch": 0, "topic": "orders", "queueId": 1, **changed}
    return await client.ask(RequestCode.STAGE_MESSAGES, body, **ext)


async def commit(client: live.Client, number: int, *offsets: int) -> Command:
    body = json.dumps(offsets).encode()
    return await client.ask(RequestCode.COMMIT_STAGED, body, query="q", batch=number)


async def test_a_batch_is_staged_committed_and_pulled(tmp_path: Path) -> None:
    async with live.broker(tmp_path) as server, live.client(server) as client:
        staged = await stage(client, batch(b"one", b"two", TAGS="paid", KEYS="42"), attempt="t-0")
        assert (staged.code, staged.ext) == (0, {"offset": "0", "count": "2"})
        assert [m.body for m in server.store.messages("orders", 1, 0, 10)] == []
        done = await commit(client, 0, 0)
        assert (done.code, done.ext) == (0, {"batch": "0", "again": "false"})
        messages = server.store.messages("orders", 1, 0, 10)
        assert [bytes(m.body) for m in messages] == [b"one", b"two"]
        assert [m.tags for m in messages] == ["paid"] * 2
        assert messages[0].keys == ["42"]
        again = await commit(client, 0, 0)
        assert again.ext == {"batch": "0", "again": "true"}
        assert len(server.store.messages("orders", 1, 0, 10)) == 2


async def test_who_asks_learns_the_last_batch_of_a_query(tmp_path: Path) -> None:
    async with live.broker(tmp_path) as server, live.client(server) as client:
        asked = await client.ask(RequestCode.QUERY_STAGED, query="q")
        assert asked.ext == {"batch": "-1", "note": ""}
        await client.ask(RequestCode.COMMIT_STAGED, b"[]", query="q", batch=4, note="[1]")
        asked = await client.ask(RequestCode.QUERY_STAGED, query="q")
        assert asked.ext == {"batch": "4", "note": "[1]"}


async def test_under_sync_flush_a_commit_is_answered_when_it_is_on_disk(tmp_path: Path) -> None:
    async with live.broker(tmp_path, store__flush="sync") as server, live.client(server) as client:
        staged = await stage(client, batch(b"one"))
        done = await commit(client, 0, int(staged.ext["offset"]))
        assert done.code == 0
        assert server.store.log.flushed == server.store.log_end


async def test_bad_parts_and_commits_are_refused_with_a_reason(tmp_path: Path) -> None:
    async with live.broker(tmp_path) as server, live.client(server) as client:
        refused = [
            (await stage(client, b""), "without messages"),
            (await stage(client, b"garbage"), "cut off"),
            (await stage(client, batch(b"x", TIMER_DELAY_MS="5")), "cannot be timed"),
            (await stage(client, batch(b"x"), batch="many"), "batch"),
            (await stage(client, batch(b"x"), query=""), "query"),
            (await stage(client, batch(b"x"), queueId=9999), "queueId"),
            (await stage(client, batch(b"x"), topic="onelog_sys_staged"), "forbidden"),
            (await client.ask(RequestCode.COMMIT_STAGED, b"{}", query="q", batch=0), "JSON list"),
            (await commit(client, 0, 77), "nothing is staged at 77"),
            (await client.ask(RequestCode.QUERY_STAGED), "query"),
        ]
        for answer, reason in refused:
            assert answer.code != 0
            assert reason in (answer.remark or "")
        assert server.core.prepared_batches.last_batch("q") is None
        await commit(client, 3)
        late = await stage(client, batch(b"x"))
        assert late.code == ResponseCode.ILLEGAL_OPERATION
        assert "come too late" in (late.remark or "")


async def test_what_could_not_be_published_is_refused_when_it_is_staged(tmp_path: Path) -> None:
    async with live.broker(tmp_path, store__record_crc=True) as server, live.client(server) as one:
        large = await stage(one, batch(b"x" * 100_001))
        assert "over the limit of 100000" in (large.remark or "")
        several = await stage(one, batch(*[b"x" * 60_000] * 2))
        assert "limit is 100000 (store.body_bytes_max): stage several" in (several.remark or "")
        # With what the broker and the store add, these would not fit their field.
        wide = await stage(one, batch(b"x", a="v" * 32_700))
        assert "over the limit of 32767" in (wide.remark or "")
        widest = await stage(one, batch(b"x" * 60_000, a="v" * 32_600))
        assert (await commit(one, 0, int(widest.ext["offset"]))).code == 0
        assert len(server.store.messages("orders", 1, 0, 10)) == 1


async def test_reserved_properties_do_not_reach_the_log(tmp_path: Path) -> None:
    async with live.broker(tmp_path) as server, live.client(server) as client:
        body = batch(b"x", INNER_MULTI_DISPATCH="elsewhere", INNER_MULTI_QUEUE_OFFSET="0", a="b")
        await commit(client, 0, int((await stage(client, body)).ext["offset"]))
        (message,) = server.store.messages("orders", 1, 0, 10)
        assert b"INNER_" not in message.properties
        assert b"a\x01b" in message.properties


async def test_a_batch_write_says_that_it_is_one_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_batches, "QUERIES_MAX", 0)
    async with live.broker(tmp_path) as server, live.client(server) as client:
        refused = await stage(client, batch(b"one"))
        assert "which is the limit" in (refused.remark or "")
        staged = await stage(client, batch(b"one"), oneOff="true")
        body = json.dumps([int(staged.ext["offset"])]).encode()
        done = await client.ask(RequestCode.COMMIT_STAGED, body, query="q", batch=0, oneOff="true")
        assert (done.code, done.ext) == (0, {"batch": "0", "again": "false"})
        assert [m.body for m in server.store.messages("orders", 1, 0, 10)] == [b"one"]

"""What is somebody else's: transactions, prepared batches and connections of other users."""

import asyncio
from pathlib import Path
from urllib.parse import quote

import httpx

from onelog.core.access import SELF
from onelog.core.publish import Intent
from onelog.message import Appended, NewMessage
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.gateways.http.live import SECONDS, url
from tests.gateways.remoting.live import client as connected
from tests.security.secrets import NOBODY, OWNER, SECRET, context
from tests.security.test_sweep_queues import entered
from tests.security.test_sweep_remoting import ask
from tests.waiting import eventually

GROUP = "producers"
SOON = {"broker__transaction_timeout_ms": 1, "broker__transaction_check_interval_ms": 20}


async def half(server: BrokerServer, topic: str) -> dict[str, str]:
    """A transaction of the broker's own that is open; how it is named."""
    found: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01U\x02".encode()
    message = NewMessage(topic, 0, SECRET.encode(), properties)
    server.broker.publish.send(
        SELF, message, lambda _, where, error: found.set_result(where), None, Intent(half=True)
    )
    where = await found
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(where.queue_offset),
        "commitLogOffset": str(where.log_offset),
        "msgId": "U",
        "transactionId": "U",
    }


async def test_nobody_ends_a_transaction_of_a_topic_that_is_not_his(tmp_path: Path) -> None:
    async with context(tmp_path) as server, connected(server) as client:
        place = await half(server, SECRET)
        for outcome in ("8", "12"):
            for given in (place, {**place, "tranStateTableOffset": "77"}):
                ext = {**given, "commitOrRollback": outcome}
                answer = await ask(client, OWNER, RequestCode.END_TRANSACTION, ext, b"")
                assert "no transaction is open" in (answer.remark or "")
        assert len(server.core.transactions) == 1
        own = {**await half(server, "own"), "commitOrRollback": "8"}
        answer = await ask(client, OWNER, RequestCode.END_TRANSACTION, own, b"")
        assert answer.code == ResponseCode.SUCCESS


async def test_only_who_may_send_there_is_asked_what_became_of_a_transaction(
    tmp_path: Path,
) -> None:
    """The question has the message in it, and anybody can take the name of a producer group."""
    async with context(tmp_path, **SOON) as server, connected(server) as client:
        group = b'{"clientID":"c","consumerDataSet":[],"producerDataSet":[{"groupName":"%s"}]}'
        beat = group % GROUP.encode()
        assert (await ask(client, OWNER, RequestCode.HEART_BEAT, {}, beat)).code == 0
        await half(server, SECRET)
        await half(server, "own")
        await eventually(lambda: len(client.asked) >= 3)
        assert {each.ext["topic"] for each in client.asked} == {"own"}


def test_whoever_takes_batches_of_a_query_must_be_allowed_its_name() -> None:
    from onelog.core.transactions.transactions import _UNGUESSABLE

    for name in ("0f8fad5b-d9cd-469f-a165-70867728950e", f"spark-batch-{'0f' * 16}"):
        assert _UNGUESSABLE.fullmatch(name)
    for name in ("etl", "", "0f8fad5b", f"spark-batch-{'0f' * 16}\n", f"etl-{'0f' * 16}"):
        assert not _UNGUESSABLE.fullmatch(name)


async def test_a_query_that_has_a_name_is_not_committed_by_others(tmp_path: Path) -> None:
    async with context(tmp_path) as server, connected(server) as client:
        for principal, code in (
            (OWNER, ResponseCode.SUCCESS),
            (NOBODY, ResponseCode.NO_PERMISSION),
        ):
            ext = {"query": "own-etl", "batch": str(1 << 60)}
            for request, body in (
                (RequestCode.COMMIT_STAGED, b"[]"),
                (RequestCode.QUERY_STAGED, b""),
            ):
                assert (await ask(client, principal, request, ext, body)).code == code


async def test_other_users_connections_are_not_shown_and_not_closed(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        connection = await asyncio.to_thread(entered, server, OWNER, "/")
        for user, seen in ((OWNER, 1), (NOBODY, 0)):
            async with httpx.AsyncClient(base_url=url(server), timeout=SECONDS, auth=user) as web:
                for path in ("/api/connections", "/api/vhosts/%2F/connections"):
                    assert len((await web.get(path)).json()) == seen
                me = (await web.get("/api/whoami")).json()
                assert me == {"name": user[0], "tags": []}
                (line,) = (each for each in server.context.clients())
                name = f"{line.connection.remote_address} -> x"
                closing = await web.delete(f"/api/connections/{quote(name, '')}")
                assert closing.status_code == 403
        assert not line.connection.closing
        await asyncio.to_thread(connection.close)

"""The client of etcd's JSON API, against a real one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from onelog.errors import RegistryError
from onelog.replication.election import Election
from onelog.replication.etcd import Etcd, parse_endpoints, prefix_of
from onelog.replication.registry import Put
from onelog.replication.roles import ElectionNode, InSync, LogProgress, Role, Self
from onelog.server import void
from tests.ports import free_port
from tests.replication.live import RealEtcd
from tests.waiting import eventually

PREFIX = prefix_of("shop", "broker-a")


async def answering(etcd: Etcd) -> Etcd:
    """The client, once the server is up."""
    async with asyncio.timeout(60):
        while True:
            try:
                await etcd.read_all()
            except RegistryError:
                await asyncio.sleep(0.05)
            else:
                return etcd


@pytest.fixture
async def etcd(real_etcd: RealEtcd) -> AsyncIterator[Etcd]:
    client = await answering(Etcd(parse_endpoints(real_etcd.address), PREFIX, 5_000))
    yield client
    await client.close()


def test_endpoints_are_separated_by_semicolons_or_commas() -> None:
    assert parse_endpoints("one:2379;two:2379,[::1]:2379") == [
        ("one", 2379),
        ("two", 2379),
        ("::1", 2379),
    ]


async def test_what_is_written_is_read_with_its_revision(etcd: Etcd) -> None:
    revision = await etcd.transact(
        {"state": 0}, {"state": Put(b"one"), "nodes/1": Put(b"\x00\xff")}
    )
    found = await etcd.read_all()
    assert found.revision == revision > 0
    assert found.entries == {
        "state": (b"one", revision, 0),
        "nodes/1": (b"\x00\xff", revision, 0),
    }


async def test_a_write_happens_only_if_everything_is_as_expected(etcd: Etcd) -> None:
    first = await etcd.transact({"state": 0}, {"state": Put(b"one")})
    assert await etcd.transact({"state": 0}, {"state": Put(b"two")}) == 0
    assert await etcd.transact({"state": first, "master": 1}, {"state": Put(b"two")}) == 0
    assert await etcd.transact({"state": first, "master": 0}, {"state": None}) > first
    assert (await etcd.read_all()).entries == {}


async def test_other_sets_are_not_seen(etcd: Etcd, real_etcd: RealEtcd) -> None:
    other = Etcd(parse_endpoints(real_etcd.address), prefix_of("shop", "broker-b"), 5_000)
    await other.transact({}, {"state": Put(b"theirs")})
    assert (await etcd.read_all()).entries == {}
    await other.close()


async def test_keys_go_with_their_lease(etcd: Etcd) -> None:
    lease = await etcd.grant_lease(1_500)
    assert lease.ttl_ms >= 2_000
    await etcd.transact({}, {"master": Put(b"me", lease.number)})
    assert (await etcd.read_all()).entries["master"].lease == lease.number
    assert await etcd.renew_lease(lease.number)
    await etcd.revoke_lease(lease.number)
    assert (await etcd.read_all()).entries == {}
    assert not await etcd.renew_lease(lease.number)
    assert await etcd.transact({}, {"master": Put(b"me", lease.number)}) == 0


async def test_a_connection_is_good_for_more_after_a_refusal(etcd: Etcd) -> None:
    """Refusals end with trailers, which belong to no other answer."""
    lease = (await etcd.grant_lease(5_000)).number
    await etcd.revoke_lease(lease)
    for _ in range(3):
        with pytest.raises(RegistryError, match="lease not found"):
            await etcd.revoke_lease(lease)
        assert await etcd.transact({}, {"state": Put(b"late", lease)}) == 0
        assert (await etcd.read_all()).entries == {}


async def test_changes_are_told(etcd: Etcd) -> None:
    changes: list[None] = []
    etcd.watch(lambda: changes.append(None))
    await eventually(lambda: len(changes) == 1)
    await etcd.transact({}, {"state": Put(b"one")})
    await eventually(lambda: len(changes) == 2)


async def test_a_set_in_which_nothing_happens_for_long_has_nothing_to_complain_of(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("onelog.replication.etcd.WATCH_SILENCE_S", 0.1)
    changes: list[None] = []
    etcd.watch(lambda: changes.append(None))
    await eventually(lambda: len(changes) == 3)  # Told when it is watched, each time.
    await etcd.transact({}, {"state": Put(b"one")})
    await eventually(lambda: len(changes) > 4)
    assert caplog.records == []


async def test_an_endpoint_that_does_not_answer_is_left_for_the_next(real_etcd: RealEtcd) -> None:
    begun: list[bool] = []
    ended: list[bool] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.append(True)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.append(True)

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    text = f"127.0.0.1:{free_port()};127.0.0.1:{port};{real_etcd.address}"
    client = Etcd(parse_endpoints(text), PREFIX, 500)
    failures: list[str] = []
    async with asyncio.timeout(60):
        while True:
            try:
                await client.read_all()
                break
            except RegistryError as error:
                failures.append(str(error))
    assert len(failures) >= 2
    await client.read_all()
    await client.close()
    silent.close()
    # What it leaves open would be found in another test, and blamed on that.
    await eventually(lambda: ended == begun)


async def test_garbage_is_a_failure() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Etcd([("127.0.0.1", port)], PREFIX, 2_000)
    with pytest.raises(RegistryError):
        await client.read_all()
    await client.close()
    server.close()


@dataclass
class QuietNode(ElectionNode):
    """A node that only takes part in elections."""

    role: Role = field(default_factory=Role)

    def progress(self) -> LogProgress:
        return LogProgress(0, 0, 0)

    def become(self, role: Role, in_sync: InSync) -> None:
        self.role = role

    def in_sync_is(self, in_sync: InSync) -> None:
        pass

    def prepare_hand_over(self, target: int, ready: Callable[[str], None]) -> None:
        ready("")

    def resume(self) -> None:
        pass

    def has(self, epoch: int, confirmed: int) -> bool:
        return True

    def is_empty(self) -> bool:
        return False

    def may_truncate(self) -> None:
        pass


async def test_three_nodes_elect_each_other_and_go_on_when_etcd_comes_back(
    etcd: Etcd, real_etcd: RealEtcd
) -> None:
    loop = asyncio.get_running_loop()
    nodes, elections, clients = [], [], []
    for number in range(3):
        client = Etcd(parse_endpoints(real_etcd.address), PREFIX, 500)
        me = Self(number, f"start of {number}", f"host:{number}", f"ha:{number}", 3, 2_000)
        node = QuietNode()
        election = Election(
            me,
            node,
            client,
            lambda: loop.time() * 1000,
            lambda: 0,
            lambda delay, call: void(loop.call_later(delay / 1000, call)),
        )
        election.start()
        nodes.append(node)
        elections.append(election)
        clients.append(client)

    def has_master(*among: int) -> bool:
        masters = [number for number in among if elections[number].is_proven()]
        others = [nodes[number].role.master for number in among if number not in masters]
        return len(masters) == 1 and others == masters * len(others)

    await eventually(lambda: has_master(0, 1, 2))
    assert elections[0].is_proven()
    elections[0].propose_in_sync(frozenset({0, 1, 2}))
    await eventually(lambda: elections[1].view.state is not None)
    await eventually(lambda: len(elections[0].view.state.in_sync) == 3)  # type: ignore[union-attr]
    elections[0].stop()
    await eventually(lambda: has_master(1, 2))
    real_etcd.stop()
    await eventually(lambda: not any(each.is_proven() for each in elections))
    real_etcd.start()
    await eventually(lambda: has_master(1, 2))
    for election, client in zip(elections, clients, strict=True):
        election.stop()
        await client.close()
    assert not (await etcd.read_all()).entries.keys() & {"master", "nodes/1", "nodes/2"}

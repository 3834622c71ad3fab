"""Transactions of STOMP: messages and acknowledgements together, or not at all."""

import subprocess
from pathlib import Path

import pytest

import onelog
from onelog.core.transactions.staged import StagedParts
from onelog.embedded_broker import EmbeddedBroker
from onelog.errors import StoreFullError
from onelog.gateways.stomp.transactions import Transaction
from tests.gateways.stomp.live import connected


def test_messages_are_there_after_the_commit(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/a", "a")
        client.subscribe("/topic/b", "b")
        client.connection.begin("t")
        client.send("/queue/a", "1", transaction="t")
        client.send("/topic/b", "2", transaction="t")
        client.send("/queue/a", "outside")
        assert client.get().body == "outside"
        assert client.is_quiet()
        client.done(client.connection.commit, "t")
        assert sorted(client.bodies(2)) == ["1", "2"]


def test_nothing_is_there_after_an_abort(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/a", ack="client-individual")
        client.send("/queue/a", "in")
        heard = client.get()
        client.connection.begin("t")
        client.send("/queue/a", "never", transaction="t")
        client.ack(heard, transaction="t")
        client.done(client.connection.abort, "t")
        assert client.is_quiet()
        client.ack(heard)  # It was not acknowledged.


def test_acknowledgements_count_with_the_commit(tmp_path: Path) -> None:
    with onelog.embedded(tmp_path, stomp=True) as mq:
        with connected(mq.stomp_address) as client:
            client.subscribe("/queue/in", ack="client-individual")
            client.send("/queue/in", "1")
            client.send("/queue/in", "2")
            first, second = client.get(), client.get()
            client.connection.begin("t")
            client.ack(first, transaction="t")
            client.send("/queue/out", "of 1", transaction="t")
            client.done(client.connection.commit, "t")
            client.connection.begin("u")
            client.ack(second, transaction="u")
            client.send("/queue/out", "of 2", transaction="u")
    with onelog.embedded(tmp_path, stomp=True) as mq, connected(mq.stomp_address) as client:
        client.subscribe("/queue/in", "in")
        client.subscribe("/queue/out", "out")
        found = {
            (heard.headers["subscription"], heard.body)
            for heard in (client.get() for _ in range(2))
        }
        assert found == {("in", "2"), ("out", "of 1")}
        assert client.is_quiet()


def test_a_refusal_in_a_transaction(onelog_stomp: EmbeddedBroker) -> None:
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/a", ack="client-individual")
        client.send("/queue/a", "x")
        heard = client.get()
        client.connection.begin("t")
        client.nack(heard, transaction="t")
        assert client.is_quiet()
        client.done(client.connection.commit, "t")
        assert client.get().headers["redelivered"] == "true"


def test_a_transaction_that_is_not_open(onelog_stomp: EmbeddedBroker) -> None:
    for command in ("commit", "abort"):
        with connected(onelog_stomp.stomp_address) as client:
            getattr(client.connection, command)("none")
            assert client.errors.get(timeout=30).headers["message"] == "no such transaction"


@pytest.mark.parametrize("ack", ["client", "client-individual"])
def test_a_kill_right_behind_the_append_of_a_commit_loses_no_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ack: str
) -> None:
    def killed(self: Transaction) -> None:
        # A log of one gigabyte is a few pages and a large hole.
        subprocess.run(
            ["cp", "-r", "--sparse=always", tmp_path / "one", tmp_path / "two"], check=True
        )
        finish(self)

    finish = Transaction.finish
    monkeypatch.setattr(Transaction, "finish", killed)
    with onelog.embedded(tmp_path / "one", stomp=True) as mq, connected(mq.stomp_address) as client:
        client.subscribe("/queue/in", ack=ack)
        for body in "123":
            client.send("/queue/in", body)
        first, second, _ = [client.get() for _ in range(3)]
        client.connection.begin("t")
        if ack != "client":
            client.ack(first, transaction="t")
        client.ack(second, transaction="t")
        client.send("/queue/out", "of both", transaction="t")
        client.done(client.connection.commit, "t")
    # As the files were when nothing but the log knew of it.
    with onelog.embedded(tmp_path / "two", stomp=True) as mq, connected(mq.stomp_address) as client:
        client.subscribe("/queue/in", "in")
        client.subscribe("/queue/out", "out")
        assert sorted(client.bodies(2)) == ["3", "of both"]
        assert client.is_quiet()


def test_a_commit_that_cannot_be_written_acknowledges_nothing(
    onelog_stomp: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreFullError("no room")

    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/in", ack="client-individual")
        client.send("/queue/in", "1")
        heard = client.get()
        client.connection.begin("t")
        client.ack(heard, transaction="t")
        client.send("/queue/out", "of 1", transaction="t")
        with monkeypatch.context() as patched:
            patched.setattr(StagedParts, "append", refuse)
            client.connection.commit("t")
            assert "no room" in client.errors.get(timeout=30).body
    with connected(onelog_stomp.stomp_address) as client:
        client.subscribe("/queue/in", "in")
        client.subscribe("/queue/out", "out")
        assert client.get().body == "1"
        assert client.is_quiet()

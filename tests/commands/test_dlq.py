"""`onelog dlq`, as people use it."""

import pytest

from onelog.client.admin.dead_letters import Resending, Resent
from onelog.commands.dlq import show_resending
from onelog.commands.terminal import console
from tests.client.letters import dead_letters
from tests.client.live_cluster import LiveCluster
from tests.commands.conftest import Run


@pytest.fixture
async def ids(cluster: LiveCluster) -> list[str]:
    """The ids that five dead letters had as messages."""
    await cluster.create_topic("orders", 1)
    return await dead_letters(cluster, 5)


def stored(cluster: LiveCluster, topic: str) -> int:
    return int(cluster.brokers[0].core.store.max_offset(topic, 0))


async def letter_ids(onelog: Run) -> list[str]:
    return [letter["id"] for letter in (await onelog("dlq", "show", "readers", "--json")).document]


async def test_nobody_has_dead_letters(onelog: Run) -> None:
    assert (await onelog("dlq", "list", "--json")).document == []
    ended = await onelog("dlq", "show", "readers")
    assert (ended.code, ended.out) == (1, "")
    assert "consumer group readers has no dead letters" in ended.err


async def test_groups_are_listed_with_a_total(
    onelog: Run, cluster: LiveCluster, ids: list[str]
) -> None:
    (box,) = (await onelog("dlq", "list", "--json")).document
    assert (box["group"], box["topic"]) == ("readers", "%DLQ%readers")
    assert (box["letters"], box["kept"]) == (5, 5)
    assert box["queues"] == [
        {"broker": "broker-a", "queue": 0, "min_offset": 0, "max_offset": 5, "mark": 0}
    ]
    shown = (await onelog("dlq", "list")).out
    assert "consumer groups with dead letters: 1" in shown
    assert "readers" in shown
    assert "total" in shown


async def test_letters_are_shown_with_their_story(onelog: Run, ids: list[str]) -> None:
    letters = (await onelog("dlq", "show", "readers", "--json", "--count", "2")).document
    assert [letter["body"] for letter in letters] == ["body 0", "body 1"]
    letter = letters[0]
    assert (letter["origin_topic"], letter["origin_id"]) == ("orders", ids[0])
    assert (letter["tries"], letter["reason"]) == (1, "tried once, then given up")
    assert (letter["keys"], letter["resent"]) == (["k0", "all"], False)
    assert letter["born_ms"] == 1_700_000_000_000
    shown = (await onelog("dlq", "show", "readers", "--utc")).out
    for text in ("dead letters of readers: 5", "orders", "2023-11-14 22:13:20.000Z", "k4 all"):
        assert text in shown
    later = (await onelog("dlq", "show", "readers", "--from", "3", "--json")).document
    assert [letter["offset"] for letter in later] == [3, 4]
    assert len((await onelog("dlq", "show", "readers", "--since", "1h", "--json")).document) == 5
    assert (await onelog("dlq", "show", "readers", "--since", "now", "--json")).document == []


async def test_the_allowed_number_of_tries_is_a_reason(onelog: Run, ids: list[str]) -> None:
    await onelog("group", "update", "readers", "--retries", "0")
    letters = (await onelog("dlq", "show", "readers", "--json")).document
    assert {letter["reason"] for letter in letters} == {"tried once, all that are allowed"}


async def test_letters_are_resent_by_id_and_by_key(
    onelog: Run, cluster: LiveCluster, ids: list[str]
) -> None:
    letters = await letter_ids(onelog)
    ended = await onelog(
        "dlq", "resend", "readers", "--id", letters[1], "--id", letters[0], "--json"
    )
    assert (ended.code, ended.err) == (0, "")
    assert {each["id"] for each in ended.document["resent"]} == set(letters[:2])
    assert all(each["new_id"] for each in ended.document["resent"])
    assert stored(cluster, "orders") == 7
    assert await letter_ids(onelog) == letters[2:]
    (box,) = (await onelog("dlq", "list", "--json")).document
    assert box["letters"] == 3
    ended = await onelog("dlq", "resend", "readers", "--key", "k3")
    assert ended.code == 0
    assert "readers: 1 letters resent" in ended.out
    assert await letter_ids(onelog) == [letters[2], letters[4]]
    everything = (await onelog("dlq", "show", "readers", "--all", "--json")).document
    assert [letter["resent"] for letter in everything] == [True, True, False, True, False]
    ended = await onelog("dlq", "resend", "readers", "--id", letters[3])
    assert "readers: 0 letters resent, 1 had been already" in ended.out
    ended = await onelog("dlq", "resend", "readers", "--id", letters[3], "--again", "--json")
    assert len(ended.document["resent"]) == 1
    missing = await onelog("dlq", "resend", "readers", "--key", "k99")
    assert (missing.code, "no dead letter of readers has the key 'k99'" in missing.err) == (1, True)


async def test_all_letters_are_resent_after_a_question(
    onelog: Run, cluster: LiveCluster, ids: list[str]
) -> None:
    resend = ("dlq", "resend", "readers", "--all")
    refused = await onelog(*resend, stdin="n\n")
    assert refused.code == 2
    assert "Send 5 dead letters of readers to their own topics?" in refused.err
    would = await onelog(*resend, "--dry-run")
    assert "readers: 5 letters would be resent" in would.out
    assert stored(cluster, "orders") == 5
    ended = await onelog(*resend, "--yes")
    assert "readers: 5 letters resent" in ended.out
    assert stored(cluster, "orders") == 10
    assert (await onelog("dlq", "list", "--json")).document == []
    assert (await onelog("dlq", "list", "--all", "--json")).document[0]["kept"] == 5
    again = await onelog(*resend, "--yes")
    assert "readers: 0 letters resent" in again.out
    assert stored(cluster, "orders") == 10


async def test_letters_go_to_another_topic(
    onelog: Run, cluster: LiveCluster, ids: list[str]
) -> None:
    resend = ("dlq", "resend", "readers", "--all", "--yes", "--to-topic")
    ended = await onelog(*resend, "nowhere", "--json")
    assert ended.code == 2
    assert len(ended.document["failed"]) == 5
    assert "there is no topic nowhere" in ended.err
    await cluster.create_topic("repaired", 1)
    assert (await onelog(*resend, "repaired")).code == 0
    assert (stored(cluster, "orders"), stored(cluster, "repaired")) == (5, 5)


@pytest.mark.parametrize(
    "options", [[], ["--all", "--key", "k"], ["--id", "1", "--all"], ["--id", "1", "--key", "k"]]
)
async def test_which_letters_must_be_said(onelog: Run, options: list[str]) -> None:
    ended = await onelog("dlq", "resend", "readers", *options)
    assert (ended.code, "say which letters" in ended.err) == (2, True)


async def test_letters_are_dropped_and_taken_back(
    onelog: Run, cluster: LiveCluster, ids: list[str]
) -> None:
    drop = ("dlq", "drop", "readers")
    assert "5 letters would be dropped" in (await onelog(*drop, "--dry-run")).out
    refused = await onelog(*drop, stdin="n\n")
    assert "Drop 5 dead letters of readers?" in refused.err
    assert len(await letter_ids(onelog)) == 5
    none = await onelog(*drop, "--until", "1h", "--yes", "--json")
    assert none.document == {"group": "readers", "dry_run": False, "undo": False, "letters": 0}
    assert (await onelog(*drop, "--yes")).out == "readers: 5 letters dropped\n"
    assert await letter_ids(onelog) == []
    assert (await onelog("dlq", "list", "--json")).document == []
    assert (await onelog(*drop, "--undo")).out == "readers: 5 letters count again\n"
    assert len(await letter_ids(onelog)) == 5
    assert (await onelog(*drop, "--undo", "--until", "1h")).code == 2


def test_a_long_list_of_resent_letters_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    resent = tuple(Resent(f"id-{number}", "orders", "new") for number in range(103))
    for view in show_resending("readers", Resending(resent, 2, ()), False)[1:]:
        console().print(view)
    shown = capsys.readouterr().out
    assert "id-99" in shown
    assert "id-100" not in shown
    assert "... and 3 more" in shown
    assert "readers: 103 letters resent, 2 had been already" in shown

"""`onelog dlq`, as people use it."""

from typing import Any

import msgspec
import pytest

from onelog.admin.history import Resent, ResentLetter
from onelog.commands.operations import shown
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
    return [letter["message"]["id"] for letter in await letters_of(onelog)]


async def letters_of(onelog: Run, *options: str) -> list[Any]:
    return list((await onelog("dlq", "show", "readers", "--json", *options)).document["items"])


async def test_nobody_has_dead_letters(onelog: Run) -> None:
    assert (await onelog("dlq", "list", "--json")).document["items"] == []
    ended = await onelog("dlq", "show", "readers")
    assert (ended.code, ended.out) == (1, "")
    assert "consumer group readers has no dead letters" in ended.err


async def test_groups_are_listed_with_a_total(
    onelog: Run, cluster: LiveCluster, ids: list[str]
) -> None:
    (box,) = (await onelog("dlq", "list", "--json")).document["items"]
    assert (box["group"], box["topic"]) == ("readers", "%DLQ%readers")
    assert (box["count"], box["kept"]) == (5, 5)
    assert box["queues"] == [
        {"broker": "broker-a", "queue": 0, "min_offset": 0, "max_offset": 5, "mark": 0}
    ]
    shown = (await onelog("dlq", "list")).out
    for text in ("groups with dead letters: 1", "readers", "total", "broker-a"):
        assert text in shown


async def test_letters_are_shown_with_their_story(onelog: Run, ids: list[str]) -> None:
    letters = await letters_of(onelog, "--count", "2")
    assert [letter["message"]["body"] for letter in letters] == ["body 0", "body 1"]
    letter = letters[0]
    assert (letter["origin_topic"], letter["origin_id"]) == ("orders", ids[0])
    assert (letter["tries"], letter["is_exhausted"]) == (1, False)
    assert (letter["message"]["keys"], letter["is_resent"]) == (["k0", "all"], False)
    assert letter["message"]["born_ms"] == 1_700_000_000_000
    shown = (await onelog("dlq", "show", "readers", "--utc")).out
    for text in ("dead letters of a group: 5", "orders", "2023-11-14 22:13:20.000Z", "k4 all"):
        assert text in shown
    later = await letters_of(onelog, "--from", "3")
    assert [letter["message"]["offset"] for letter in later] == [3, 4]
    assert len(await letters_of(onelog, "--since", "1h")) == 5
    assert await letters_of(onelog, "--since", "now") == []


async def test_the_allowed_number_of_tries_is_a_reason(onelog: Run, ids: list[str]) -> None:
    await onelog("group", "update", "readers", "--retries", "0")
    assert all(letter["is_exhausted"] for letter in await letters_of(onelog))


async def test_letters_are_resent_by_id_and_by_key(
    onelog: Run, cluster: LiveCluster, ids: list[str]
) -> None:
    letters = await letter_ids(onelog)
    ended = await onelog(
        "dlq", "resend", "readers", "--id", letters[1], "--id", letters[0], "--json"
    )
    assert (ended.code, ended.err) == (0, "")
    assert {each["id"] for each in ended.document["letters"]} == set(letters[:2])
    assert all(each["new_id"] for each in ended.document["letters"])
    assert stored(cluster, "orders") == 7
    assert await letter_ids(onelog) == letters[2:]
    (box,) = (await onelog("dlq", "list", "--json")).document["items"]
    assert box["count"] == 3
    ended = await onelog("dlq", "resend", "readers", "--key", "k3")
    assert ended.code == 0
    assert "letters: 1" in ended.out
    assert await letter_ids(onelog) == [letters[2], letters[4]]
    everything = await letters_of(onelog, "--all")
    assert [letter["is_resent"] for letter in everything] == [True, True, False, True, False]
    ended = await onelog("dlq", "resend", "readers", "--id", letters[3], "--json")
    assert (ended.document["resent"], ended.document["already"]) == (0, 1)
    ended = await onelog("dlq", "resend", "readers", "--id", letters[3], "--again", "--json")
    assert ended.document["resent"] == 1
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
    assert "letters: 5" in would.out
    assert "dry run" in would.out
    assert stored(cluster, "orders") == 5
    ended = await onelog(*resend, "--yes")
    assert "letters: 5" in ended.out
    assert stored(cluster, "orders") == 10
    assert (await onelog("dlq", "list", "--json")).document["items"] == []
    assert (await onelog("dlq", "list", "--all", "--json")).document["items"][0]["kept"] == 5
    again = await onelog(*resend, "--yes", "--json")
    assert again.document["resent"] == 0
    assert stored(cluster, "orders") == 10


async def test_letters_go_to_another_topic(
    onelog: Run, cluster: LiveCluster, ids: list[str]
) -> None:
    resend = ("dlq", "resend", "readers", "--all", "--yes", "--to-topic")
    ended = await onelog(*resend, "nowhere", "--json")
    assert ended.code == 2
    assert len(ended.document["failures"]) == 5
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
    would = (await onelog(*drop, "--dry-run", "--json")).document
    assert (would["letters"], would["dry_run"], would["done"]) == (5, True, False)
    refused = await onelog(*drop, stdin="n\n")
    assert "Drop 5 dead letters of readers?" in refused.err
    assert len(await letter_ids(onelog)) == 5
    none = await onelog(*drop, "--until", "1h", "--yes", "--json")
    made = {"group": "readers", "dry_run": False, "undo": False, "done": True, "letters": 0}
    assert none.document == made
    assert (await onelog(*drop, "--yes", "--json")).document == {**made, "letters": 5}
    assert await letter_ids(onelog) == []
    assert (await onelog("dlq", "list", "--json")).document["items"] == []
    taken = await onelog(*drop, "--undo", "--json")
    assert taken.document == {**made, "undo": True, "letters": 5}
    assert len(await letter_ids(onelog)) == 5
    assert (await onelog(*drop, "--undo", "--until", "1h")).code == 2


def test_a_long_list_of_resent_letters_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    letters = [ResentLetter(f"id-{number}", "orders", "new") for number in range(103)]
    resent = Resent("readers", False, 103, 2, [], [], letters)
    for view in shown("Resend", Resent, msgspec.to_builtins(resent), True):
        console().print(view)
    printed = capsys.readouterr().out
    assert "id-99" in printed
    assert "id-100" not in printed
    assert "... and 3 more" in printed
    assert "letters: 103" in printed

"""Dead letters, seen and dealt with over the network."""

from pathlib import Path
from typing import Any

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.dead_letters import Letter
from onelog.client.admin.groups import GroupChange
from onelog.client.admin.topics import TopicChange
from onelog.errors import GroupNotFoundError, MessageNotFoundError, NotPermittedError
from onelog.message import Message
from onelog.wire.remoting.codes import RequestCode
from tests.client.letters import dead_letters, give_up
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.gateways.remoting.live import messages


async def all_letters(admin: AsyncAdmin, group: str = "readers", **how: Any) -> list[Letter]:
    return [letter async for letter in admin.dead_letters.letters(group, **how)]


def numbers(letters: list[Letter]) -> list[int]:
    return [int(bytes(letter.found.message.body).removeprefix(b"body ")) for letter in letters]


async def stored(cluster: LiveCluster, topic: str, broker: int = 0) -> list[Message]:
    """Everything in the first queues of a topic."""
    client = await cluster.client(broker)
    found = []
    config = cluster.brokers[broker].core.topics.require(topic)
    for queue in range(config.read_queues):
        answer = await client.pull(topic, 0, queueId=queue)
        found += messages(answer) if answer.code == 0 else []
    return found


async def counts(admin: AsyncAdmin) -> dict[str, int]:
    return {box.group: box.count for box in await admin.dead_letters.boxes()}


async def test_groups_with_dead_letters_are_listed_with_their_number(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    assert await admin.dead_letters.boxes() == ()
    await dead_letters(cluster, 3, "readers")
    await dead_letters(cluster, 1, "writers", begin=3)
    assert await counts(admin) == {"readers": 3, "writers": 1}
    box = await admin.dead_letters.box("readers")
    assert (box.topic, box.kept, box.failures) == ("%DLQ%readers", 3, ())
    assert box.updated_ms > 0


async def test_a_letter_tells_where_it_comes_from_and_how_it_died(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    (sent,) = await dead_letters(cluster, 1)
    (letter,) = await all_letters(admin)
    assert (letter.origin_topic, letter.origin_id) == ("orders", sent)
    assert (letter.tries, letter.is_exhausted, letter.is_resent) == (1, False, False)
    await admin.groups.update("readers", GroupChange(retry_times_max=0))
    (letter,) = await all_letters(admin)
    assert letter.is_exhausted
    await admin.groups.delete("readers")
    (letter,) = await all_letters(admin)
    assert not letter.is_exhausted


async def test_more_letters_than_a_page_come_in_their_order(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 70)
    letters = await all_letters(admin)
    assert numbers(letters) == list(range(70))
    assert numbers(await all_letters(admin, begin=65)) == [65, 66, 67, 68, 69]
    later_ms = letters[40].found.message.store_ms
    since = await all_letters(admin, since_ms=later_ms)
    assert numbers(since) == [
        number for number, each in enumerate(letters) if each.found.message.store_ms >= later_ms
    ]


async def test_a_resent_letter_is_the_message_that_it_was(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    (sent,) = await dead_letters(cluster, 1)
    (letter,) = await all_letters(admin)
    result = await admin.dead_letters.resend([letter])
    (resent,) = result.resent
    assert (result.already, result.failures) == (0, ())
    assert (resent.message_id, resent.topic) == (letter.found.message.message_id, "orders")
    original = (await admin.messages.by_id(sent)).message
    copy = (await admin.messages.by_id(resent.new_id)).message
    assert bytes(copy.body) == bytes(original.body)
    assert (copy.topic, copy.reconsume_times, copy.flag) == ("orders", 0, original.flag)
    assert (copy.keys, copy.tags) == (original.keys, original.tags)
    assert (copy.unique_key, copy.born_ms) == (original.unique_key, original.born_ms)
    entries = copy.properties.decode().split("\x02")
    names = [entry.partition("\x01")[0] for entry in entries if entry]
    assert sorted(names) == sorted(
        [
            "KEYS",
            "TAGS",
            "UNIQ_KEY",
            "colour",
            "ONELOG_RESENT_FROM",
            "MSG_REGION",
            "TRACE_ON",
            "CLUSTER",
        ]
    )


async def test_a_letter_is_resent_once_whoever_does_it(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 3)
    letters = await all_letters(admin)
    assert len((await admin.dead_letters.resend(letters[1:2])).resent) == 1
    async with cluster.admin() as other:
        assert numbers(await all_letters(other)) == [0, 2]
        assert [each.is_resent for each in await all_letters(other, everything=True)] == [
            False,
            True,
            False,
        ]
        result = await other.dead_letters.resend(letters)
        assert (len(result.resent), result.already) == (2, 1)
        result = await other.dead_letters.resend(letters)
        assert (len(result.resent), result.already) == (0, 3)
    assert len(await stored(cluster, "orders")) == 6
    assert len((await admin.dead_letters.resend(letters, again=True)).resent) == 3
    assert len(await stored(cluster, "orders")) == 9


async def test_the_mark_follows_the_front_of_what_was_resent(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 4)
    letters = await all_letters(admin)
    await admin.dead_letters.resend([letters[2]])
    await admin.dead_letters.settle("readers")
    assert await counts(admin) == {"readers": 4}
    await admin.dead_letters.resend([letters[0]])
    await admin.dead_letters.settle("readers")
    assert await counts(admin) == {"readers": 3}
    await admin.dead_letters.resend([letters[1]])
    await admin.dead_letters.settle("readers")
    assert await counts(admin) == {"readers": 1}
    await admin.dead_letters.resend([letters[3]])
    await admin.dead_letters.settle("readers")
    assert await counts(admin) == {}
    (box,) = await admin.dead_letters.boxes(with_empty=True)
    assert (box.count, box.kept) == (0, 4)


async def test_all_letters_are_resent_and_what_dies_anew_is_a_new_letter(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 40)
    steps: list[tuple[int, int]] = []
    result = await admin.dead_letters.resend_all(
        "readers", on_progress=lambda done, total: steps.append((done, total))
    )
    assert len(result.resent) == 40
    assert steps == [(32, 40), (40, 40)]
    assert await counts(admin) == {}
    assert (await admin.dead_letters.resend_all("readers")).resent == ()
    await give_up(await cluster.client(), result.resent[7].new_id)
    (letter,) = await all_letters(admin)
    assert numbers([letter]) == [7]
    again = await admin.dead_letters.resend([letter])
    assert len(again.resent) == 1
    copies = (await admin.messages.by_unique_key("orders", f"{7:032X}")).messages
    assert len(copies) == 3


async def test_a_dry_run_changes_nothing(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 2)
    result = await admin.dead_letters.resend_all("readers", dry_run=True)
    assert [(each.topic, each.new_id) for each in result.resent] == [("orders", "")] * 2
    assert await counts(admin) == {"readers": 2}
    assert len(await stored(cluster, "orders")) == 2


async def test_what_cannot_be_resent_is_named_and_stays(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 1)
    await cluster.send("%DLQ%readers", b"body 1", UNIQ_KEY="1" * 32)
    await cluster.send("%DLQ%readers", b"body 2", UNIQ_KEY="2" * 32, RETRY_TOPIC="gone")
    await dead_letters(cluster, 1, begin=3)
    result = await admin.dead_letters.resend_all("readers")
    assert len(result.resent) == 2
    assert ["does not tell its topic" in each.reason for each in result.failures] == [True, False]
    assert "there is no topic gone" in result.failures[1].reason
    assert numbers(await all_letters(admin)) == [1, 2]
    await cluster.create_topic("elsewhere")
    result = await admin.dead_letters.resend_all("readers", to_topic="elsewhere")
    assert (len(result.resent), result.already) == (3, 0)
    assert await counts(admin) == {}


async def test_a_letter_can_go_to_its_own_group_only(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 1)
    result = await admin.dead_letters.resend_all("readers", to_topic="%RETRY%readers")
    assert len(result.resent) == 1
    (copy,) = await stored(cluster, "%RETRY%readers")
    assert b"RETRY_TOPIC\x01orders\x02" in copy.properties
    assert len(await stored(cluster, "orders")) == 1


async def test_a_letter_is_found_by_its_id_or_unique_key(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    (sent,) = await dead_letters(cluster, 1)
    (letter,) = await all_letters(admin)
    for given in (letter.found.message.message_id, "0" * 32):
        found = await admin.dead_letters.find("readers", given)
        assert found.found.message == letter.found.message
    with pytest.raises(MessageNotFoundError, match="no dead letter of readers, but in topic ord"):
        await admin.dead_letters.find("readers", sent)
    with pytest.raises(MessageNotFoundError):
        await admin.dead_letters.find("readers", "7" * 32)


async def test_dropped_letters_are_kept_but_do_not_count(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 3)
    box = await admin.dead_letters.box("readers")
    await dead_letters(cluster, 1, begin=3)
    await admin.dead_letters.drop(box)
    assert numbers(await all_letters(admin)) == [3]
    assert numbers(await all_letters(admin, everything=True)) == [0, 1, 2, 3]
    box = await admin.dead_letters.box("readers")
    assert (box.count, box.kept) == (1, 4)
    await admin.dead_letters.restore(box)
    assert await counts(admin) == {"readers": 4}


async def test_letters_from_before_a_time_are_dropped(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 2)
    letters = await all_letters(admin)
    box = await admin.dead_letters.box("readers")
    nothing = await admin.dead_letters.before(box, 0)
    assert nothing.count == 0
    everything = await admin.dead_letters.before(box, letters[1].found.message.store_ms + 1)
    assert everything.count == 2
    await admin.dead_letters.drop(everything)
    later = await admin.dead_letters.before(await admin.dead_letters.box("readers"), 0)
    assert later.count == 0


async def test_marks_survive_a_restart(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as cluster, cluster.admin() as admin:
        await cluster.create_topic("orders")
        await dead_letters(cluster, 2)
        await admin.dead_letters.drop(await admin.dead_letters.box("readers"))
        await dead_letters(cluster, 1, begin=2)
    async with live_cluster(tmp_path) as cluster, cluster.admin() as admin:
        assert numbers(await all_letters(admin)) == [2]


async def test_a_topic_that_was_deleted_and_came_again_counts_from_its_start(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 5)
    await admin.dead_letters.drop(await admin.dead_letters.box("readers"))
    await admin.topics.delete("%DLQ%readers")
    with pytest.raises(GroupNotFoundError, match="readers has no dead letters"):
        await admin.dead_letters.box("readers")
    assert await counts(admin) == {}
    await dead_letters(cluster, 1, begin=5)
    client = await cluster.client()
    answer = await client.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup="TOOLS_CONSUMER",
        topic="%DLQ%readers",
        queueId=0,
        commitOffset=5,
    )
    assert answer.code == 0
    assert numbers(await all_letters(admin)) == [5]


async def test_letters_that_may_not_be_read_come_with_advice(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await dead_letters(cluster, 1)
    await admin.topics.update("%DLQ%readers", TopicChange(perm=2))
    with pytest.raises(NotPermittedError, match="onelog topic update %DLQ%readers --perm rw"):
        await all_letters(admin)


async def test_letters_of_all_brokers_are_one_box(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for broker in (0, 1):
            await cluster.create_topic("orders", broker=broker)
            await dead_letters(cluster, 2 + broker, broker=broker)
        assert await counts(admin) == {"readers": 5}
        result = await admin.dead_letters.resend_all("readers")
        assert len(result.resent) == 5
        assert [len(await stored(cluster, "orders", broker)) for broker in (0, 1)] == [4, 6]
        assert await counts(admin) == {}

"""Hashes of many messages' keys: the fast way finds what the slow one does."""

from hypothesis import given
from hypothesis import strategies as st

from onelog.store.keyindex import ALIKE_MIN, hashes_of, key_hash, message_keys

COUNT = ALIKE_MIN + 1


def one_by_one(topics: list[str], properties: list[bytes]) -> list[tuple[int, int]]:
    return [
        (key_hash(f"{topic}#{key.decode()}"), number)
        for number, (topic, each) in enumerate(zip(topics, properties, strict=True))
        for key in message_keys(each)
    ]


def at_once(topics: list[str], properties: list[bytes]) -> list[tuple[int, int]]:
    hashes, numbers = hashes_of(topics, properties)
    return list(zip(hashes.tolist(), numbers.tolist(), strict=True))


def alike(form: str = "A\x01b\x02UNIQ_KEY\x01{:08d}\x02WAIT\x01true") -> list[bytes]:
    return [form.format(number * 7919).encode() for number in range(COUNT)]


def test_messages_with_properties_of_one_form() -> None:
    for form in (
        "UNIQ_KEY\x01{:08d}",
        "UNIQ_KEY\x01{:08d}\x02",
        "A\x01b\x02UNIQ_KEY\x01{:08d}\x02C\x01d",
    ):
        rows = alike(form)
        found = at_once(["orders"] * COUNT, rows)
        assert found == one_by_one(["orders"] * COUNT, rows)
        assert len({each for each, _ in found}) == COUNT


def test_messages_of_several_topics_and_forms_stay_in_order() -> None:
    rows = [row for pair in zip(alike(), alike("UNIQ_KEY\x01{:08d}"), strict=True) for row in pair]
    topics = [f"t{number % 3}" for number in range(len(rows))]
    rows[5] = b""
    rows[6] = "UNIQ_KEY\x01x\x02KEYS\x01a b ключ".encode()
    assert at_once(topics, rows) == one_by_one(topics, rows)


def test_messages_that_only_look_alike() -> None:
    good = alike()
    size = len(good[0])
    odd = [
        b"A\x01b\x02XUNIQ_KEY\x01" + b"1" * (size - 14),
        b"UNIQ_KEY\x01" + b"2" * (size - 9),
        b"A\x01b\x02UNIQ_KEY\x0112\x02456780WAIT\x01true",
        b"A\x01b\x02UNIQ_KEY\x01\x02UNIQ_KEY\x01ab\x02xxx",
        b"K\x01b\x02UNIQ_KEY\x0112345678\x02KEYS\x01tru",
        b"\x02" * size,
        b"A\x01b\x02UNIQ_KEY\x01" + "ключ".encode() + b"\x02WAIT\x01true",
    ]
    for row in odd:
        rows = [*good[:20], row.ljust(size, b"-")[:size], *good[20:]]
        for order in (rows, rows[::-1], [rows[20], *good]):
            topics = ["orders"] * len(order)
            assert at_once(topics, order) == one_by_one(topics, order), row


@given(
    st.lists(
        st.text("ab\x01\x02 ", max_size=6).map(lambda text: f"UNIQ_KEY\x01{text}\x02".encode()),
        min_size=1,
        max_size=2 * COUNT,
    )
)
def test_any_messages(rows: list[bytes]) -> None:
    topics = ["orders"] * len(rows)
    assert at_once(topics, rows) == one_by_one(topics, rows)


def test_no_messages() -> None:
    assert at_once([], []) == []

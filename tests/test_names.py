"""Names and keys."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onelog
from onelog.errors import InvalidGroupError, InvalidTopicError
from onelog.names import NAME_BYTES_MAX, check_name, join_key, split_key

SOURCE = Path(onelog.__file__).parent
SPELLED = re.compile(
    r"""["'](%RETRY%|%DLQ%|%LMQ%|SCHEDULE_TOPIC|TBW102|RMQ_SYS_|rmq_sys_|SELF_TEST_|CID_RMQ_)"""
)

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
tricky = st.text("@~01ab%", min_size=1, max_size=12)


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "%RETRY%group",
        "Ünïcode 题",
        "a" * NAME_BYTES_MAX,
        ".",
        "..",
        "a.b",
        "../etc",
        "a/b",
        "a\\b",
        "sensors/+/temp",
        "user@host",
        "50%",
        " ",
        "~",
        '"',
        "%LMQ%a,b",
    ],
)
def test_anything_without_control_characters_is_a_name(name: str) -> None:
    assert check_name(name) == name.encode()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "empty"),
        ("a" * 256, "256 bytes; the limit is 255"),
        ("é" * 128, "256 bytes; the limit is 255"),
        ("a\x00", "control character"),
        ("a\nb", "control character"),
        ("\x7f", "control character"),
        ("\x85", "control character"),
        ("\ud83d", "not valid text"),
    ],
)
def test_what_is_no_name_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(InvalidTopicError, match=complaint):
        check_name(name)
    with pytest.raises(InvalidGroupError, match=f"group name|{complaint}"):
        check_name(name, "group", InvalidGroupError)


@given(st.text())
def test_any_text_is_a_name_or_refused(name: str) -> None:
    try:
        encoded = check_name(name)
    except InvalidTopicError:
        return
    assert encoded.decode() == name
    assert 0 < len(encoded) <= NAME_BYTES_MAX


@given(st.lists(names | tricky, min_size=2, max_size=3))
def test_names_come_out_of_a_key_as_they_went_in(parts: list[str]) -> None:
    assert split_key(join_key(*parts), len(parts)) == parts


@given(st.tuples(tricky, tricky), st.tuples(tricky, tricky))
def test_no_two_pairs_of_names_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (join_key(*one) == join_key(*other)) == (one == other)


@given(st.lists(st.from_regex(r"[%|a-zA-Z0-9_+.-]{1,40}", fullmatch=True), min_size=2, max_size=3))
def test_names_of_rocketmq_are_in_a_key_as_they_are(parts: list[str]) -> None:
    assert join_key(*parts) == "@".join(parts)


def test_keys_of_earlier_versions_are_read() -> None:
    assert split_key("%RETRY%g@g") == ["%RETRY%g", "g"]
    assert split_key("orders@a@b") == ["orders", "a@b"]


def test_names_of_rocketmqs_system_are_spelled_in_two_files_only() -> None:
    spelled = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if SPELLED.search(path.read_text())
    }
    assert spelled == {"names.py", "rocketmq/names.py"}

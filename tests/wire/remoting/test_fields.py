import ast
from pathlib import Path

import pytest

import onelog
from onelog.errors import InvalidRequestError
from onelog.wire.remoting import fields

SOURCE = Path(onelog.__file__).parent
LONG_TEXTS = {
    "subscription",
    "exp",
    "key",
    "value",
    "attributes",
    "topicList",
    "filterGroups",
    "note",
    "known",
    "expected",
}
"""What is read as a text and is no name."""


def texts_read_in(path: Path) -> set[str]:
    """The fields that a module reads as texts: `fields.text(ext, name)` and `ext.get(name)`."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, asked = ast.unparse(node.func.value), node.func.attr
            named = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if (owner, asked) == ("fields", "text") or (
                asked == "get" and owner in ("ext", "command.ext")
            ):
                found.update(str(name) for name in named[:1])
    return found


def test_every_text_that_a_handler_reads_is_a_name_or_may_be_long() -> None:
    modules = [*SOURCE.glob("gateways/remoting/**/*.py"), *SOURCE.glob("nameserver/*.py")]
    read = set[str]().union(*map(texts_read_in, modules))
    assert {"topic", "attemptId", "exp"} <= read
    assert read - fields.NAMES == LONG_TEXTS


@pytest.mark.parametrize(
    ("ext", "reason"),
    [
        ({"topic": "t" * 1_024, "exp": "x" * 32_767, "i": "p" * 100_000, "n": "n"}, None),
        ({"b": "t" * 1_025}, "the custom field <b> has 1025 characters; the limit is 1024"),
        ({"exp": "x" * 32_768}, "<exp> has 32768 characters; the limit is 32767"),
        ({"unknown" * 20: "x" * 32_768}, "unknownunkno> has 32768 characters; the limit is 32767"),
        ({str(n): "" for n in range(257)}, "the request has 257 fields; the limit is 256"),
    ],
)
def test_texts_that_are_too_long_are_named(ext: dict[str, str], reason: str | None) -> None:
    found = fields.too_long(ext)
    assert found == reason if reason is None or found is None else reason in found


def test_a_text_must_be_there() -> None:
    assert fields.text({"topic": "orders"}, "topic") == "orders"
    with pytest.raises(InvalidRequestError, match="the custom field <topic> is null"):
        fields.text({}, "topic")


@pytest.mark.parametrize(
    ("value", "number"),
    [("0", 0), ("-1", -1), ("+7", 7), ("9223372036854775807", 2**63 - 1), ("007", 7)],
)
def test_numbers_are_read_as_java_reads_them(value: str, number: int) -> None:
    assert fields.number({"n": value}, "n") == number


@pytest.mark.parametrize(
    "value", ["x", "1.5", "1_000", " 7", "7 ", "٣", "-", "9223372036854775808", "9" * 5000, "0x1"]
)
def test_what_java_would_not_read_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="<n> is not a number"):
        fields.number({"n": value}, "n")


def test_an_int32_has_32_bits() -> None:
    assert fields.int32({"n": "-2147483648"}, "n") == -(2**31)
    with pytest.raises(InvalidRequestError, match="not a number"):
        fields.int32({"n": "2147483648"}, "n")


def test_a_number_that_is_not_there_has_its_default_or_is_missed() -> None:
    assert fields.number({}, "n", 5) == 5
    assert fields.number({"n": ""}, "n", 5) == 5
    with pytest.raises(InvalidRequestError, match="the custom field <n> is null"):
        fields.number({"n": ""}, "n")


@pytest.mark.parametrize(
    ("ext", "value"),
    [({"f": "true"}, True), ({"f": "TRUE"}, True), ({"f": "1"}, False), ({}, False)],
)
def test_everything_but_true_is_false(ext: dict[str, str], value: bool) -> None:
    assert fields.flag(ext, "f") is value


def test_a_flag_that_is_not_there_has_its_default() -> None:
    assert fields.flag({}, "f", True) is True

import pytest

from onelog.errors import InvalidRequestError
from onelog.wire.remoting import fields


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

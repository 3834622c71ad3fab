import pytest

from onelog.errors import InvalidGroupError, InvalidTopicError
from onelog.rocketmq.names import check_group, check_topic


@pytest.mark.parametrize("name", ["a", "A-b_9%|", "x" * 127, "%RETRY%" + "g" * 248])
def test_a_topic_of_the_allowed_characters_passes(name: str) -> None:
    check_topic(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a.b",
        "a/b",
        "a\n",
        "ö",
        "x" * 128,
        "%RETRY%" + "g" * 249,
        "%DLQ%" + "g" * 251,
    ],
)
def test_a_topic_that_rocketmq_refuses_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        check_topic(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "g" * 121, "ö"])
def test_a_group_that_rocketmq_refuses_is_refused(name: str) -> None:
    with pytest.raises(InvalidGroupError):
        check_group(name)

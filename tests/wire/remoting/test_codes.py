from onelog.wire.remoting.codes import (
    LANGUAGE_CODES,
    LANGUAGE_NAMES,
    VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
)


def test_codes_are_those_of_rocketmq() -> None:
    assert RequestCode(310).name == "SEND_MESSAGE_V2"
    assert RequestCode(105).name == "GET_ROUTEINFO_BY_TOPIC"
    assert RequestCode(200151).name == "BATCH_ACK_MESSAGE"
    assert ResponseCode(17).name == "TOPIC_NOT_EXIST"
    assert ResponseCode(-1006).name == "RPC_TIME_OUT"
    assert VERSION == 513


def test_no_number_has_two_names() -> None:
    for codes in (RequestCode, ResponseCode, LanguageCode):
        assert len(codes) == len(codes.__members__)


def test_languages_have_names_and_numbers() -> None:
    assert LANGUAGE_NAMES[9] == "GO"
    assert {LANGUAGE_CODES[name] for name in LANGUAGE_NAMES.values()} == set(range(14))

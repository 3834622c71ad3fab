"""What each request does, and that none was forgotten."""

from onelog.gateways.remoting.gateway import HANDLERS as BROKER_HANDLERS
from onelog.nameserver.session import HANDLERS as NAMESERVER_HANDLERS
from onelog.wire.remoting.administration import (
    _KINDS,
    KINDS,
    RequestKind,
    is_remote_request,
    refusal,
)
from onelog.wire.remoting.codes import RequestCode


def test_every_request_that_is_handled_is_of_exactly_one_kind() -> None:
    assert {*BROKER_HANDLERS, *NAMESERVER_HANDLERS} == set(KINDS)
    assert sum(len(names.split()) for names in _KINDS.values()) == len(KINDS)


def test_what_deletes_or_changes_by_its_name_is_administration() -> None:
    words = ("DELETE", "CLEAN", "RESET", "WIPE", "CLONE", "CONFIG", "CREATE", "ROLLBACK", "MODE")
    asks = ("GET_", "QUERY_", "VIEW_", "CHECK_")
    suspect = [
        code
        for code in map(RequestCode, KINDS)
        if any(word in code.name for word in words) and not code.name.startswith(asks)
    ]
    assert len(suspect) > 15
    assert [code for code in suspect if KINDS[code] is not RequestKind.ADMINISTRATION] == []


def test_what_is_not_in_the_table_counts_as_administration() -> None:
    handlers = {RequestCode.SEND_MESSAGE: "send", RequestCode.UPDATE_BROKER_CONFIG: "x", 9_999: "y"}
    assert is_remote_request(handlers, "no") == {
        RequestCode.SEND_MESSAGE: "send",
        RequestCode.UPDATE_BROKER_CONFIG: "no",
        9_999: "no",
    }


def test_a_refusal_says_who_and_what_to_do() -> None:
    said = refusal(RequestCode.DELETE_TOPIC_IN_BROKER, "10.0.0.5")
    assert "DELETE_TOPIC_IN_BROKER" in said
    assert "10.0.0.5" in said
    assert "security.remote_admin=true" in said

from onelog.wire.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, Command


def test_flags_say_what_a_command_is() -> None:
    request = Command(105)
    assert not request.is_response
    assert not request.is_oneway
    assert Command(0, flag=FLAG_RESPONSE).is_response
    assert Command(15, flag=FLAG_ONEWAY).is_oneway


def test_each_command_has_fields_of_its_own() -> None:
    first, second = Command(1), Command(1)
    first.ext["topic"] = "orders"
    assert second.ext == {}

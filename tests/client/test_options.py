"""Options: where the name server comes from, what is refused, and by which words."""

import ssl
from datetime import timedelta

import pytest

from onelog.client.connection.address import Address
from onelog.client.credentials import Credentials
from onelog.client.options import (
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    check_names,
    client_settings,
    milliseconds,
)
from onelog.errors import ConfigError, InvalidAddressError


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONELOG_NAMESERVER", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def test_nothing_given_means_this_machine_and_three_seconds() -> None:
    settings = client_settings({})
    assert settings.nameservers == (Address("127.0.0.1", 9876),)
    assert settings.timeout_ms == 3_000
    assert (settings.tls, settings.credentials, settings.client_id) == (None, None, None)
    assert settings.namespace == ""


def test_the_argument_wins_over_our_variable_and_that_over_rocketmqs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "rocket:1")
    assert client_settings({}).nameservers == (Address("rocket", 1),)
    monkeypatch.setenv("ONELOG_NAMESERVER", "ours:2;other:3")
    assert client_settings({}).nameservers == (Address("ours", 2), Address("other", 3))
    given: ClientOptions = {"nameserver": "given:4"}
    assert client_settings(given).nameservers == (Address("given", 4),)


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidAddressError, match="'nonsense' is no address"):
        client_settings({"nameserver": "nonsense"})


def test_tls_may_be_a_context_of_ones_own() -> None:
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert client_settings({"tls": own}).tls is own
    assert client_settings({"tls": True}).tls is not None
    assert client_settings({"tls": False}).tls is None


def test_credentials_and_names_pass_through() -> None:
    credentials = Credentials("key", "secret")
    settings = client_settings({"credentials": credentials, "client_id": "me", "namespace": "shop"})
    assert (settings.credentials, settings.client_id, settings.namespace) == (
        credentials,
        "me",
        "shop",
    )


@pytest.mark.parametrize(
    ("given", "ms"), [(1, 1_000), (0.25, 250), (timedelta(minutes=1), 60_000), (0.000_1, 1)]
)
def test_times_are_numbers_of_seconds_or_timedeltas(given: timedelta | float, ms: int) -> None:
    assert milliseconds("timeout", given) == ms


@pytest.mark.parametrize("given", [0, -1.0, timedelta(0), float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused_by_its_name(given: timedelta | float) -> None:
    with pytest.raises(ConfigError, match="timeout must be a positive time"):
        milliseconds("timeout", given)


@pytest.mark.parametrize("given", ["3", True, None])
def test_a_time_of_another_type_is_refused_by_its_name(given: object) -> None:
    with pytest.raises(TypeError, match="timeout must be a timedelta or a number of seconds"):
        milliseconds("timeout", given)  # type: ignore[arg-type]


def test_an_unknown_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match=r"Producer\(\) has no option 'retry'; did you mean"):
        check_names("Producer", {"retry": 1}, ProducerOptions)
    with pytest.raises(TypeError, match=r"has no option 'xyzzy'$"):
        check_names("Producer", {"xyzzy": 1}, ProducerOptions)


def test_options_of_all_clients_are_options_of_each() -> None:
    for kind in (ProducerOptions, ConsumerOptions):
        check_names("Any", dict.fromkeys(ClientOptions.__annotations__, 1), kind)
    with pytest.raises(TypeError, match="no option 'orderly'"):
        check_names("Producer", {"orderly": True}, ProducerOptions)


def test_an_option_may_be_left_out_but_not_be_none() -> None:
    with pytest.raises(TypeError, match="'timeout' may be left out"):
        check_names("Producer", {"timeout": None}, ProducerOptions)

"""What the commands share that send and consume."""

import time
from pathlib import Path
from typing import Any

import msgspec

from onelog.commands.clients import ClientSession, Pace
from onelog.commands.link import LINK, client_options
from onelog.net.tls import write_self_signed

GIVEN: dict[str, Any] = {
    **{name: default for name, (_, default) in LINK.items()},
    "nameserver": "127.0.0.1:1",
    "timeout": 2.0,
    "json": True,
    "utc": False,
    "namespace": None,
}


def test_options_of_the_command_line_are_options_of_clients() -> None:
    assert client_options(GIVEN) == {"nameserver": "127.0.0.1:1", "timeout": 2.0}
    more = client_options({**GIVEN, "access_key": "a", "secret_key": "s", "namespace": "shop"})
    assert more["namespace"] == "shop"
    assert (more["credentials"].access_key, more["credentials"].secret_key) == ("a", "s")


def test_what_another_process_is_told_means_the_same(tmp_path: Path) -> None:
    ca_path, _ = write_self_signed(tmp_path)
    session = ClientSession({**GIVEN, "tls_ca": ca_path})
    assert session.as_json
    assert msgspec.json.decode(msgspec.json.encode(session.given))["tls_ca"] == str(ca_path)
    assert client_options(session.given).keys() == session.options.keys()
    assert "tls" in session.options


def test_a_pace_is_kept_and_pauses_are_not_made_up_for() -> None:
    pace = Pace(100)
    began = time.monotonic()
    for _ in range(6):
        pace.wait()
    assert time.monotonic() - began >= 0.05
    time.sleep(0.2)
    began = time.monotonic()
    for _ in range(6):
        pace.wait()
    assert time.monotonic() - began >= 0.04


def test_no_pace_waits_for_nothing() -> None:
    pace = Pace(None)
    began = time.process_time()
    for _ in range(1000):
        pace.wait()
    assert time.process_time() - began < 0.5

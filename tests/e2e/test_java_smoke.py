"""A little of everything with the official Java clients, in seconds, on every test run."""

from pathlib import Path

import pytest

from tests.e2e.java_clients import CLIENT_VERSIONS, run_scenario
from tests.e2e.java_toolchain import JavaMissingError
from tests.e2e.onelog_peer import OnelogPeer


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_official_clients_send_and_receive_in_every_way(tmp_path: Path, version: str) -> None:
    with OnelogPeer(tmp_path / "server") as server:
        try:
            done = run_scenario(tmp_path, version, "smoke", server.nameservers, topic="smoke")[-1]
        except JavaMissingError as missing:
            pytest.skip(str(missing))
    ways = ("concurrent", "orderly", "broadcasting", "stored", "lite_pull")
    assert {way: done[way] for way in ways} == dict.fromkeys(ways, 50)
    assert done["tag"] == done["sql"] == 25

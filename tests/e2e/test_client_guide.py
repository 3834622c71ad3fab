"""The programs of docs/client.md against the real RocketMQ (and OneLog in a process of its own)."""

from pathlib import Path

import pytest

from tests.docs.markdown import Snippet
from tests.docs.test_client_guide import PROGRAMS, run
from tests.e2e.conftest import Server
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = pytest.mark.e2e_java


@pytest.mark.parametrize("snippet", PROGRAMS, ids=lambda each: each.heading)
def test_a_program_prints_what_the_page_says(
    snippet: Snippet, server: Server, tmp_path: Path
) -> None:
    if isinstance(server, RocketmqPeer) and "recall(" in snippet.code:
        pytest.skip("RocketMQ recalls messages only with recallMessageEnable=true")
    ended = run(snippet.code, tmp_path, server.nameservers)
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert ended.stdout == snippet.printed

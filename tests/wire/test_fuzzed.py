"""Whatever bytes come, a codec raises an error of ours or none, soon: tried by atheris in soak.

All codecs together have an hour; ONELOG's tests take it from FUZZ_SECONDS.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import log_tail, spawn, stop
from tests.wire.fuzzed import codecs, tried

SECONDS = float(os.environ.get("FUZZ_SECONDS", "3600"))
START_SECONDS_MAX = 120
ODD = (
    b"",
    b"\0",
    b"\xff" * 64,
    bytes(range(256)),
    b"\0\0\0\x10" + bytes(16),
    b"{" * 5_000,
    b"F" * 10_000,
    b"\x80" * 300,
)
NAMES = sorted(codecs())


@pytest.mark.parametrize("name", NAMES)
def test_bytes_that_are_nothing_are_refused_or_wait(name: str) -> None:
    once = tried(codecs()[name])
    for data in ODD:
        once(data)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("name", NAMES)
def test_no_bytes_break_a_codec_or_take_it_long(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed")
    seconds = max(1, round(SECONDS / len(NAMES)))
    corpus, log = tmp_path / "corpus", tmp_path / "atheris.log"
    corpus.mkdir()
    for number, data in enumerate(samples(name)):
        (corpus / str(number)).write_bytes(data)
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-m", "tests.wire.fuzzed", name, str(seconds), str(corpus)]
    child = spawn(argv, log, {"PYTHONPATH": str(root)}, cwd=tmp_path)
    try:
        status = child.wait(seconds + START_SECONDS_MAX)
    finally:
        stop(child)
    assert status == 0, log_tail(log, 60)
    runs = re.search(r"number_of_executed_units: (\d+)", log.read_text(errors="replace"))
    assert runs is not None, log_tail(log)
    print(f"{name}: {runs[1]} inputs in {seconds} s")
    assert int(runs[1]) > 100


def samples(name: str) -> list[bytes]:
    """Something to begin with: what clients of that port say."""
    from tests.e2e.mutated_bytes import words

    if name in ("kafka", "amqp", "stomp", "mqtt", "grpc"):
        return list(words(name).frames)
    if name == "replication":
        return [bytes((kind,)) + each for kind in range(4) for each in words(name).frames]
    if name == "mqtt-packets":
        return [each[:1] + each[2:] for each in words("mqtt").frames]
    if name == "amqp-methods":
        return [each[7:-1] for each in words("amqp").frames]
    return list(ODD)

"""Who decides for a stream, in its checkpoint."""

from pathlib import Path

import pytest

from onelog.spark.write.deciders import NAME, DeciderFile


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "check point"
    folder.mkdir()
    (folder / "metadata").write_text('{"id":"5f"}')
    return folder


def test_what_was_written_is_read_by_the_same_query_only(checkpoint: Path) -> None:
    first = DeciderFile(str(checkpoint), "spark-5f")
    assert first.read() is None
    for decider in ("broker-a", "broker-b"):
        first.write(decider)
        assert DeciderFile(str(checkpoint), "spark-5f").read() == decider
        assert DeciderFile(checkpoint.as_uri(), "spark-5f").read() == decider
    other = DeciderFile(str(checkpoint), "spark-60")
    other.write("broker-c")
    assert other.read() is None
    assert first.read() == "broker-b"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"query": "spark-60", "decider": "x"}'])
def test_a_file_that_says_nothing_is_as_good_as_none(checkpoint: Path, content: str) -> None:
    (checkpoint / NAME).write_text(content)
    assert DeciderFile(str(checkpoint), "spark-5f").read() is None


@pytest.mark.parametrize("place", [None, "hdfs://host/x", "s3a://bucket/x", "/nowhere/at-all"])
def test_a_checkpoint_that_is_elsewhere_is_not_touched(place: str | None) -> None:
    elsewhere = DeciderFile(place, "spark-5f")
    elsewhere.write("broker-a")
    assert elsewhere.read() is None


def test_a_checkpoint_that_cannot_be_written_is_only_complained_of(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (checkpoint / f".{NAME}.tmp").mkdir()
    DeciderFile(str(checkpoint), "spark-5f").write("broker-a")
    assert "not in its checkpoint" in caplog.text

"""The messages are those of the files that they were made from, and so are the numbers."""

import subprocess
import sys
from pathlib import Path

import pytest

from onelog.wire import grpc
from onelog.wire.grpc import codes, messages

FOLDER = Path(grpc.__file__).parent


def test_the_compiled_messages_are_those_of_the_files(tmp_path: Path) -> None:
    made = tmp_path / "made.binpb"
    files = sorted((FOLDER / "protos").rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER / 'protos'}"]
    subprocess.run(
        [*command, f"--descriptor_set_out={made}", *map(str, files)], check=True, timeout=60
    )
    assert made.read_bytes() == (FOLDER / "rocketmq.binpb").read_bytes()


@pytest.mark.parametrize(
    "enum",
    [
        each
        for each in vars(codes).values()
        if isinstance(each, type) and each.__module__ == codes.__name__
    ],
)
def test_numbers_are_those_of_the_protocol(enum: type[codes.Code]) -> None:
    theirs = messages.numbers(enum.__name__)
    assert {each.name: each.value for each in enum}.items() <= theirs.items()


def test_what_is_no_message_is_not_there() -> None:
    with pytest.raises(AttributeError):
        _ = messages.Nothing

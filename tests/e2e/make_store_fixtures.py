"""Makes the stores under `tests/fixtures/rocketmq-store-*`, with RocketMQ's own code.

    python -m tests.e2e.make_store_fixtures

Each fixture is a folder `store`, as RocketMQ left it after a clean stop, and `expected.jsonl`, what
RocketMQ itself read in it.
"""

import json
import shutil
import tempfile
from pathlib import Path

from onelog.config import StoreConfig
from tests.e2e.java_toolchain import build

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
VERSIONS = {"4.9.8": "rocketmq4", "5.5.0": "rocketmq5"}
# Files are preallocated at full size, so a small fixture needs small files.
CONFIG = StoreConfig(
    segment_bytes=20 * 1024, queue_file_entries=8, index_slots=32, index_entries=100
)
MESSAGES = 120


def fixture_folder(version: str) -> Path:
    """Where the fixture of a RocketMQ version is."""
    return FIXTURES / f"rocketmq-store-{version}"


def make(version: str, home: Path) -> None:
    """Write one fixture anew."""
    profile = VERSIONS[version]
    folder = fixture_folder(version)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program = build("store", profile, "onelog.store.Main", home)
    lines = program.run(
        "write",
        folder / "store",
        "--seed",
        7,
        "--count",
        MESSAGES,
        "--segment-bytes",
        CONFIG.segment_bytes,
        "--queue-file-entries",
        CONFIG.queue_file_entries,
        "--index-slots",
        CONFIG.index_slots,
        "--index-entries",
        CONFIG.index_entries,
        "--light-queues",
        "true",
        "--long-topic",
        str(profile == "rocketmq5").lower(),
    )
    # RocketMQ 5 keeps a database for features that are off here; it holds no messages.
    shutil.rmtree(folder / "store" / "rocksdbstore", ignore_errors=True)
    with open(folder / "expected.jsonl", "w", encoding="utf-8") as expected:
        for line in lines:
            if line["kind"] != "appended":
                print(json.dumps(line, ensure_ascii=False, separators=(",", ":")), file=expected)
    (folder / "README.md").write_text(_README.format(version=version), encoding="utf-8")


_README = """\
# A store written by RocketMQ {version}

`store/` was written by RocketMQ {version}'s own `DefaultMessageStore` and stopped cleanly; its
files are smaller than usual. `expected.jsonl` is what RocketMQ read in it: a line for each record
of the log, each queue, each queue entry and each key.

Made with `python -m tests.e2e.make_store_fixtures`, which needs a JDK and Maven. The program that
writes and reads the store is in `tests/e2e/java/store`; `tests/e2e/test_rocketmq_fixture.py` reads
the store with OneLog.
"""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for each in VERSIONS:
            make(each, Path(scratch))
            size = sum(file.stat().st_size for file in fixture_folder(each).rglob("*"))
            print(f"{fixture_folder(each).name}: {size // 1024} KiB")

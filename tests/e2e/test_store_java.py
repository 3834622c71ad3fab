"""One store, two programs: RocketMQ's own DefaultMessageStore and OneLog take turns on it.

Whatever one of them wrote, the other must read the same, record by record, queue entry by queue
entry and key by key, and must go on where the first one stopped.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onelog.clock import ManualClock
from onelog.errors import MessageTooLargeError, StoreLockedError
from onelog.message import NewMessage
from onelog.store.message_store import MessageStore
from tests.e2e.java_toolchain import JavaFailedError, JavaMissingError, JavaProgram, build
from tests.e2e.store_corpus import CONFIG, append
from tests.e2e.store_lines import Line, assert_goes_on, by_identity, differences, store_lines

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = (
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
)


class RocketMq:
    """The Java program of one release line, on the files of one test."""

    def __init__(self, program: JavaProgram, line: str) -> None:
        self.program = program
        # RocketMQ 4 cannot store topics over 127 bytes, and cuts a log in which it finds one.
        self.long_topic = line == "rocketmq5"

    def run(self, command: str, folder: Path, *options: str | int) -> list[Line]:
        long_topic = ("--long-topic", str(self.long_topic).lower())
        return self.program.run(command, folder, *LAYOUT, *long_topic, *options)


@pytest.fixture(scope="module", params=["rocketmq4", "rocketmq5"])
def rocketmq(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RocketMq:
    home = tmp_path_factory.mktemp("home")
    try:
        program = build("store", request.param, "onelog.store.Main", home)
    except JavaMissingError as missing:
        pytest.skip(str(missing))
    return RocketMq(program, request.param)


def lines_of(folder: Path) -> list[Line]:
    store = MessageStore.open(folder, CONFIG)
    try:
        return store_lines(store)
    finally:
        store.close()


def write_with_onelog(folder: Path, seed: int, count: int, *, long_topic: bool) -> list[Line]:
    store = MessageStore.open(folder, CONFIG)
    try:
        append(store, seed, count, long_topic=long_topic)
        return store_lines(store)
    finally:
        store.close()


def test_onelog_reads_everything_that_rocketmq_wrote(rocketmq: RocketMq, tmp_path: Path) -> None:
    written = rocketmq.run("write", tmp_path / "store", "--count", 400)
    assert len(by_identity(written, "record")) == 400
    assert len([*(tmp_path / "store/commitlog").iterdir()]) > 2
    assert len([*(tmp_path / "store/index").iterdir()]) > 2
    assert differences(written, lines_of(tmp_path / "store")) == []


def test_rocketmq_reads_everything_that_onelog_wrote(rocketmq: RocketMq, tmp_path: Path) -> None:
    written = write_with_onelog(tmp_path / "store", 1, 400, long_topic=rocketmq.long_topic)
    assert len(by_identity(written, "record")) == 400
    assert len([*(tmp_path / "store/commitlog").iterdir()]) > 2
    assert differences(written, rocketmq.run("read", tmp_path / "store")) == []


def test_rocketmq_and_onelog_take_turns_on_one_store(rocketmq: RocketMq, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    first = write_with_onelog(folder, 1, 200, long_topic=rocketmq.long_topic)

    second = rocketmq.run("append", folder, "--seed", 2, "--count", 150)
    assert_goes_on(first, second)
    assert differences(second, lines_of(folder)) == []

    third = write_with_onelog(folder, 3, 150, long_topic=rocketmq.long_topic)
    assert_goes_on(second, third)
    fourth = rocketmq.run("append", folder, "--seed", 4, "--count", 100)
    assert_goes_on(third, fourth)
    assert differences(fourth, lines_of(folder)) == []


def test_onelog_opens_a_store_after_rocketmq_crashed(rocketmq: RocketMq, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    written = rocketmq.run("write", folder, "--count", 300, "--crash", "true")
    assert (folder / "abort").exists()
    store = MessageStore.open(folder, CONFIG)
    assert not store.recovery.clean
    assert differences(written, store_lines(store)) == []
    append(store, 2, 100, long_topic=rocketmq.long_topic)
    after = store_lines(store)
    store.close()
    assert_goes_on(written, after)
    assert differences(after, rocketmq.run("read", folder)) == []


def test_rocketmq_opens_a_store_after_onelog_crashed(rocketmq: RocketMq, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    write_with_onelog(folder, 3, 100, long_topic=rocketmq.long_topic)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.e2e.store_corpus", folder, "1", "300"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    written = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(by_identity(written, "record")) == 400
    assert (folder / "abort").exists()
    # By default RocketMQ forgets keys after a crash, also its own; told to, it indexes anew.
    recovered = rocketmq.run("append", folder, "--seed", 2, "--count", 50, "--index-safe", "true")
    assert_goes_on(written, recovered)
    assert differences(recovered, lines_of(folder)) == []


def test_rocketmq_goes_on_behind_queue_files_that_are_exactly_full(
    rocketmq: RocketMq, tmp_path: Path
) -> None:
    # RocketMQ takes the first entry of a queue's last file for written, whatever is in it: there
    # must be no file that waits for its first entry.
    folder = tmp_path / "store"
    entries = CONFIG.queue_file_entries
    with MessageStore.open(folder, CONFIG) as store:
        store.append([NewMessage("Orders", 0, b"x")] * entries)
        store.append([NewMessage("Orders", 1, b"x")] * 2 * entries)
        store.append([NewMessage("Clicks", 1, b"x")] * entries)
        too_large = NewMessage("Orders", 3, bytes(CONFIG.segment_bytes))
        for topic, queue_id in [("Orders", 0), ("Clicks", 1), ("Never", 0)]:
            with pytest.raises(MessageTooLargeError):
                store.append([NewMessage(topic, queue_id, b"x"), too_large])
        before = store_lines(store)
    after = rocketmq.run("append", folder, "--count", 60)
    assert by_identity(before, "entry").items() <= by_identity(after, "entry").items()
    queues = by_identity(after, "queue")
    assert queues["queue", "Orders", 0]["maxOffset"] > entries
    assert queues["queue", "Clicks", 1]["maxOffset"] > entries
    offsets = {
        (line["topic"], line["queueId"], line["queueOffset"])
        for line in after
        if line["kind"] == "appended"
    }
    assert {("Orders", 0, entries), ("Orders", 1, 2 * entries), ("Clicks", 1, entries)} <= offsets
    assert ("Orders", 3, 0) in offsets
    assert differences(after, lines_of(folder)) == []


def test_rocketmq_opens_a_store_whose_oldest_messages_are_gone(
    rocketmq: RocketMq, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    clock = ManualClock()
    with MessageStore.open(folder, replace(CONFIG, retention_ms=1000), clock) as store:
        append(store, 1, 300, long_topic=rocketmq.long_topic)
        clock.advance(10_000)
        append(store, 2, 300, long_topic=rocketmq.long_topic)
        store.retention.run({}, manual=True)
        assert store.log_min > 0
        kept = store_lines(store)
    assert len([q for q in by_identity(kept, "queue").values() if q["minOffset"] > 0]) > 3
    assert differences(kept, rocketmq.run("read", folder)) == []
    after = rocketmq.run("append", folder, "--seed", 3, "--count", 100)
    assert_goes_on(kept, after)
    assert differences(after, lines_of(folder)) == []


@pytest.mark.parametrize("rocketmq", ["rocketmq5"], indirect=True)
def test_checksums_over_whole_records_are_the_same(rocketmq: RocketMq, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    config = replace(CONFIG, record_crc=True)
    checked = ("--record-crc", "true")
    written = rocketmq.run("write", folder, "--count", 100, *checked)
    with MessageStore.open(folder, config) as store:
        assert differences(written, store_lines(store)) == []
        append(store, 2, 100, long_topic=True)
        appended = store_lines(store)
    assert all("__CRC32#" in line["properties"] for line in appended if line["kind"] == "record")
    # RocketMQ checks checksums when it recovers; as if after a crash it does so from the beginning.
    (folder / "abort").touch()
    (folder / "checkpoint").unlink()
    assert differences(appended, rocketmq.run("read", folder, *checked)) == []


def test_rocketmq_reads_records_with_checksums_of_their_own_unasked(
    rocketmq: RocketMq, tmp_path: Path
) -> None:
    # 4.9 does not know of them; to it they are a property like any other.
    folder = tmp_path / "store"
    with MessageStore.open(folder, replace(CONFIG, record_crc=True)) as store:
        append(store, 1, 200, long_topic=rocketmq.long_topic)
        written = store_lines(store)
    assert differences(written, rocketmq.run("read", folder)) == []
    after = rocketmq.run("append", folder, "--seed", 2, "--count", 50)
    assert_goes_on(written, after)
    assert differences(after, lines_of(folder)) == []


def test_rocketmq_steps_over_the_record_of_a_topic_s_deletion(
    rocketmq: RocketMq, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    with MessageStore.open(folder, CONFIG) as store:
        append(store, 1, 200, long_topic=rocketmq.long_topic)
        assert "Orders" in store.queues()
        store.delete_topic("Orders")
        append(store, 3, 100, long_topic=rocketmq.long_topic)
        written = store_lines(store)
    read = rocketmq.run("read", folder)
    assert differences(written, read) == []
    after = rocketmq.run("append", folder, "--seed", 2, "--count", 50)
    assert_goes_on(written, after)
    assert differences(after, lines_of(folder)) == []
    # And OneLog, which makes the queues anew, still knows that the old messages are gone.
    shutil.rmtree(folder / "consumequeue")
    assert differences(after, lines_of(folder)) == []


def test_rocketmq_counts_each_message_of_an_inner_batch(rocketmq: RocketMq, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", CONFIG) as store:
        batch, single = store.append(
            [
                NewMessage("Orders", 0, b"five in one", inner_count=5),
                NewMessage("Orders", 0, b"alone"),
            ]
        )
        assert (batch.queue_offset, single.queue_offset) == (0, 5)
    lines = rocketmq.run("append", tmp_path / "store", "--count", 100)
    entries = by_identity(lines, "entry")
    offsets = [entries["entry", "Orders", 0, at]["physicalOffset"] for at in range(6)]
    assert offsets == [batch.log_offset] * 5 + [single.log_offset]
    following = by_identity(lines, "record")[
        "record", entries["entry", "Orders", 0, 6]["physicalOffset"]
    ]
    assert following["queueOffset"] == 6


def test_rocketmq_indexes_anew_all_keys_that_it_drops_after_a_crash(
    rocketmq: RocketMq, tmp_path: Path
) -> None:
    # It drops the index file that was being written, and goes by the checkpoint to find where in
    # the log that file began: far before what was written since the checkpoint.
    config = replace(CONFIG, index_entries=2000)
    with MessageStore.open(tmp_path / "running", config) as store:
        append(store, 1, 300, long_topic=rocketmq.long_topic)
        store.flush()
        append(store, 2, 50, long_topic=rocketmq.long_topic)
        written = store_lines(store)
        crashed = shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    options = ("--index-entries", config.index_entries, "--index-safe", "true")
    assert differences(written, rocketmq.run("read", crashed, *options)) == []


def test_onelog_refuses_a_store_that_rocketmq_has_open(rocketmq: RocketMq, tmp_path: Path) -> None:
    command = rocketmq.program.command("hold", tmp_path / "store", *LAYOUT)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as java:
        assert java.stdin is not None
        assert java.stdout is not None
        try:
            assert json.loads(java.stdout.readline())["kind"] == "open"
            with pytest.raises(StoreLockedError, match="in use"):
                MessageStore.open(tmp_path / "store", CONFIG)
        finally:
            java.stdin.close()
            java.wait(60)
    MessageStore.open(tmp_path / "store", CONFIG).close()


def test_rocketmq_refuses_a_store_that_onelog_has_open(rocketmq: RocketMq, tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path / "store", CONFIG)
    append(store, 1, 10, long_topic=False)
    with pytest.raises(JavaFailedError, match="Lock failed"):
        rocketmq.run("read", tmp_path / "store")
    store.close()

"""`onelog store`: what people and programs see of a store."""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from onelog import __version__
from onelog.cli import app, main
from onelog.config import StoreConfig
from onelog.errors import (
    NotAStoreError,
    OffsetOutOfRangeError,
    StoreLockedError,
    TopicNotFoundError,
)
from onelog.message import NewMessage, SysFlag, encode_host, encode_properties
from onelog.record.entries import ENTRY
from onelog.store.message_store import MessageStore
from tests.core.paying import Payer
from tests.core.queues.yard import Yard, numbered
from tests.core.world import World
from tests.e2e.make_store_fixtures import VERSIONS, fixture_folder
from tests.store.samples import SAMPLE, flip, overwrite, write_sample

FIRST = f"{0:020d}"
UNIQUE = "0A0B0C0D00002A9F0000000000000001"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["store", *map(str, arguments)])


def document(*arguments: object) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def documents(*arguments: object) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sample(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """A store with a few messages that are easy to recognise."""
    properties = {"TAGS": "paid", "KEYS": "order-1 cart-9", "UNIQ_KEY": UNIQUE, "note": "hi"}
    with MessageStore.open(tmp_path / "letters", SAMPLE) as store:
        store.append(
            [
                NewMessage(
                    "Orders",
                    0,
                    "Grüße".encode(),
                    encode_properties(properties),
                    flag=7,
                    born_ms=1_700_000_000_123,
                    born_host=encode_host("192.0.2.5", 4711),
                    store_host=encode_host("2001:db8::1", 10911),
                    reconsume_times=2,
                ),
                NewMessage("Orders", 0, b"\xff\x00" * 300),
                NewMessage("Orders", 0, b"in one", inner_count=3),
                NewMessage("Orders", 0, b"y" * 500, sys_flag=int(SysFlag.COMMITTED)),
                NewMessage("Orders", 0, b"shared", extra_queues=("fan",)),
                NewMessage("Orders", 0, b"\x1b[31mred", encode_properties({"trap": "\x1b[2J"})),
            ]
        )
    return tmp_path / "letters"


# -- inspect -----------------------------------------------------------------------------------


def test_inspect_tells_programs_the_facts(folder: Path) -> None:
    facts = document("inspect", folder)
    assert facts["folder"] == str(folder)
    assert facts["state"] == "stopped"
    assert facts["in_use_by"] is None
    assert facts["abort_mark"] is False
    assert facts["written_by"] == f"onelog {__version__}"
    assert facts["log_start"] == 0
    assert facts["log_end"] == facts["checkpoint"]["safe_offset"] > SAMPLE.segment_bytes
    assert facts["checkpoint"]["written_by_onelog"] is True
    assert [s["start"] for s in facts["segments"]] == [
        number * SAMPLE.segment_bytes for number in range(len(facts["segments"]))
    ]
    times = [s["first_store_ms"] for s in facts["segments"]]
    assert times == sorted(times)
    assert [s["last_store_ms_at_most"] for s in facts["segments"]][:-1] == times[1:]
    queue = next(q for q in facts["queues"] if (q["topic"], q["queue_id"]) == ("Orders", 0))
    assert queue["messages"] == queue["max_offset"] - queue["min_offset"] > 5
    assert queue["last_store_ms"] >= times[0]
    assert len(facts["index_files"]) == len([*(folder / "index").iterdir()])
    assert facts["index_files"][0]["entries"] == SAMPLE.index_entries - 1
    assert facts["space"]["log_bytes"] > 0
    assert facts["space"]["disk_free_bytes"] > 0


def test_inspect_shows_people_the_same(folder: Path) -> None:
    result = invoke("inspect", folder)
    assert result.exit_code == 0
    for part in ("stopped cleanly", "Segments", "Queues", "Index files", "Orders", "safe offset"):
        assert part in result.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_inspect_and_verify_a_store_of_rocketmq(version: str) -> None:
    store = fixture_folder(version) / "store"
    facts = document("inspect", store)
    assert facts["written_by"] == "RocketMQ"
    assert facts["checkpoint"]["written_by_onelog"] is False
    assert document("verify", store)["clean"] is True


def test_inspect_says_who_has_the_store_open(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SAMPLE) as store:
        store.append([NewMessage("Orders", 0, b"x")])
        facts = document("inspect", tmp_path)
        assert (facts["state"], facts["in_use_by"]) == ("running", os.getpid())
        assert f"in use by process {os.getpid()}" in invoke("inspect", tmp_path).stdout


def test_inspect_tells_of_damage_that_recovery_found(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "s", SAMPLE) as store:
        places = store.append([NewMessage("Orders", 0, b"x%d" % n) for n in range(3)])
    assert document("inspect", tmp_path / "s")["damage"] == []
    flip(tmp_path / "s" / "commitlog" / f"{0:020d}", places[1].log_offset + 88)
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    with MessageStore.open(tmp_path / "s", SAMPLE) as store:
        assert store.recovery.entries_missing == 1
    (found,) = document("inspect", tmp_path / "s")["damage"]
    assert (found["start"], found["end"]) == (places[1].log_offset, places[2].log_offset)
    shown = invoke("inspect", tmp_path / "s").stdout
    assert f"from {found['start']} to {found['end']}: the body's CRC does not match" in shown


def test_inspect_tells_a_crash(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SAMPLE) as store:
        store.append([NewMessage("Orders", 0, b"x")])
        shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    assert document("inspect", tmp_path / "crashed")["state"] == "crashed"
    assert "not stopped cleanly" in invoke("inspect", tmp_path / "crashed").stdout


def test_inspect_of_an_empty_store(tmp_path: Path) -> None:
    MessageStore.open(tmp_path, SAMPLE).close()
    facts = document("inspect", tmp_path)
    assert facts["segments"] == facts["queues"] == facts["index_files"] == []
    assert invoke("inspect", tmp_path).exit_code == 0


def test_inspect_takes_the_geometry_of_the_index(folder: Path) -> None:
    options = ("--index-slots", SAMPLE.index_slots, "--index-entries", SAMPLE.index_entries)
    assert len(document("inspect", folder, *options)["index_files"]) > 1


# -- verify ------------------------------------------------------------------------------------


def test_verify_of_a_clean_store(folder: Path) -> None:
    result = invoke("verify", folder)
    assert result.exit_code == 0
    assert "all right" in result.stdout
    found = document("verify", folder)
    assert found["clean"] is True
    assert found["problems"] == []
    assert found["records"] > 100


def test_verify_of_a_damaged_store_says_where_and_exits_with_1(folder: Path) -> None:
    flip(folder / "consumequeue" / "Orders" / "0" / FIRST, 2 * ENTRY.size + 7)
    result = invoke("verify", folder)
    assert result.exit_code == 1
    assert f"consumequeue/Orders/0/{FIRST} entry 2: points at log offset" in result.stdout
    assert "1 problems" in result.stdout
    as_json = invoke("verify", folder, "--json")
    assert as_json.exit_code == 1
    found = json.loads(as_json.stdout)
    assert found["clean"] is False
    assert found["problems_total"] == 1
    assert found["problems"][0]["where"] == f"consumequeue/Orders/0/{FIRST} entry 2"


def test_verify_takes_the_delay_levels(folder: Path) -> None:
    assert invoke("verify", folder, "--delay-levels", "1s").exit_code == 1
    levels = StoreConfig().delay_levels
    assert invoke("verify", folder, "--delay-levels", levels).exit_code == 0


def test_a_bar_shows_the_progress_on_a_terminal_only(folder: Path) -> None:
    command = [sys.executable, "-m", "onelog", "store", "verify", str(folder)]
    screen, terminal = os.openpty()
    with subprocess.Popen(command, stderr=terminal, stdout=subprocess.DEVNULL) as child:
        os.close(terminal)
        seen = b""
        try:
            while part := os.read(screen, 4096):
                seen += part
        except OSError:
            pass  # The other side of the terminal was closed.
        child.wait(60)
    os.close(screen)
    assert b"verifying" in seen
    piped = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert piped.stderr == b""


# -- dump --------------------------------------------------------------------------------------


def test_dump_as_json_has_all_of_a_message(letters: Path) -> None:
    first = documents("dump", letters, "--topic", "Orders", "--count", 1)[0]
    assert first.pop("store_ms") > 1_700_000_000_000
    assert first.pop("size") > 100
    assert first == {
        "queue_offset": 0,
        "log_offset": 0,
        "message_id": "20010DB800000000000000000000000100002A9F" + 16 * "0",
        "unique_key": UNIQUE,
        "topic": "Orders",
        "queue_id": 0,
        "record_queue_offset": 0,
        "inner_batch": None,
        "tags": "paid",
        "keys": ["order-1", "cart-9"],
        "flag": 7,
        "sys_flag": 32,
        "sys_flag_means": [],
        "born_ms": 1_700_000_000_123,
        "born_host": "192.0.2.5:4711",
        "store_host": "[2001:db8::1]:10911",
        "reconsume_times": 2,
        "prepared_offset": 0,
        "properties": {
            "TAGS": "paid",
            "KEYS": "order-1 cart-9",
            "UNIQ_KEY": UNIQUE,
            "note": "hi",
        },
        "body_bytes": 7,
        "body": "Grüße",
    }


def test_dump_shows_committed_messages_unless_all_are_wanted(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.topic("orders", 1)
    payer, other = Payer(world, "payer"), Payer(world, "other")
    for value, commit in ((b"kept", True), (b"gone", False)):
        payer.send("orders", 0, value)
        payer.end(commit)
    other.send("orders", 0, b"open")
    world.send("orders", body=b"plain")
    wanted = ["dump", world.folder, "--topic", "orders", "--body", "full"]
    assert [each["queue_offset"] for each in documents(*wanted)] == [0, 5]
    assert [each["queue_offset"] for each in documents(*wanted, "--all")] == list(range(6))
    world.close()


def test_dump_shows_bytes_batches_and_flags(letters: Path) -> None:
    found = documents("dump", letters, "--topic", "Orders", "--from", 1, "--body", "full")
    assert [m["queue_offset"] for m in found] == [1, 2, 5, 6, 7]
    assert base64.b64decode(found[0]["body_base64"]) == b"\xff\x00" * 300
    assert found[1]["inner_batch"] == 3
    assert found[1]["sys_flag_means"] == ["inner batch"]
    assert found[2]["sys_flag_means"] == ["committed"]
    assert found[2]["body"] == "y" * 500


def test_dump_from_the_middle_of_a_batch_shows_the_batch(letters: Path) -> None:
    found = documents("dump", letters, "--topic", "Orders", "--from", 3, "--count", 1)
    assert [(m["queue_offset"], m["record_queue_offset"]) for m in found] == [(3, 2)]
    assert found[0]["inner_batch"] == 3
    text = invoke("dump", letters, "--topic", "Orders", "--from", 3, "--count", 3).stdout
    assert "offsets 3..4" in text
    assert "3 messages in one record, from 2 on" in text


def test_dump_of_an_extra_queue_names_the_record_it_shares(letters: Path) -> None:
    found = documents("dump", letters, "--topic", "fan")
    assert [(m["queue_offset"], m["record_queue_offset"]) for m in found] == [(0, 6)]
    assert found[0]["topic"] == "Orders"
    assert "Orders queue 0 offset 6" in invoke("dump", letters, "--topic", "fan").stdout


@pytest.mark.parametrize(
    ("how", "shown"), [("none", None), ("short", "y" * 120), ("full", "y" * 500)]
)
def test_dump_shows_as_much_of_a_body_as_asked_for(
    letters: Path, how: str, shown: str | None
) -> None:
    arguments = ("dump", letters, "--topic", "Orders", "--from", 5, "--count", 1, "--body", how)
    found = documents(*arguments)[0]
    assert found.get("body") == shown
    assert found.get("body_truncated", False) == (how == "short")
    text = invoke(*arguments).stdout
    assert ("body (500)" in text) == (how != "none")
    assert (shown or "") in text


def test_dump_does_not_let_a_message_talk_to_the_terminal(letters: Path) -> None:
    text = invoke("dump", letters, "--topic", "Orders", "--from", 7).stdout
    assert "\x1b" not in text
    assert r"\x1b[2J" in text
    assert b"\x1b[31m".hex(" ") in text


def test_dump_goes_on_after_a_broken_message(letters: Path) -> None:
    content = (letters / "commitlog" / FIRST).read_bytes()
    overwrite(letters / "commitlog" / FIRST, content.index(b"\xff\x00\xff"), b"oops")
    found = documents("dump", letters, "--topic", "Orders", "--count", 3)
    assert [m["queue_offset"] for m in found] == [0, 1, 2]
    assert "the body's CRC does not match" in found[1]["error"]
    assert "body" in found[2]
    assert "CRC" in invoke("dump", letters, "--topic", "Orders").stdout


def test_dump_counts_from_the_oldest_message(folder: Path) -> None:
    (folder / "commitlog" / FIRST).unlink()
    oldest = document("inspect", folder)["queues"]
    low = next(q for q in oldest if (q["topic"], q["queue_id"]) == ("Orders", 1))["min_offset"]
    assert low > 0
    found = documents("dump", folder, "--topic", "Orders", "--queue", 1, "--count", 2)
    assert found[0]["queue_offset"] == low


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        (("--topic", "Nothing"), TopicNotFoundError, "no topic 'Nothing'.*'Orders'"),
        (("--topic", "Orders", "--queue", "9"), TopicNotFoundError, "no queue 9; queues: 0"),
        (("--topic", "Orders", "--from", "8"), OffsetOutOfRangeError, r"offset 8 .*0\.\.7"),
        (("--topic", "Orders", "--from", "-1"), OffsetOutOfRangeError, "offset -1"),
        (("--topic", "Orders", "--from", str(1 << 70)), OffsetOutOfRangeError, "offset 11805"),
    ],
)
def test_dump_of_what_is_not_there(
    letters: Path, arguments: tuple[str, ...], error: type[Exception], reason: str
) -> None:
    result = invoke("dump", letters, *arguments)
    assert isinstance(result.exception, error)
    with pytest.raises(error, match=reason):
        raise result.exception


# -- how it ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "verify", "dump"])
def test_a_folder_that_is_no_store_is_one_line_and_exit_code_2(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--topic", "t"] if command == "dump" else []
    result = invoke(command, tmp_path, *options)
    assert isinstance(result.exception, NotAStoreError)
    monkeypatch.setattr(
        sys, "argv", ["onelog", "store", command, str(tmp_path / "nowhere"), *options]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"onelog: there is no store in {tmp_path / 'nowhere'}: the folder does not exist\n"
    )


def test_a_foreign_version_is_one_line_and_exit_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "onelog.json").write_text('{"format": 9}')
    monkeypatch.setattr(sys, "argv", ["onelog", "store", "verify", str(folder)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "has store format 9" in told
    assert told.count("\n") == 1


def test_a_whole_process_from_the_command_line(folder: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "onelog", "store", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    good = run("verify", str(folder), "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["clean"] is True
    flip(folder / "consumequeue" / "Orders" / "0" / FIRST, 7)
    bad = run("verify", str(folder))
    assert bad.returncode == 1
    assert "Traceback" not in bad.stderr
    none = run("verify", "/proc/version")
    assert none.returncode == 2
    assert none.stderr.startswith("onelog: there is no store in /proc/version: it is a file")
    wrong = run("dump", str(folder))
    assert wrong.returncode == 2
    assert "--topic" in wrong.stderr


def test_a_reader_that_has_seen_enough_is_not_complained_about(folder: Path) -> None:
    arguments = ["dump", str(folder), "--topic", "Clicks", "--count", "100", "--json"]
    arguments += ["--body", "full"]
    command = [sys.executable, "-m", "onelog", "store", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        complaint = child.stderr.read()
        child.wait(60)
    assert complaint == b""


# -- export-config -------------------------------------------------------------------------------

SETTINGS = (
    "--set",
    "store.segment_bytes=1048576",
    "--set",
    "store.queue_file_entries=1000",
    "--set",
    "store.index_slots=1000",
    "--set",
    "store.index_entries=4000",
)


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A store that a broker has worked on."""
    world = World(tmp_path / "used")
    world.topic("orders", 4)
    world.send("orders", 1)
    world.commit("readers", "orders", 1, 1)
    world.close()
    return world.folder


def test_the_config_of_a_stopped_store_is_exported_for_rocketmq(used: Path) -> None:
    result = invoke("export-config", used, *SETTINGS)
    assert result.exit_code == 0, result.output
    assert "as RocketMQ reads them" in result.stdout
    topics = json.loads((used / "config" / "topics.json").read_text())
    assert topics["topicConfigTable"]["orders"]["writeQueueNums"] == 4
    assert '"orders@readers": {\n   1: 1' in (used / "config" / "consumerOffset.json").read_text()
    groups = json.loads((used / "config" / "subscriptionGroup.json").read_text())
    assert "readers" in groups["subscriptionGroupTable"]


def test_exporting_loses_nothing_of_the_store(used: Path) -> None:
    assert invoke("export-config", used, *SETTINGS).exit_code == 0
    world = World(used)
    assert world.store.recovery.clean
    assert world.bodies("orders", 1) == [b"x"]
    assert world.core.offsets.of("readers", "orders") == {1: 1}
    world.close()


def test_the_config_of_a_store_in_use_is_not_exported(used: Path) -> None:
    world = World(used)
    result = invoke("export-config", used, *SETTINGS)
    assert isinstance(result.exception, StoreLockedError)
    assert not (used / "config" / "topics.json").exists()
    world.close()


def test_there_must_be_a_store_to_export_from(tmp_path: Path) -> None:
    result = invoke("export-config", tmp_path / "nothing")
    assert isinstance(result.exception, NotAStoreError)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("how", ["close", "crash"])
def test_inspect_names_the_queues_that_old_log_is_kept_for(tmp_path: Path, how: str) -> None:
    yard = Yard(tmp_path / "store")
    for name in ("empty", "forgotten", "never-read"):
        yard.queue(name)
        yard.put_all(*numbered(3), key=name)
    yard.drain("empty")
    taker = yard.consume("forgotten", prefetch=2)
    yard.find("forgotten").ack(taker.places[:1])
    yard.record()
    getattr(yard, how)()
    pins = document("inspect", yard.folder)["log_held_by"]
    assert [(pin["vhost"], pin["queue"], pin["messages"]) for pin in pins] == [
        ("/", "forgotten", 2),
        ("/", "never-read", 3),
    ]
    assert "queue forgotten of vhost / keeps the log" in invoke("inspect", yard.folder).stdout
    if how == "crash":
        yard.close()

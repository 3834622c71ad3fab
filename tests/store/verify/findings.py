"""What the tests of verification share: a place to look at, and how a finding reads."""

from pathlib import Path

from onelog.message import Message
from onelog.record.entries import ENTRY
from onelog.store.readonly import open_readonly
from onelog.store.verify import Verification, verify
from tests.store.log_records import scan_log
from tests.store.samples import SAMPLE

FIRST = f"{0:020d}"


def verify_sample(folder: Path) -> Verification:
    """With the index geometry given, so that damage to the index is found and not guessed at."""
    return verify(folder, index_slots=SAMPLE.index_slots, index_entries=SAMPLE.index_entries)


def lines(found: Verification) -> list[str]:
    return [str(problem) for problem in found.problems]


def only_line(found: Verification) -> str:
    assert len(found.problems) == found.problems_total == 1, lines(found)
    return str(found.problems[0])


def a_plain_message(folder: Path, number: int = 5) -> Message:
    """The record of an ordinary message between IPv4 hosts, in the first segment."""
    reader = open_readonly(folder)
    found = [
        message
        for message in scan_log(reader.log, 0)
        if isinstance(message, Message)
        and message.topic in ("Orders", "Clicks")
        and message.sys_flag == 0
        and message.log_offset < SAMPLE.segment_bytes
        and len(message.body) > 10
        and b"INNER" not in message.properties
    ]
    return found[number]


def entry_place(message: Message) -> tuple[str, int]:
    """The queue file that has a message's entry, and where in it."""
    file, slot = divmod(message.queue_offset, SAMPLE.queue_file_entries)
    name = f"{file * SAMPLE.queue_file_entries * ENTRY.size:020d}"
    return f"consumequeue/{message.topic}/{message.queue_id}/{name}", slot * ENTRY.size

"""Which store a node has, and whether that has all that its set thinks it has.

The file `onelog-member.json` of the store's folder, in one line:

    store   random, made with the file      start   how often the store was started
    node    the id of the node that has it  boot    of the machine, at the last start
    sync    whether it flushed then before it answered
    doubt   why it may lack what the set thinks it has; empty if it does not

The registry knows `store` and `start` of each member, and how far that was. So a disk that was
replaced, another node's, and an old copy of the right one are told from a node that was stopped.

Invariant: doubt ends when a master has taken the node into the in-sync set after it had left that,
or the node is master itself, and by nothing else; until then it is on disk.
"""

import logging
from pathlib import Path
from uuid import uuid4

import msgspec

from onelog.errors import StoreError
from onelog.replication.registry import MemberEntry
from onelog.store.segment import write_whole

log = logging.getLogger(__name__)

FILE = "onelog-member.json"
FORMER_FILE = "onelog-boot"
"""Had the id of the boot, and nothing else."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LOST_POWER = "its machine stopped before everything was on disk"


class _Content(msgspec.Struct):
    """What the file has."""

    store: str
    node: int
    start: int = 0
    boot: str = ""
    sync: bool = False
    doubt: str = ""


def boot_id() -> str:
    """Another one for each boot of the machine; where that is not known, for each call."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else uuid4().hex


class Identity:
    """Of the store of one node, from its start on; without a folder it is kept in memory only."""

    def __init__(
        self,
        node: int = 0,
        folder: Path | None = None,
        *,
        clean: bool = True,
        sync: bool = False,
        boot: str = "",
    ) -> None:
        """Read what the store in `folder` has, which was stopped cleanly or not, and count a start.

        `sync`: whether it flushes, from now on, before it answers.
        """
        self._path = None if folder is None else folder / FILE
        self.is_new = False
        """Whether it is not the store that the registry knows, or older than that one was."""
        self.is_outside = False
        """Whether a master has heard from it while it was in no in-sync set."""
        self.confirmed = 0
        """So much of the log was confirmed when the registry heard of it last."""
        self._durable_start = 0
        found = self._read(node)
        if found is None:
            former = folder / FORMER_FILE if folder is not None else None
            known = former.read_text().strip() if former is not None and former.exists() else boot
            found = _Content(uuid4().hex, node, boot=known, sync=sync)
        elif found.node != node:
            doubt = f"it was node {found.node}'s"
            found = _Content(uuid4().hex, node, boot=boot, sync=sync, doubt=doubt)
        if not (clean or found.sync or found.boot == boot) and not found.doubt:
            found.doubt = LOST_POWER
        found.start, found.boot, found.sync = found.start + 1, boot, sync
        self._content = found
        self.is_torn = bool(found.doubt)
        """Whether the end of the log may be torn where no checksum tells."""
        self._save()

    def _read(self, node: int) -> _Content | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Content)
        except (OSError, msgspec.DecodeError) as error:
            log.warning(
                "%s cannot be read (%s): this node counts as a new one, and has to catch up",
                self._path,
                error,
            )
            return _Content(uuid4().hex, node, doubt=f"its {FILE} could not be read")

    def _save(self) -> None:
        if self._path is not None:
            try:
                write_whole(self._path, msgspec.json.encode(self._content).decode() + "\n")
                self._path.with_name(FORMER_FILE).unlink(missing_ok=True)
            except (StoreError, OSError) as error:
                log.warning("%s was not written: %s", self._path, error)
                return
        self._durable_start = self._content.start

    @property
    def start(self) -> int:
        """How often the store was started, with this time."""
        return self._content.start

    @property
    def doubt(self) -> str:
        """Why it may lack what the set thinks it has; empty if it does not."""
        return self._content.doubt

    @property
    def is_intact(self) -> bool:
        """Whether a master that takes it into the in-sync set sees what it really has."""
        return not self.doubt or self.is_outside

    def doubt_it(self, why: str) -> None:
        """It may lack something, from now on."""
        self.is_outside = False
        if not self.doubt:
            self._content.doubt = why
            self._save()

    def trust(self) -> None:
        """It has all that the set thinks it has, from now on."""
        self.is_new = self.is_outside = False
        if self.doubt:
            self._content.doubt = ""
            self._save()

    def why_new(self, member: MemberEntry) -> str:
        """Why it is not the store that the registry knows; empty if it is."""
        if member.store != self._content.store:
            return f"it has another store ({self._content.store}) than before ({member.store})"
        if member.start >= self.start:
            return (
                f"its store is an old copy: of start {self.start - 1}, where start {member.start} "
                "is known"
            )
        return ""

    def entry(self, epoch: int, confirmed: int, before: MemberEntry | None) -> MemberEntry | None:
        """What the registry is to know of it now; None if that cannot be said.

        `before`: what it knows, if the log has that.
        """
        if self.doubt or not self._durable_start:
            return None
        if before is not None and confirmed < before.confirmed:
            # After a start less is confirmed than before, though the log has it.
            epoch, confirmed = before.epoch, before.confirmed
        return MemberEntry(self._content.store, self._durable_start, epoch, confirmed)

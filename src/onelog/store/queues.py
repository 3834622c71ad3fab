"""All queues of a store, by topic and queue id, found on disk or made when first written to."""

import errno
import resource
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.errors import InvalidQueueError
from onelog.message import QUEUE_ID_MAX
from onelog.names import TABLES_TOPIC
from onelog.store.consumequeue import ConsumeQueue
from onelog.store.queue_files import FOLDER, MapBudget, QueueFiles
from onelog.store.queue_folders import folder_of, queue_folder, queue_folders
from onelog.store.segment import disk_error

if TYPE_CHECKING:
    from onelog.store.mending import Mending

_MAPS_MIN = 64
_MAPS_MAX = 30_000


def _maps_max() -> int:
    """How many queue files may be mapped: half of the file descriptors, and well under what a
    process may map by the kernel's default (65,530)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_MAPS_MIN, min(_MAPS_MAX, soft // 2))


class Queues:
    """The `consumequeue` folder."""

    def __init__(
        self,
        folder: Path,
        file_entries: int,
        *,
        writable: bool = True,
        unsynced: set[str] | None = None,
    ) -> None:
        """`unsynced` is told of folders that have new names, for whoever makes them durable."""
        self.files = QueueFiles(folder.parent / FOLDER) if writable else None
        self.folder = folder
        self._file_entries = file_entries
        self._writable = writable
        self._budget = MapBudget(_maps_max())
        self._unsynced = set() if unsynced is None else unsynced
        self._check: Mending | None = None
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.deleted: set[str] = set()
        """Topics, for whoever remembers where queues end."""
        for topic, queue_id, path in queue_folders(folder):
            self._open(topic, queue_id, path)

    def _open(
        self, topic: str, queue_id: int, folder: Path, *, is_new: bool = False
    ) -> ConsumeQueue:
        queue = ConsumeQueue(
            folder,
            topic,
            self._file_entries,
            self._budget,
            writable=self._writable,
            # Readers of the files go by what the tables say of the other queues.
            files=None if topic == TABLES_TOPIC else self.files,
            unsynced=self._unsynced,
            is_new=is_new,
        )
        queue.check = self._check
        self.by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def check_with(self, check: "Mending") -> None:
        """From now on searches in queues are checked against the log."""
        self._check = check
        for queue in self:
            queue.check = check

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue, if it was ever written to."""
        queues = self.by_topic.get(topic)
        return queues.get(queue_id) if queues else None

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue, made if need be; the names are checked first."""
        found = self.find(topic, queue_id)
        if found is None:
            check_queue_id(queue_id)
            folder = queue_folder(self.folder, topic, queue_id)
            # All that there were are open: of this one there can only be what is being deleted.
            found = self._open(topic, queue_id, folder, is_new=self._writable)
        return found

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in list(self.by_topic.values()):
            yield from list(queues.values())

    def unmap(self) -> None:
        """Let go of all maps; they are made again when they are needed."""
        for queue in self:
            queue.unmap_all()

    def settle(self) -> None:
        """Return when all files are made and deleted that were to be; `StoreError` if not."""
        if self.files is not None:
            self.files.settle()

    def close(self) -> None:
        """Let go of everything."""
        if self.files is not None:
            self.files.close()
        self.unmap()

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues and their files, which may be very many: some time later."""
        assert self.files is not None, "a store that is only read deletes nothing"
        queues = self.by_topic.pop(topic, {}).values()
        self.deleted.add(topic)
        folders = {self.folder / folder_of(topic), *(queue.folder.parent for queue in queues)}
        # The last one who lets go of a file's map waits until the file system has deleted it.
        maps = [each for queue in queues for each in queue.forget()]
        self.files.run(lambda: self._remove(folders, maps), again=True)

    def _remove(self, folders: set[Path], maps: list[mmap]) -> None:
        assert self.files is not None
        maps.clear()
        for folder in folders:
            try:
                self.files.discard(folder)
                self._unsynced.add(str(folder.parent))
                while (folder := folder.parent) != self.folder and _removed(folder):
                    self._unsynced.add(str(folder.parent))
            except OSError as error:
                raise disk_error(error, folder, "delete") from error

    def cut_at(self, log_offset: int) -> None:
        """Forget every entry of a record from `log_offset` on, and queues that have no others."""
        for queue in self:
            queue.cut_at(log_offset)
            if queue.end == 0:
                del self.by_topic[queue.topic][queue.queue_id]
        for topic in [topic for topic, queues in self.by_topic.items() if not queues]:
            del self.by_topic[topic]


def _removed(folder: Path) -> bool:
    """Remove a folder that has nothing in it; long names share the folder of how they begin."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ENOTEMPTY and folder.name.endswith("~"):
            return False
        raise
    return True


def check_queue_id(queue_id: int) -> None:
    """`InvalidQueueError` for a queue id that no topic can have."""
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise InvalidQueueError(f"queue id {queue_id} is outside 0..{QUEUE_ID_MAX}")

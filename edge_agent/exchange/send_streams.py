"""Send: tuples on their way into a spool of their own, where they stay until all receivers have them.

Called on the agent's writing thread, when the deliveries of the tuples are on disk.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

from edge_agent.config import Fsync, Settings
from edge_agent.spool import Entry, Spool, SpoolError, SpoolFull, SpoolUnwritable
from edge_agent.spool.files import sync_folder
from protocol.ids import StreamId
from protocol.records import BEGINNING
from protocol.wire.crossing import Crossing, PackedTuple, decode_crossing, encode_crossing
from protocol.wire.errors import MalformedBatch
from protocol.wire.values import size_of as captured_size

_LOG = logging.getLogger(__name__)
_NEVER = float("inf")
_RETRY_S = 1.0
_TUPLE_BYTES = 24
_MOST_WAITING = 10_000
_MOST_BYTES = 40 << 10  # of a crossing: with one more tuple, and if nothing can be compressed, it still fits a datagram


class SendStream:
    """One stream that other agents receive."""

    def __init__(self, stream: StreamId, folder: str | os.PathLike[str], settings: Settings) -> None:
        self.stream = stream
        self.lost = 0
        self.trouble = ""
        self.given_up: Callable[[], None] = lambda: None
        self._settings = settings
        folder = Path(folder) / f"send-{quote(stream.name, safe='')}"
        # Receivers go by the numbers of its entries, so a power cut must not take back any that has left.
        fsync: Fsync = "interval" if settings.fsync == "never" else settings.fsync
        self.spool = Spool.open(folder, max_bytes=settings.spool_bytes, fsync=fsync)
        self._parent = str(folder.parent)
        self._is_folder_safe = False
        self._id = _SpoolId(folder / "id", self._oldest_id)
        self.spool_id = self._id.number
        self._make_safe_what_was_left()
        # Compressed to a third, as a rule, they fill a datagram.
        self._crossing_bytes = min(3 * settings.batch_bytes, _MOST_BYTES, settings.spool_bytes // 4)
        self._tuples: list[PackedTuple] = []
        self._forgone: deque[int] = deque()
        self._sent = (BEGINNING, BEGINNING)
        self._promise = (BEGINNING, BEGINNING, False)
        self._since: float | None = None
        self._retry_at = 0.0

    def _make_safe_what_was_left(self) -> None:
        """Nothing leaves before a power cut cannot take it back, and a process that was killed may not have come to
        that."""
        try:
            self._make_folder_safe()
            self.spool.sync()
            self.spool.delete_released()
        except SpoolError as error:
            self.trouble = str(error)

    def _make_folder_safe(self) -> None:
        """A power cut must not take the spool as a whole: its numbers would begin again."""
        if self._is_folder_safe:
            return
        try:
            sync_folder(self._parent)
        except OSError as error:
            raise SpoolUnwritable(f"folder {self._parent}: {error}") from error
        self._is_folder_safe = True

    def _oldest_id(self) -> int | None:
        """What the spool's entries say that their numbers count in, if there are any."""
        for entry in self.spool.entries(self.spool.first):
            if (crossing := self._read(entry)) is not None:
                return crossing.spool
        return None

    @property
    def waiting(self) -> bool:
        """Whether there is anything that is in memory only."""
        return bool(self._tuples or self._forgone) or self._since is not None

    def add(self, tuples: list[PackedTuple], watermark: int, hold: int, idle: bool, now: float) -> None:
        """Tuples, and the promise after them. SpoolFull if there is no more room, nothing was taken then."""
        if self.trouble or len(self._tuples) > _MOST_WAITING:
            self._write()
        self._tuples += tuples
        if (watermark, hold, idle) != self._promise and self._since is None:
            self._since = now
        self._promise = watermark, hold, idle

    def try_again(self) -> None:
        """There may be room now."""
        self._retry_at = 0.0

    def forgo(self, count: int) -> None:
        """On any thread: so many tuples will never be added. The next crossing says so; the promise after them, too,
        is in the next one's."""
        if count:
            self.lost += count
            self._forgone.append(count)

    def step(self, now: float, hurry: bool = False) -> float:
        """Write what is to be written by now. A promise alone waits for company as long as a batch does."""
        due = _NEVER if self._since is None else self._since + self._settings.batch_age_s
        if not (self._tuples or self._forgone or self.trouble or now >= due or (hurry and self.waiting)):
            return due
        if now < self._retry_at:
            return self._retry_at
        try:
            self._write()
        except SpoolError as error:
            if not self.trouble:
                _LOG.warning("tuples for other agents wait in memory stream=%s error=%s", self.stream, error)
            self.trouble = str(error)
            self._retry_at = now + _RETRY_S
            return self._retry_at
        return _NEVER

    def _write(self) -> None:
        self._make_folder_safe()
        try:
            if self.waiting:
                self._append_all()
        finally:
            self.spool.sync()
        self._since = None
        self.trouble, self._retry_at = "", 0.0

    def _append_all(self) -> None:
        watermark, hold, idle = self._promise
        while True:
            count = self._fitting()
            last = count == len(self._tuples)
            # What follows in another crossing may be as old as what was promised before all of them.
            promised = (watermark, hold) if last else self._sent
            forgone = list(self._forgone)
            crossing = Crossing(
                self.stream, self.spool_id, self.spool.next, [], *promised, idle and last, lost=sum(forgone)
            )
            self._append(encode_crossing(crossing, self._tuples[:count]))
            del self._tuples[:count]
            for _ in forgone:
                self._forgone.popleft()
            self._sent = promised
            if last:
                return

    def _fitting(self) -> int:
        """How many tuples go into one crossing."""
        size = 0
        for place, (_, (_, data), _) in enumerate(self._tuples):
            size += _TUPLE_BYTES + captured_size(data)
            if size > self._crossing_bytes and place:
                return place
        return len(self._tuples)

    def _append(self, data: bytes) -> None:
        self._id.keep()
        while True:
            try:
                self.spool.append(data)
                return
            except SpoolFull:
                if self._settings.when_full != "drop-oldest":
                    raise
                self._give_up()

    def _give_up(self) -> None:
        """The oldest crossings go; the one in their place says how many tuples that were."""
        oldest = self.spool.oldest()
        if not oldest:
            raise SpoolFull(f"the spool of {self.stream} is full")
        crossings = [crossing for entry in oldest if (crossing := self._read(entry)) is not None]
        if len(crossings) < len(oldest):
            return  # there may be room without them, or others to give up
        tuples = sum([len(each.tuples) for each in crossings])
        lost = tuples + sum([each.lost for each in crossings])
        self.lost += tuples
        last = crossings[-1]
        stand_in = Crossing(last.stream, self.spool_id, last.seq, [], last.watermark, last.hold, last.idle, lost)
        self.spool.replace_oldest(encode_crossing(stand_in, []))
        self.given_up()

    def _read(self, entry: Entry) -> Crossing | None:
        """What is no crossing, though it was read, is left out of account: receivers find that it is missing."""
        try:
            return decode_crossing(entry.data, self.stream.agent, self.stream.name)
        except MalformedBatch as error:
            _LOG.error("no crossing stream=%s entry=%d error=%s", self.stream, entry.first, error)
            self.spool.disbelieve(entry)
            return None

    def close(self) -> None:
        self.spool.close()


class _SpoolId:
    """What the numbers of a spool's entries count in: another one if the folder was deleted.

    It is on disk before the first of these entries. A disk that is full does not keep the agent from starting. If the
    file is lost and entries are not, these know it: who takes them answers with it.
    """

    def __init__(self, path: Path, in_entries: Callable[[], int | None]) -> None:
        self._path = path
        self._is_kept = False
        try:
            self.number = _number_in(path.read_text())
            self._is_kept = True
        except (OSError, ValueError):
            found = in_entries()
            self.number = int.from_bytes(os.urandom(8), "little") if found is None else found

    def keep(self) -> None:
        """Have it on disk. SpoolUnwritable if the disk does not take it."""
        if self._is_kept:
            return
        draft = self._path.with_suffix(".draft")
        try:
            with draft.open("w") as out:
                out.write(_content(self.number))
                out.flush()
                os.fsync(out.fileno())
            draft.replace(self._path)
            sync_folder(str(self._path.parent))
        except OSError as error:
            raise SpoolUnwritable(f"spool {self._path.parent}: {error}") from error
        self._is_kept = True


def _content(number: int) -> str:
    digits = f"{number:016x}"
    return f"{digits} {crc32(digits.encode()):08x}"


def _number_in(text: str) -> int:
    """ValueError if it was not written so. Older versions wrote the digits alone."""
    digits, has_check, _ = text.partition(" ")
    number = int(digits, 16)
    if len(digits) != 16 or (has_check and text != _content(number)):
        raise ValueError("not as it was written")
    return number

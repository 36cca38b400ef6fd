"""What the spool does when the disk is full, broken or slow to be trusted."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import edge_agent
from edge_agent.spool import Fsync, Spool, SpoolFull, SpoolUnwritable, Unsynced
from edge_agent.spool.journal import Journal
from edge_agent.spool.segment import Segment
from tests.edge_agent.spool.folders import contents, crashed, ones, segments, spoil

ROOT = Path(edge_agent.__file__).parent.parent


class Disk:
    """Fails calls on demand, and knows which files were written and not synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_bytes = 1 << 40
        self.error = 0
        self.sync_error = 0
        self.unsynced: set[str] = set()
        self._pwrite, self._fsync, self._fdatasync = os.pwrite, os.fsync, os.fdatasync
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "fsync", lambda fd: self.sync(fd, self._fsync))
        monkeypatch.setattr(os, "fdatasync", lambda fd: self.sync(fd, self._fdatasync))

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        growth_bytes = max(offset + len(data) - os.fstat(fd).st_size, 0)
        if growth_bytes > self.free_bytes:
            part = data[: len(data) - growth_bytes + self.free_bytes]
            self.free_bytes = 0
            if not part:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self._pwrite(fd, part, offset)
        self.free_bytes -= growth_bytes
        self.unsynced.add(self._name(fd))
        return self._pwrite(fd, data, offset)

    def sync(self, fd: int, really: object) -> None:
        if self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        self.unsynced.discard(self._name(fd))

    @staticmethod
    def _name(fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name.removesuffix(" (deleted)")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("room", [0, 1, 30, 100])
def test_a_full_disk_leaves_nothing_half_written_and_later_appends_work(tmp_path: Path, disk: Disk, room: int) -> None:
    folder = tmp_path / "spool"
    with Spool.open(folder) as spool:
        spool.append(b"zero")
        size_bytes = spool.size_bytes
        on_disk = segments(folder)[0].read_bytes()
        for _ in range(3):
            disk.free_bytes = room
            with pytest.raises(SpoolUnwritable, match="No space left"):
                spool.append(b"x" * 200)
            assert segments(folder)[0].read_bytes() == on_disk
        assert (spool.next, spool.count, spool.size_bytes) == (1, 1, size_bytes)
        with Spool.open(crashed(folder)) as after:
            assert (contents(after), after.torn_bytes) == (ones(b"zero"), 0)
        disk.free_bytes = 1 << 20
        assert spool.append(b"one") == 1
        assert contents(spool) == ones(b"zero", b"one")
    with Spool.open(folder) as spool:
        assert contents(spool) == ones(b"zero", b"one")


@pytest.mark.parametrize("room", [0, 10, 40, 60])
def test_a_full_disk_at_the_beginning_of_a_file(tmp_path: Path, disk: Disk, room: int) -> None:
    with Spool.open(tmp_path) as spool:
        disk.free_bytes = room
        with pytest.raises(SpoolUnwritable):
            spool.append(b"x" * 100)
        disk.free_bytes = 1 << 20
        assert spool.append(b"zero") == 0
    with Spool.open(tmp_path) as spool:
        assert contents(spool) == ones(b"zero")


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.EDQUOT])
def test_other_errors_are_told_by_name(tmp_path: Path, disk: Disk, error: int) -> None:
    with Spool.open(tmp_path) as spool:
        spool.append(b"zero")
        disk.error = error
        with pytest.raises(SpoolUnwritable, match=os.strerror(error)):
            spool.append(b"one")
        with pytest.raises(SpoolUnwritable, match=f"journal: .*{os.strerror(error)}"):
            spool.journal(b"piece")
        spool.release(0)
        assert spool.first == 1
        disk.error = 0
        assert spool.append(b"one") == 1


def test_a_failed_sync_takes_the_entry_back(tmp_path: Path, disk: Disk) -> None:
    folder = tmp_path / "spool"
    with Spool.open(folder, fsync="batch") as spool:
        spool.append(b"zero")
        spool.journal(b"piece")
        disk.sync_error = errno.EIO
        with pytest.raises(SpoolUnwritable):
            spool.append(b"one")
        with pytest.raises(SpoolUnwritable):
            spool.journal(b"another")
        with pytest.raises(SpoolUnwritable):
            spool.sync()
        with Spool.open(crashed(folder)) as after:
            assert contents(after) == ones(b"zero")
            assert after.recovered_journal == [b"piece"]
            disk.sync_error = 0
        assert spool.append(b"one") == 1


@pytest.mark.parametrize("is_aside", [False, True])
def test_after_a_failed_sync_everything_is_written_anew(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, is_aside: bool
) -> None:
    """The system may drop what it could not write, and say of the next sync that all is well."""
    anew: list[str] = []

    def noting_pwrite(fd: int, data: bytes, offset: int) -> int:
        anew.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        return disk.pwrite(fd, data, offset)

    folder = tmp_path / "spool"
    with Spool.open(folder) as spool:
        for number in range(3):
            spool.append(b"%d" % number)
        spool.journal(b"piece")
        spool.journal(b"another")
        written = [*segments(folder), folder / "journal"]
        before = [path.read_bytes() for path in written]
        monkeypatch.setattr(os, "pwrite", noting_pwrite)
        for file in (spool._segments.all[0], spool._journal):
            if is_aside:
                aside = spool.unsynced()
                assert aside is not None
                close_all(aside)
                spool.synced(aside, failed=True)
            else:
                disk.sync_error = errno.EIO
                with pytest.raises(OSError, match="Input/output error"):
                    file.sync()
                disk.sync_error = 0
        anew.clear()
        again = spool.unsynced() if is_aside else None
        if again is None:
            spool.sync()
        else:
            close_all(again)
            spool.synced(again)
        assert anew == [path.name for path in written]
        assert [path.read_bytes() for path in written] == before
        assert spool.is_synced and spool.unsynced() is None


@pytest.mark.parametrize("name", ["journal", f"{0:020}.v1"])
def test_what_is_gone_after_a_failed_sync_is_not_taken_for_safe(tmp_path: Path, disk: Disk, name: str) -> None:
    """The system may show what is on the disk, and not what it had been given to write."""
    folder = tmp_path / "spool"
    with Spool.open(folder, fsync="never") as spool:
        spool.append(b"zero")
        spool.journal(b"piece")
        disk.sync_error = errno.EIO
        file: Journal | Segment = spool._journal if name == "journal" else spool._segments.all[0]
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        disk.sync_error = 0
        spoil(folder / name, (folder / name).stat().st_size - 1)
        for _ in range(2):
            with pytest.raises(SpoolUnwritable, match="lost what was written"):
                spool.sync(force=True)
            assert not file.is_synced
        assert contents(spool) == (ones(b"zero") if name == "journal" else []), "reading finds it, and tells of it"
        spool.append(b"the piece")
        spool.sync(force=True)
        assert spool.is_synced and spool.lost == ([] if name == "journal" else [range(1)])


def close_all(unsynced: Unsynced) -> None:
    for handle in unsynced.handles:
        os.close(handle)


def test_a_journal_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    with Spool.open(tmp_path) as spool:
        spool.journal(b"one")
        disk.free_bytes = 10
        with pytest.raises(SpoolUnwritable):
            spool.journal(b"two")
        disk.free_bytes = 1000
        spool.journal(b"three")
    with Spool.open(tmp_path) as spool:
        assert spool.recovered_journal == [b"one", b"three"]


def test_entries_can_be_given_up_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    with Spool.open(tmp_path, max_bytes=65_536, segment_bytes=1000) as spool:
        for number in range(40):
            spool.append(b"%02d" % number * 200)
        disk.free_bytes = 0
        for _ in range(2):
            spool.replace_oldest(b"g" * 400)
            assert contents(spool)[0][2] == b"g" * 400
            disk.free_bytes = 3000  # what the deleted files have freed
        disk.free_bytes = 0
        with pytest.raises(SpoolUnwritable):
            spool.replace_oldest(b"g" * 4000)
        assert contents(spool)[0][2] == b"g" * 400
        spool.replace_oldest(b"g" * 500)
        assert contents(spool)[0][2] == b"g" * 500
        before = contents(spool)
    with Spool.open(tmp_path) as spool:
        assert contents(spool) == before
        assert (spool.lost, spool.torn_bytes) == ([], 0)


@pytest.mark.parametrize(
    ("fsync", "after_write", "after_sync", "after_force"),
    [("batch", False, False, False), ("interval", True, False, False), ("never", True, True, False)],
)
def test_what_each_policy_has_synced_and_when(
    tmp_path: Path, disk: Disk, fsync: Fsync, after_write: bool, after_sync: bool, after_force: bool
) -> None:
    def unsynced() -> bool:
        return bool(disk.unsynced & {path.name for path in [*segments(tmp_path), tmp_path / "journal"]})

    with Spool.open(tmp_path, fsync=fsync, segment_bytes=250) as spool:
        for _ in range(2):
            for _ in range(5):
                spool.append(b"x" * 100)
                spool.journal(b"piece")
            assert unsynced() == after_write
            spool.sync()
            assert unsynced() == after_sync
            spool.sync(force=True)
            assert unsynced() == after_force
            disk.unsynced.clear()


def test_a_new_file_is_in_the_folder_for_good_before_older_ones_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    fsync, rename, unlink = os.fsync, os.rename, os.unlink

    def noting_fsync(fd: int) -> None:
        happened.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        fsync(fd)

    def noting_rename(path: str, target: str) -> None:
        happened.append(f"{Path(path).name} becomes {int(Path(target).stem)}")
        rename(path, target)

    def noting_unlink(path: str) -> None:
        happened.append(f"delete {int(Path(path).stem)}")
        unlink(path)

    with Spool.open(tmp_path, segment_bytes=200) as spool:
        spool.append(b"x" * 150)
        spool.release(0)
        monkeypatch.setattr(os, "fsync", noting_fsync)
        monkeypatch.setattr(os, "rename", noting_rename)
        monkeypatch.setattr(os, "unlink", noting_unlink)
        spool.append(b"x" * 150)
        assert happened == ["sync draft", "draft becomes 1", f"sync {tmp_path.name}", "delete 0"]
        happened.clear()
        spool.append(b"x" * 150)
        spool.replace_oldest(b"gap")
        spool.append(b"x" * 150)
        happened.clear()
        spool.replace_oldest(b"gap")
        assert happened == ["sync reserve", "reserve becomes 1", f"sync {tmp_path.name}", "delete 2"]


@contextmanager
def small_disk(folder: Path, script: str) -> Iterator[str]:
    """What a script prints that runs with the folder on a file system of 256 kB."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=256k none {folder} || exit 77; exec {sys.executable} -c '{script}' {folder}"
    done = subprocess.run(
        [unshare, "-rm", "sh", "-c", mount], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    yield done.stdout


def test_a_real_full_disk(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from edge_agent.spool import Spool, SpoolUnwritable
folder = Path(sys.argv[1]) / "spool"
dropped = 0
with Spool.open(folder, segment_bytes=16384) as spool:
    for number in range(1000):
        while True:
            try:
                assert spool.append(b"%04d" % number * 300) == number
                break
            except SpoolUnwritable as error:
                old = spool.oldest()
                spool.replace_oldest(b"%d %d" % (old[0].first, old[-1].last))
                dropped += 1
with Spool.open(folder) as spool:
    gap, *rest = spool.entries()
    assert gap.data == b"%d %d" % (gap.first, gap.last), gap
    assert [entry.data for entry in rest] == [b"%04d" % n * 300 for n in range(gap.last + 1, 1000)]
    print(dropped > 50, len(rest) > 100, spool.lost, spool.torn_bytes)
"""
    with small_disk(tmp_path / "disk", script) as output:
        assert output == "True True [] 0\n"


def test_released_entries_that_could_not_be_deleted_are_when_there_is_no_room_for_others(tmp_path: Path) -> None:
    """The owner could not write down what they told, on a disk that was full. Nothing more is released after them."""
    with Spool.open(tmp_path, max_bytes=5_000, segment_bytes=200) as spool:

        def not_now() -> None:
            raise OSError("the disk is full")

        spool.before_deleting = not_now
        with pytest.raises(SpoolFull):
            for _ in range(100):
                spool.append(b"x" * 100)
        spool.release(spool.next - 1)
        with pytest.raises(SpoolFull):
            spool.append(b"x" * 100)
        spool.before_deleting = lambda: None
        spool.append(b"x" * 100)
        assert len(list(tmp_path.glob("*.v1"))) <= 2

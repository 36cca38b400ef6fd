"""Reading and writing files as a worn or full card demands: whole or not at all, and past the blocks that fail."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable

from edge_agent.spool.errors import SpoolLocked

LOCK_BYTES = 12
_BLOCK_BYTES = 4096


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of it with one call. A disk that takes only a part is full."""
    if os.pwrite(fd, data, offset) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_anew(path: str, size_bytes: int, is_whole: Callable[[bytes], bool]) -> None:
    """Write over a file what is in it. OSError if that is not what was written: it must not be taken for safe."""
    data = read_whole(path)[:size_bytes]
    if len(data) != size_bytes or not is_whole(data):
        raise OSError(errno.EIO, "the disk has lost what was written")
    fd = os.open(path, os.O_RDWR)
    try:
        write_at(fd, data, 0)
    finally:
        os.close(fd)


def sync_folder(path: str) -> None:
    """Make the names in a folder safe from a power cut: syncing a file does not."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def try_truncate(fd: int, size_bytes: int) -> None:
    """Take back what a failed write has left. If that fails too, its check gives it away when it is read."""
    try:
        os.ftruncate(fd, size_bytes)
    except OSError:
        pass


def read_whole(path: str) -> bytes:
    """All bytes of a file, with zeros for the blocks that the disk cannot read any more."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size_bytes = os.fstat(fd).st_size
        try:
            data = os.pread(fd, size_bytes, 0)
            if len(data) == size_bytes:
                return data
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        return b"".join(
            _read_block(fd, min(_BLOCK_BYTES, size_bytes - at), at) for at in range(0, size_bytes, _BLOCK_BYTES)
        )
    finally:
        os.close(fd)


def hold_room(path: str, size_bytes: int) -> None:
    """Keep a file of zeros, so that as much can be written over it when the disk is full. If it is full now, later."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            held_bytes = os.fstat(fd).st_size
            if held_bytes < size_bytes:
                write_at(fd, bytes(size_bytes - held_bytes), held_bytes)
            elif held_bytes > size_bytes:
                os.ftruncate(fd, size_bytes)
        finally:
            os.close(fd)
    except OSError:
        pass


def try_unlink(path: str) -> bool:
    """Delete a file that nobody needs; tell whether it is gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _read_block(fd: int, length: int, offset: int) -> bytes:
    try:
        return os.pread(fd, length, offset).ljust(length, b"\0")
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return bytes(length)


def lock(path: str) -> int:
    """Take the lock for the life of the process and leave the process id for whoever is refused."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        fd = os.open(path, os.O_RDONLY)  # what is in the spool can still be sent
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, LOCK_BYTES, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise SpoolLocked(f"spool {os.path.dirname(path)}: process {holder or '(unknown)'} has it open") from None
    except OSError:
        os.close(fd)
        raise
    try:
        write_at(fd, f"{os.getpid()}\n".rjust(LOCK_BYTES).encode("ascii"), 0)
    except OSError:
        pass  # a disk that takes nothing more must not keep the spool from being emptied
    return fd

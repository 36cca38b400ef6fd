"""A file system of a few megabytes, which can be filled up and emptied again."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class CannotMount(RuntimeError):
    """There can be no small disk here; the text says why."""


class SmallDisk:
    """A tmpfs in a folder. What is on it is kept beside it when it goes, if `keep` says so."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self.keep = False
        self._size_bytes = size_bytes
        self._ballast = folder / "ballast"

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise CannotMount("only root can mount a small file system")
        self.folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "tmpfs", str(self.folder)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        if mounted.returncode:
            raise CannotMount(f"no small file system can be mounted: {mounted.stderr.strip()}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.free()
        if self.keep:
            kept, passing = self.folder.with_name(f"{self.folder.name}-kept"), shutil.ignore_patterns("scratch")
            with suppress(shutil.Error):  # some process may just be ending
                shutil.copytree(self.folder, kept, dirs_exist_ok=True, ignore=passing)
        subprocess.run(["umount", "-l", str(self.folder)], check=True)

    @property
    def is_full(self) -> bool:
        return self._ballast.exists()

    def fill(self) -> None:
        """Leave no room for anything."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

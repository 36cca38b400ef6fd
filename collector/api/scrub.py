"""Looks through the whole store now and then, in a process of its own that gives way to everybody.

Whoever reads a packed value that has changed notices. What no reader would notice (a plain value, a row that an index
no longer leads to) is found here, and from then on the store is not served: no answer is better than a wrong one. Once
somebody has put a copy back into the file, it is checked, and served again if nothing is wrong with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from collector.api.readers import Identity, Readers
from collector.store import StoreMissing
from collector.store.check import GIVEN_UP

_LOG = logging.getLogger(__name__)
_LOOK_S = 5.0
_RETRY_S = 600.0
_MOST_TOLD = 20


class _Look(NamedTuple):
    """What a file looks like from outside."""

    identity: Identity
    size_bytes: int
    written_ns: int


class Scrubber:
    """Checks a store when it is there, when it is replaced, and again after some time."""

    def __init__(self, path: Path, readers: Readers, every_s: float) -> None:
        self._path = path
        self._readers = readers
        self._every_s = every_s
        self._seen: _Look | None = None
        self._checked: _Look | None = None
        self._again_at = 0.0
        self._is_refused = False

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            with suppress(StoreMissing):
                found = self._look()
                if self._is_due(found):
                    await self._try(found)
                self._seen = found
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> _Look:
        found = self._readers.stat()
        return _Look((found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns)

    def _is_due(self, found: _Look) -> bool:
        if self._checked is None or found.identity != self._checked.identity or monotonic() >= self._again_at:
            return True
        is_at_rest = found == self._seen  # nobody is copying right now
        return self._is_refused and found != self._checked and is_at_rest

    async def _try(self, found: _Look) -> None:
        """A check that could not be made, or did not come to its end, is made again soon: that it found nothing says
        nothing."""
        self._checked = found
        try:
            await self._check(found.identity)
            self._again_at = monotonic() + self._every_s
        except (OSError, ValueError) as error:
            _LOG.error("the store could not be looked through, trying again later file=%s error=%s", self._path, error)
            self._again_at = monotonic() + min(_RETRY_S, self._every_s)

    async def _check(self, identity: Identity) -> None:
        begun = monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "collector.store.check", str(self._path)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is not for it
        )
        findings, is_refused = 0, False
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                finding = json.loads(line)
                findings += 1
                if findings <= _MOST_TOLD:
                    _LOG.error("the store is damaged file=%s what=%s", self._path, finding["text"])
                if not finding["is_noticed"] and not is_refused:  # at once: the check may take long
                    is_refused = self._is_refused = True
                    self._readers.refuse(identity, finding["text"])
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code == GIVEN_UP:
            raise ChildProcessError("so much was written meanwhile that the check gave up")
        if code:
            raise ChildProcessError(f"the check has ended with code {code}")
        if not findings:
            self._is_refused = False
            self._readers.accept(identity)
            _LOG.info("the store is sound file=%s took_s=%.1f", self._path, monotonic() - begun)

"""Looks through the whole store now and then, in a process of its own that gives way to everybody.

Whoever reads a packed value that has changed notices. What no reader would notice (a plain value, a row that an index
no longer leads to) is found here, and from then on the store is not served: no answer is better than a wrong one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic

from collector.api.readers import Identity, Readers
from collector.store import StoreMissing

_LOG = logging.getLogger(__name__)
_LOOK_S = 5.0
_MOST_TOLD = 20


class Scrubber:
    """Checks a store when it is there, when it is replaced, and again after some time."""

    def __init__(self, path: Path, readers: Readers, every_s: float) -> None:
        self._path = path
        self._readers = readers
        self._every_s = every_s

    async def run(self) -> None:
        """Until it is cancelled."""
        checked: Identity | None = None
        again_at = 0.0
        while True:
            with suppress(StoreMissing):
                found = self._readers.identity()
                if found != checked or monotonic() >= again_at:
                    await self._check(found)
                    checked, again_at = found, monotonic() + self._every_s
            await asyncio.sleep(_LOOK_S)

    async def _check(self, identity: Identity) -> None:
        begun = monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "collector.store.check", str(self._path)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is not for it
        )
        try:
            assert process.stdout is not None
            wrong = [json.loads(line) async for line in process.stdout]
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        for finding in wrong[:_MOST_TOLD]:
            _LOG.error("the store is damaged file=%s what=%s", self._path, finding["text"])
        unnoticed = [finding["text"] for finding in wrong if not finding["is_noticed"]]
        if unnoticed:
            self._readers.refuse(identity, unnoticed[0])
        if code:
            _LOG.error("the store could not be looked through file=%s code=%d", self._path, code)
        elif not wrong:
            _LOG.info("the store is sound file=%s took_s=%.1f", self._path, monotonic() - begun)

"""`threadline`, but it dies (kill -9) when the store has committed a batch and before Spark hears of it.

python -m tests.system.graph.dies_after COUNT spark --log ...
"""

from __future__ import annotations

import os
import signal
import sys

from collector.store import StoreWriter
from collector.store.writer import Written
from protocol.graph import GraphBatch
from threadline.cli import app

_write = StoreWriter.write
_left = int(sys.argv.pop(1))


def _write_and_die(writer: StoreWriter, batch: GraphBatch) -> Written | None:
    global _left  # noqa: PLW0603 (a process that is about to die)
    written = _write(writer, batch)
    if written is not None:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return written


setattr(StoreWriter, "write", _write_and_die)  # noqa: B010 (mypy does not like the plain way)
app()

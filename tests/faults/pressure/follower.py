"""A reader of the log that can be stopped and goes on later, like a Spark job that is slow or away: it counts rows and
leaves its mark. As a script: `follower.py LOG_FOLDER`, until it is killed."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from collector.log import LogReader, Position, ReaderMark
from collector.log.row import FIRST
from threadline.lab import Service

_LOOK_S = 0.05
_MOST_ROWS, _MOST_BYTES = 500, 1 << 20


class Follower(Service):
    """The reader as a process. It begins anew whenever it is started."""

    def __init__(self, folder: Path, log_folder: Path) -> None:
        super().__init__("follower", folder)
        self._log_folder = log_folder

    def command(self) -> Sequence[str]:
        return [sys.executable, __file__, str(self._log_folder)]

    def is_ready(self) -> bool:
        return "follows" in self.output()


def main() -> None:
    folder = Path(sys.argv[1])
    reader, mark = LogReader(folder), ReaderMark(folder, "follower")
    reached: dict[int, Position] = {}
    print("follows", flush=True)
    while True:
        for shard in reader.shards():
            before = reached.get(shard, FIRST)
            ahead = reader.ahead(shard, before, _MOST_ROWS, _MOST_BYTES)
            for _ in reader.rows(shard, before, ahead):
                pass
            reached[shard] = ahead
        mark.leave(reached)
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()

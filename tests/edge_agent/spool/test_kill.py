"""A real process that is killed (-9) while it appends, journals, releases and gives up entries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import edge_agent
from edge_agent.spool import Fsync, Spool
from tests.edge_agent.spool.folders import folder_bytes

ROOT = Path(edge_agent.__file__).parent.parent
MAX_BYTES = 12_000

CHILD = """
import sys
from pathlib import Path
from edge_agent.spool import Spool, SpoolFull

folder, fsync, max_bytes, action = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
spool = Spool.open(folder, max_bytes=max_bytes, segment_bytes=1000, fsync=fsync)


def with_room(write, *what):
    while True:
        try:
            return write(*what)
        except SpoolFull:
            if action == "release":
                spool.release(spool.first + 20)
            else:
                spool.replace_oldest(b"gap")


if spool.recovered_journal:
    print("entry", with_room(spool.append, b"|".join(spool.recovered_journal)), flush=True)
while True:
    number = spool.next
    for piece in range(number % 4):
        with_room(spool.journal, b"%d.%d" % (number, piece), number)
        print("piece", number, piece, flush=True)
    pieces = b"|".join(b"%d.%d" % (number, piece) for piece in range(number % 4))
    print("entry", with_room(spool.append, pieces + b"#" * (150 + number % 100)), flush=True)
    if number % 16 == 0:
        spool.sync()
"""


def killed(folder: Path, fsync: Fsync, action: str, after_lines: int) -> list[list[str]]:
    """What the process had reported when it was killed, somewhere behind so many lines."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), fsync, str(MAX_BYTES), action],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after_lines)]
        process.kill()
        return [line.split() for line in [*lines, *process.stdout] if line.endswith("\n")]


@pytest.mark.parametrize(("fsync", "action"), [("interval", "release"), ("never", "give up"), ("batch", "give up")])
def test_what_was_reported_is_there_after_a_kill(tmp_path: Path, fsync: Fsync, action: str) -> None:
    told = 0
    for after_lines in (1, 90, 17, 150):
        reported = killed(tmp_path, fsync, action, after_lines)
        assert len(reported) >= after_lines
        entries = [int(words[1]) for words in reported if words[0] == "entry"]
        pieces = [words[1:] for words in reported if words[0] == "piece"]
        with Spool.open(tmp_path, max_bytes=MAX_BYTES) as spool:
            told = max([told, *(number + 1 for number in entries)])
            assert told <= spool.next <= told + 1
            assert spool.lost == []
            assert folder_bytes(tmp_path) <= spool.size_bytes <= MAX_BYTES
            numbers = [n for first, last, _ in spool.entries() for n in range(first, last + 1)]
            assert numbers == list(range(spool.first, spool.next))
            for first, last, data in spool.entries():
                if first == last and data != b"gap":
                    text = data.rstrip(b"#")
                    assert text == b"|".join(b"%d.%d" % (first, piece) for piece in range(first % 4)) or (
                        len(text) == len(data) and text.startswith(b"%d.0" % first)  # recovered pieces
                    )
            open_pieces = [f"{number}.{piece}" for number, piece in pieces if int(number) == spool.next]
            recovered = [piece.decode() for piece in spool.recovered_journal]
            assert recovered[: len(open_pieces)] == open_pieces
            assert len(recovered) <= len(open_pieces) + 1
            assert all(piece.startswith(f"{spool.next}.") for piece in recovered)
            told = spool.next
    with Spool.open(tmp_path) as spool:
        assert (spool.first > 0) == (action == "release")
        assert any(entry.data == b"gap" for entry in spool.entries()) == (action == "give up")

"""Agent batches as the translator would append them, and snapshots as it would take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from collector.log import Position, Row, ShardWriter

SNAPSHOT = 0
GAP = 9
NONCE = 2**64 - 3
SHARD = 5


def batch(agent: str, seq: int, kinds: Sequence[int] = (1, 2), size_bytes: int = 20, nonce: int = NONCE) -> list[Row]:
    """The rows of one agent batch."""
    return [Row(kind, agent, nonce, seq, f"{agent}:{seq}:{kind}".encode().ljust(size_bytes, b".")) for kind in kinds]


class NextSeqs:
    """The state of a translator: the next seq of every (agent, nonce), rebuilt from what the log says."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.next: dict[tuple[str, int], int] = {}
        self.note(rows)

    def note(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.next[row.agent, row.nonce] = row.seq if row.kind == SNAPSHOT else row.seq + 1

    def snapshot(self) -> list[Row]:
        return [Row(SNAPSHOT, agent, nonce, seq, b"") for (agent, nonce), seq in self.next.items()]


def opened(
    folder: Path, segment_bytes: int = 1 << 20, compression: str | None = "zstd"
) -> tuple[ShardWriter, NextSeqs]:
    """A writer that has begun, with its owner's state."""
    writer = ShardWriter(folder, SHARD, segment_bytes=segment_bytes, compression=compression)
    state = NextSeqs(writer.tail())
    writer.begin(state.snapshot)
    return writer, state


def log_batches(folder: Path, agent: str, seqs: Iterable[int]) -> Position:
    """Open, commit each batch by itself, close."""
    writer, state = opened(folder)
    with writer:
        for seq in seqs:
            rows = batch(agent, seq)
            state.note(rows)
            writer.append(rows)
            writer.commit()
        return writer.position


def segments(folder: Path) -> list[Path]:
    """The segment files of the shard, oldest first."""
    return sorted((folder / f"shard-{SHARD:02d}").glob("*.arrows"))

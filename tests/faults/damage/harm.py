"""What may happen to a file, from one seed: a bit is flipped, a block is zeroed, the end is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

BLOCK_BYTES = 512


class Harm(NamedTuple):
    """One thing that happened to a file, so that a failure can be told and repeated."""

    kind: str
    at: int
    content: bytes

    def __str__(self) -> str:
        return f"{self.kind} at byte {self.at}"


def flip(content: bytes, at: int, bit: int) -> Harm:
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    return Harm(f"bit {bit} flipped", at, bytes(changed))


def zero(content: bytes, at: int) -> Harm:
    begin = at // BLOCK_BYTES * BLOCK_BYTES
    block = content[begin : begin + BLOCK_BYTES]
    return Harm("block zeroed", begin, content[:begin] + bytes(len(block)) + content[begin + len(block) :])


def cut(content: bytes, at: int) -> Harm:
    return Harm("cut", at, content[:at])


def harms(content: bytes, seed: int, count: int, places: Sequence[int] | None = None) -> list[Harm]:
    """Different things that may happen, most of them flipped bits; `places`: where, if not anywhere."""
    chance = Random(seed)
    where = range(len(content)) if places is None else places
    made: list[Harm] = []
    while len(made) < count:
        at, choice = chance.choice(where), chance.random()
        harm = flip(content, at, chance.randrange(8)) if choice < 0.6 else zero(content, at)
        if choice >= 0.8:
            harm = cut(content, at)
        if harm.content != content:
            made.append(harm)
    return made


def used(content: bytes) -> list[int]:
    """Where something stands: databases are mostly empty when they are small."""
    return [at for at, byte in enumerate(content) if byte]


def put(path: Path, content: bytes) -> None:
    """The file as it is found, without what SQLite has left beside it."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(content)

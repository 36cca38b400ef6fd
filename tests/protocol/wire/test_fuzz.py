"""Hostile input is read or refused, in bounded time and memory. A failure names its seed and its bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.wire.fuzzing import fuzz, targets

ROOT = Path(__file__).resolve().parents[3]
MOST_MEMORY_BYTES = 80 << 20  # 64 MB of what was read, and what the allocator keeps besides
CHEAP = ["promises", "origins", "table", "ended", "items", "small"]


def in_a_process(*arguments: str) -> Any:
    """The outcome, from a process that cannot have more than a gigabyte."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.protocol.wire.fuzzing", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", range(4))
def test_mutations(seed: int) -> None:
    outcome = fuzz(5_000, seed, targets())
    # Some mutations change a value and nothing else; if there were none, the readers would not have been reached.
    assert outcome.read > 100
    assert outcome.refused > 1_000
    assert outcome.slowest_s < 5


def test_what_is_not_mutated_is_read() -> None:
    from random import Random

    for target in targets():
        target.read(target.repair(target.seed, Random(1)))


def test_bombs() -> None:
    """The worst of them, and those that are refused or small quickly."""
    outcome = in_a_process("bombs", "many pairs, after many streams", *CHEAP)
    assert outcome["read"] + outcome["refused"] >= 12
    assert outcome["refused"] >= 3
    assert outcome["grown_bytes"] < MOST_MEMORY_BYTES


@pytest.mark.soak
def test_all_bombs() -> None:
    outcome = in_a_process("bombs", "")
    print(f"slowest {outcome['slowest_s']:.2f} s of CPU, memory grown by {outcome['grown_bytes'] / 1e6:.0f} MB")
    assert outcome["grown_bytes"] < MOST_MEMORY_BYTES
    assert outcome["slowest_s"] < 10


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_mutations() -> None:
    outcome = in_a_process("mutations", "1000000", "2024")
    count = outcome["read"] + outcome["refused"]
    print(
        f"{count} mutations in {outcome['seconds']:.0f} s ({count / outcome['seconds']:.0f} per second), "
        f"{outcome['read']} could be read, slowest {1000 * outcome['slowest_s']:.0f} ms, "
        f"memory grown by {outcome['grown_bytes'] / 1e6:.0f} MB"
    )
    assert count == 1_000_000
    assert outcome["grown_bytes"] < MOST_MEMORY_BYTES
    assert outcome["slowest_s"] < 5

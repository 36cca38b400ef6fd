"""Runs by their seeds: one run, what came of it, and the shortest run that fails in the same way."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from collector.log_view import check
from protocol.row import Row
from tests.faults.simulation.judge import judge
from tests.faults.simulation.schedule import FAULTS, Step, act, plan_run
from tests.faults.simulation.world import Options, World, temporary_root

_MOST_SHOWN = 20
_PREFIX = "threadline-faults-"


class RunFailed(AssertionError):
    """A run has shown something that must not be. The text says what, and how to see it again."""


@dataclass(slots=True)
class Summary:
    """What happened in a run."""

    seed: int
    steps: int = 0
    simulated_s: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    events: int = 0
    tuples: int = 0
    rows: int = 0
    vertices: int = 0
    edges: int = 0
    late: int = 0
    lost: int = 0
    digest: str = ""
    """Of everything that came into the log: equal for equal runs."""

    @property
    def fault_kinds(self) -> int:
        return sum(fault in self.happened for fault in FAULTS)

    def line(self) -> str:
        """For people."""
        return (
            f"seed {self.seed}: {self.steps} steps, {self.fault_kinds} kinds of fault, {self.simulated_s:.0f} s, "
            f"{self.starts} starts, {self.events} events, {self.tuples} tuples, {self.rows} rows, {self.edges} edges, "
            f"{self.late} late, {self.lost} lost; {self.digest}"
        )


def run(seed: int, options: Options, steps: Sequence[Step]) -> Summary:
    """Let it all happen, heal, and judge. RunFailed says what is wrong."""
    with tempfile.TemporaryDirectory(dir=temporary_root(), prefix=f"{_PREFIX}{os.getpid()}-") as folder:
        world = World(Path(folder), seed, options)
        with world.exists():
            for step in steps:
                act(world, step)
            world.heal()
            faults = [line for line, is_fault in check(Path(folder) / "log") if is_fault]
            summary = _summary(seed, steps, world)
        findings = [*faults, *world.job.findings, *world.job.oracle.finish(), *judge(world.lives, world.job.rows)]
        if not world.job.oracle.log.all_ended:  # nobody has looked whether everything is labelled, then
            findings.append("somebody has not ended, as the log knows them")
    if findings:
        shown = list(dict.fromkeys(findings))
        rest = [f"... and {len(shown) - _MOST_SHOWN} findings more"] if len(shown) > _MOST_SHOWN else []
        raise RunFailed("\n".join([*shown[:_MOST_SHOWN], *rest]))
    return summary


def remove_left_behind() -> None:
    """The folders of runs whose processes were killed."""
    for folder in Path(temporary_root() or tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def run_seed(seed: int) -> Summary:
    """The run that a number stands for."""
    options, steps = plan_run(seed)
    try:
        return run(seed, options, steps)
    except Exception as error:
        error.add_note(f"to see it again: python -m tests.faults.simulation --seed {seed} --shrink")
        raise


def shrunk(seed: int, options: Options, steps: Sequence[Step]) -> tuple[list[Step], Exception]:
    """The shortest list of steps found that still fails, and how. ValueError if the run does not fail."""
    left = list(steps)
    error = _failure(seed, options, left)
    if error is None:
        raise ValueError(f"the run of seed {seed} does not fail")
    size = max(len(left) // 2, 1)
    while True:
        at, is_shorter = 0, False
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            found = _failure(seed, options, fewer)
            if found is not None and type(found) is type(error):
                left, error, is_shorter = fewer, found, True
            else:
                at += size
        if size == 1 and not is_shorter:
            return left, error
        size = max(size // 2, 1)


def _failure(seed: int, options: Options, steps: Sequence[Step]) -> Exception | None:
    try:
        run(seed, options, steps)
    except Exception as error:
        return error
    return None


def _summary(seed: int, steps: Sequence[Step], world: World) -> Summary:
    job, invariants = world.job, world.job.oracle.invariants
    return Summary(
        seed,
        len(steps),
        world.timeline.now - 1_000_000.0,
        world.happened + world.link.happened + world.broker.happened + Counter({"micro-batches run again": job.reruns}),
        len(world.lives),
        sum(len(life.events) for life in world.lives),
        sum(len(life.tuples) for life in world.lives),
        sum(len(rows) for rows in job.rows.values()),
        invariants.vertices,
        invariants.edges,
        invariants.late,
        invariants.lost,
        _digest(job.rows),
    )


def _digest(rows: Mapping[int, Sequence[Row]]) -> str:
    told = blake2b(digest_size=8)
    for shard in sorted(rows):
        told.update(repr(rows[shard]).encode())
    return told.hexdigest()

"""Random runs of the whole way from records to the log; afterwards the log must tell everything, exactly."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.log import LogReader
from collector.log_view import entries
from edge_agent.config import Settings
from protocol.wire.sections import Kind
from tests.collector.simulation import SHARD, LogDisk, World
from tests.collector.simulation_oracle import judge, judge_registers, judge_snapshots

Step = tuple[str, int, float]
ACTIONS = {
    "tasks": 5,
    "many tasks": 1,
    "readings": 4,
    "flush": 2,
    "wait": 6,
    "weather": 3,
    "outage": 1,
    "kill device": 2,
    "kill device while it writes": 3,
    "kill device at its start": 1,
    "stop device": 1,
    "kill translator": 2,
    "kill broker": 1,
    "registry full": 1,
    "log full": 1,
    "device full": 1,
    "retire": 1,
}
MUCH = [0.0, 0.02, 0.1, 0.3, 1.0]
FSYNC, GROUPING = ["batch", "interval", "never"], ["all", "ended"]
BATCH_BYTES, SPOOL_BYTES = [64, 300], [5_000, 12_000, 1 << 20]
LIMITS = {"batch_records": 12, "window": 8, "memory_bytes": 64 << 20}
STEPS = st.lists(
    st.tuples(
        st.sampled_from([name for name, weight in ACTIONS.items() for _ in range(weight)]),
        st.integers(0, 1),
        st.sampled_from(MUCH),
    ),
    max_size=60,
)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test reads what it wrote through the same kernel: syncing would only take time."""
    monkeypatch.setattr(os, "fsync", LogDisk.sync)
    monkeypatch.setattr(os, "fdatasync", LogDisk.sync)


def act(world: World, action: str, which: int, much: float) -> None:
    """One thing happens, to the one or the other agent, more or less of it."""
    name = f"agent-{which}"
    device = world.devices.get(name)
    match action:
        case "tasks" if device is not None:
            device.tasks(1 + int(much * 30))
        case "many tasks" if device is not None:
            for _ in range(10):
                device.tasks(1 + int(much * 30))
                world.run(0.3)
        case "readings" if device is not None:
            device.readings(int(much * 10))
        case "flush" if device is not None:
            device.flush()
        case "wait":
            world.run(0.02 + 3 * much)
        case "weather":
            world.loss, world.copies, world.delay_s = much / 2, much / 3, 2 * much
        case "outage":
            world.is_connected = not world.is_connected
        case "kill device":
            world.kill_device(name)
            world.start_device(name)
        case "kill device while it writes" if device is not None:
            device.light_fuse(int(much * 20))
        case "kill device at its start":
            world.kill_device(name)
            world.start_device(name, fuse=int(much * 10))
            world.start_device(name)
        case "stop device":
            world.stop_device(name)
            world.start_device(name)
        case "kill translator":
            world.kill_translator()
            world.later(much, world.start_translator)
        case "kill broker":
            world.kill_broker()
        case "registry full":
            world.registry.is_full = not world.registry.is_full
        case "log full":
            LogDisk.is_full = not LogDisk.is_full
        case "device full" if device is not None:
            device.disk_is_full = not device.disk_is_full
        case "retire":
            world.retire()
    for each in ("agent-0", "agent-1"):
        world.start_device(each)


def simulate(folder: Path, seed: int, steps: list[Step], options: dict[str, Any], spool_bytes: int) -> World:
    """Let it all happen, heal, and judge."""
    LogDisk.is_full = False
    world = World(folder, seed, Settings(**options), spool_bytes)
    try:
        for step in steps:
            act(world, *step)
            world.run(0.005)
        world.heal()
        judge(world.log, world.lives, in_order=options["grouping"] == "all")
        judge_registers(world.log, SHARD)
        judge_snapshots(world.log, SHARD, world.registry)
    finally:
        world.close()
    return world


def by_seed(seed: int) -> tuple[list[Step], dict[str, Any], int]:
    """A long run, with everything about it."""
    random = Random(seed)
    choices = [name for name, weight in ACTIONS.items() for _ in range(weight)]
    steps = [
        (random.choice(choices), random.randrange(2), random.choice(MUCH)) for _ in range(random.randrange(20, 120))
    ]
    options = {
        "fsync": random.choice(FSYNC),
        "grouping": random.choice(GROUPING),
        "batch_bytes": random.choice(BATCH_BYTES),
        **LIMITS,
    }
    return steps, options, random.choice(SPOOL_BYTES)


FIRST_SEED = int(os.environ.get("SIMULATION_SEED", "0"))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 13))
def test_long_runs(tmp_path: Path, seed: int) -> None:
    """To run one again: SIMULATION_SEED=17 pytest ... -k 17."""
    simulate(tmp_path, seed, *by_seed(seed))


@pytest.mark.soak
def test_very_many_long_runs(tmp_path: Path) -> None:
    for seed in range(1_000, 4_000):
        with TemporaryDirectory(dir=tmp_path) as folder:
            try:
                simulate(Path(folder), seed, *by_seed(seed))
            except BaseException as error:
                error.add_note(f"SIMULATION_SEED={seed}")
                raise


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 32),
    steps=STEPS,
    fsync=st.sampled_from(FSYNC),
    grouping=st.sampled_from(GROUPING),
    batch_bytes=st.sampled_from(BATCH_BYTES),
    spool_bytes=st.sampled_from(SPOOL_BYTES),
)
def test_runs_that_shrink(
    seed: int, steps: list[Step], fsync: str, grouping: str, batch_bytes: int, spool_bytes: int
) -> None:
    with TemporaryDirectory() as folder:
        options = {"fsync": fsync, "grouping": grouping, "batch_bytes": batch_bytes, **LIMITS}
        simulate(Path(folder), seed, steps, options, spool_bytes)


def test_the_runs_are_hard_enough(tmp_path: Path) -> None:
    """A check of the simulation itself: what it is meant to do to us does happen."""
    happened: Counter[str] = Counter()
    for seed in range(6):
        world = simulate(tmp_path / f"{seed}", seed, *by_seed(seed))
        happened["killed"] += sum(life.killed for life in world.lives)
        happened["ended"] += sum(life.ended for life in world.lives)
        for entry in entries(world.log):
            happened[entry.kind.name] += 1
            if entry.kind is Kind.GAP:
                happened[entry.record.reason.partition(":")[0]] += 1
        happened["segments"] += LogReader(world.log).end(SHARD).segment
    assert happened["killed"] > 20
    assert happened["ended"] > 10
    assert happened["crash"] > 20
    assert happened["dropped"] > 3
    assert happened["RETIRE"] > 2
    assert happened["segments"] > 20
    assert min(happened[kind.name] for kind in (Kind.EVENT, Kind.SOURCE, Kind.DELIVERY, Kind.PROGRESS)) > 10

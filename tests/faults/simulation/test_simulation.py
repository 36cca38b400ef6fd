"""A slice of the simulation in every test run, and checks of the simulation itself.

`make soak` and `make chaos` run many more seeds; `python -m tests.faults.simulation --seed N --shrink` looks at one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from collector.log.writer import ShardWriter
from tests.faults.simulation.runs import RunFailed, run, run_seed, shrunk
from tests.faults.simulation.schedule import ACTIONS, FAULTS, Step, plan_run
from tests.faults.simulation.world import Options

FIRST_SEED = int(os.environ.get("SIMULATION_SEED", "0"))
SEEDS = 15
FOUND = (
    *(15, 56, 62, 140, 150, 230, 479, 704, 710, 913, 1131, 1307, 1528, 1721, 1734, 2271),
    *(10161, 20183, 31376, 31479, 32290, 50051, 51175, 52016, 603193, 604490),
)
"""Seeds that have found something."""


@pytest.mark.timeout(300)
def test_whatever_happens_the_graph_is_what_the_agents_said() -> None:
    """Others are run with SIMULATION_SEED=1000."""
    happened: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        happened += run_seed(seed).happened
    if FIRST_SEED == 0:  # the runs are hard: what is meant to happen does
        assert sum(fault in happened for fault in FAULTS) > 25
        assert happened["datagrams"] > 3_000 and happened["lost"] > 50 and happened["corrupted"] > 5
        assert happened["killed in the middle of something"] > 3
        assert happened["micro-batches run again"] > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once_stays_mended(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("seed", [3, 15])
def test_the_same_seed_gives_the_same_run_in_any_process(seed: int) -> None:
    here = run_seed(seed).line()
    command = [sys.executable, "-m", "tests.faults.simulation", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": "17"}
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_a_defect_is_found_and_shrinks_to_what_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is acknowledged without being synced: nobody sees that, until the power is cut."""
    sync = os.fdatasync

    def write_without_sync(self: ShardWriter, content: bytes) -> None:
        self._cut_back()
        self._is_dirty = True
        os.pwrite(self._handle, content, self._extent.end_bytes)

    monkeypatch.setattr(ShardWriter, "_write", write_without_sync)
    dull = [
        Step("weather", "cam", 0.0),
        Step("read", "car", 0.1),
        Step("capture", "cam", 0.1),
        Step("wait", "cam", 0.3),
    ]
    steps = [*dull, *([*dull, Step("power cut of the log", "cam", 0.0)] * 3), *dull]
    options = Options(("car", "center", "cam"), plan_run(0)[0].settings)
    left, error = shrunk(1, options, steps)
    assert isinstance(error, RunFailed)
    assert Step("power cut of the log", "cam", 0.0) in left
    assert len(left) <= 4
    assert sync is os.fdatasync, "the hooks are gone"
    monkeypatch.undo()
    run(1, options, steps)


def test_every_step_of_a_run_is_something_that_can_happen() -> None:
    options, steps = plan_run(5)
    assert {step.action for step in steps} <= set(ACTIONS)
    assert {step.agent for step in steps} <= set(options.agents)
    assert len({step.action for step in steps} & set(FAULTS)) >= 3


@pytest.mark.soak
def test_ten_thousand_runs() -> None:
    command = [sys.executable, "-m", "tests.faults.simulation", "--seeds", "10000-19999"]
    subprocess.run(command, check=True)

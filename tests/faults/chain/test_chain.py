"""The whole chain under faults: one short run of chosen faults, and, in the soak, thirty of any."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

import pytest

from tests.faults.chain.run import run
from tests.faults.chain.schedule import WATCH, Fault, Kind, Schedule
from tests.faults.chain.works import CENTER, GAUGE, MILL, QUARRY, YARD
from threadline.lab import find_mosquitto

MANY = 30
SHORT = Schedule(
    seed=7,
    duration_s=8.0,
    faults=(
        Fault(Kind.CORRUPTION, CENTER, 0.0, 7.0, 0.5),
        Fault(Kind.LOSS, MILL, 0.0, 7.0, 0.5),
        Fault(Kind.ONE_WAY, YARD, 1.0, 3.0, 0.5),
        Fault(Kind.FULL_DISK, QUARRY, 1.0, 2.0, 0.5),
        Fault(Kind.STOP, GAUGE, 1.5, 2.0, 0.5),
        Fault(Kind.KILL, MILL, 2.0, 0.5, 0.5),
        Fault(Kind.FORGET, "mosquitto", 2.5, 0.5, 0.5),
        Fault(Kind.KILL, WATCH, 3.0, 0.5, 0.5),
        Fault(Kind.KILL, "translator", 4.5, 0.5, 0.5),
        Fault(Kind.REFLASH, QUARRY, 5.0, 0.5, 0.5),
        Fault(Kind.KILL, "gateway", 6.0, 0.5, 0.5),
        Fault(Kind.SKEW, GAUGE, 6.5, 0.5, 0.5),
    ),
)


@pytest.fixture(autouse=True)
def mosquitto_installed() -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed (Debian: apt install mosquitto)")


@pytest.mark.timeout(400)
def test_a_hurt_chain_heals_and_its_graph_is_what_the_devices_know(tmp_path: Path) -> None:
    outcome = run(SHORT.seed, tmp_path, plan=SHORT)
    assert outcome.findings == []
    assert len(outcome.faults) > 5, "on a busy machine, some targets may be ready too late"
    assert outcome.events > 100 and outcome.edges > 100 and outcome.gaps > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thirty_runs_of_any_seed(tmp_path: Path) -> None:
    bad: list[str] = []
    for number in range(MANY):
        seed = SystemRandom().randrange(1_000_000_000)
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = run(seed, folder)
        print(outcome.line())
        bad += [f"seed {seed}: {finding}" for finding in outcome.findings]
    assert bad == []

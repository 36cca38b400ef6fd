"""Schedules: what a seed decides, and what no seed does."""

from __future__ import annotations

from itertools import combinations

from tests.faults.chain.schedule import AGENTS, CLOUD, LEAST_KINDS, STEADY, Kind, schedule

SEEDS = range(300)
HARMLESS = frozenset((Kind.STOP, Kind.FULL_DISK))


def test_a_seed_decides_everything() -> None:
    assert schedule(7) == schedule(7)
    assert schedule(7) != schedule(8)


def test_every_run_has_several_kinds_of_fault_and_all_kinds_come() -> None:
    runs = [schedule(seed) for seed in SEEDS]
    assert min(len({fault.kind for fault in run.faults}) for run in runs) >= LEAST_KINDS
    assert {fault.kind for run in runs for fault in run.faults} == set(Kind)


def test_everybody_is_hurt_in_some_run() -> None:
    faults = [fault for seed in SEEDS for fault in schedule(seed).faults]
    for kind in (Kind.KILL, Kind.STOP):
        hit = {fault.target for fault in faults if fault.kind == kind}
        assert hit == {*CLOUD, "spark", *AGENTS} - (set(STEADY) if kind == Kind.KILL else set())


def test_agents_whose_results_must_be_whole_lose_nothing_that_is_in_memory() -> None:
    for seed in SEEDS:
        for fault in schedule(seed).faults:
            is_of_link = f"link of {fault.target}" in fault.busies
            assert fault.target not in STEADY or is_of_link or fault.kind in HARMLESS


def test_faults_at_one_target_never_meet() -> None:
    for seed in SEEDS:
        for one, other in combinations(schedule(seed).faults, 2):
            if one.busies & other.busies:
                assert one.at_s + one.for_s < other.at_s or other.at_s + other.for_s < one.at_s


def test_agents_are_retired_only_where_one_never_returns() -> None:
    for seed in SEEDS:
        run = schedule(seed)
        is_gone = any(fault.kind == Kind.GONE for fault in run.faults)
        longest_s = max((fault.for_s for fault in run.faults), default=0.0)
        assert run.retire_after_s > longest_s and (run.retire_after_s < 60) == is_gone

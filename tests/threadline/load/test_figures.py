"""Figures of a run: only what was measured counts, in the unit of its profile."""

from __future__ import annotations

import pytest

from tests.threadline.load.outcomes import outcome, workflow
from threadline.load.figures import components, rates


def test_only_what_was_measured_counts() -> None:
    made = outcome()
    assert made.units == 2_000
    assert made.caller_us.count == 2 * 20
    assert components(made)["spark"]["cpu_s"] == pytest.approx(0.4 * 20)
    assert components(made)["spark"]["core_us_per_unit"] == pytest.approx(0.4 * 20 / 2_000 * 1e6)


def test_a_rate_needs_some_looks() -> None:
    made = outcome()
    assert rates(made)["translator batches"] == pytest.approx(10)
    made.to_s = 13.5
    assert rates(made) == {}


def test_a_rate_begins_when_something_comes() -> None:
    """Spark is seconds behind: in a short run it would seem too slow."""
    made = outcome()
    for each in made.samples:
        each.metrics["spark"]["edges"] = max(0, 100 * (each.at_s - 18))
    assert rates(made)["spark edges"] == pytest.approx(100)


def test_what_is_logged_and_stored_is_told_in_the_unit_of_the_profile() -> None:
    found = rates(workflow())
    assert found["translator records"] == pytest.approx(200)
    assert found["spark tasks"] == pytest.approx(70)
    assert not {"translator origins", "spark edges"} & found.keys()


def test_without_a_store_nobody_knows_how_many_tasks_are_in_it() -> None:
    made = workflow()
    for each in made.samples:
        each.seen = None
    assert "spark tasks" not in rates(made)

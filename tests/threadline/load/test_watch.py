"""The looks at a run: whatever ends them is made known, as the run would go on without figures else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.threadline.load.samples import sample
from threadline.load import watch as watches
from threadline.load.breakdown import Breakdown
from threadline.load.chain import Chain
from threadline.load.watch import Sample, Watch


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Devices that are well, and looked at all the time."""
    monkeypatch.setattr(watches, "EVERY_S", 0.01)
    monkeypatch.setattr(Watch, "_sample", lambda _: sample(1.0))
    return SimpleNamespace(pids=[], check=lambda: None)


def test_a_listener_that_fails_ends_the_run(fleet: Any) -> None:
    def fails(_: Sample) -> None:
        raise ValueError("what is that")

    with Watch(Chain("127.0.0.1:9"), fleet, None) as watch:
        watch.on_sample = fails
        wait_until(lambda: watch.failure is not None, "it is known")
    assert "the look at all of it failed: ValueError: what is that (" in str(watch.failure)


def test_a_run_does_not_go_on_if_nobody_follows_the_store(fleet: Any) -> None:
    arrivals: Any = SimpleNamespace(failure=Breakdown("the look at the store", "failed"))
    with Watch(Chain("127.0.0.1:9"), fleet, arrivals) as watch:
        wait_until(lambda: watch.failure is not None, "it is known")
    assert watch.failure is arrivals.failure

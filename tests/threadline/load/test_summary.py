"""The lines of a run, where they say something else than its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.threadline.load.outcomes import outcome
from threadline.load.fleet import DeviceEnd
from threadline.load.outcome import Outcome
from threadline.load.profiles import Said
from threadline.load.summary import lines


def test_what_is_left_is_told_without_a_log_to_look_into() -> None:
    made = outcome()
    made.ends, made.checked = [DeviceEnd("load-0", 1, Said(), 4)], ()
    made.options = replace(made.options, folder=Path("kept"))
    assert list(lines(made))[-2:] == [
        "NOT ARRIVED, still with the devices: 4 batches; a longer --drain waits for them, their spools are in kept",
        "loss      not looked for: there is neither --log nor --store to look into",
    ]


def test_a_fleet_that_was_not_whole_said_nothing() -> None:
    made = Outcome(outcome().options, connected=1)
    assert "said      nothing was measured: not all devices were connected, which may need a longer --connect" in list(
        lines(made)
    )

"""The JSON of a run, where it says something else than lines and page."""

from __future__ import annotations

from tests.threadline.load.outcomes import outcome
from threadline.load.document import document


def test_what_was_said_with_the_warm_up_is_named_so() -> None:
    told = document(outcome())
    assert told["units"] == 2_000
    assert told["said_with_warm_up"]["readings"] == 3_000
    assert "said" not in told

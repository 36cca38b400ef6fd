"""Who is told how a run goes."""

from __future__ import annotations

from threadline.load.steps import Step
from threadline.load.watch import Sample


class Listener:
    """Told how it goes. This one does not care."""

    def phase(self, text: str) -> None:
        """Something else begins."""

    def sample(self, sample: Sample) -> None:
        """Every second."""

    def step(self, step: Step) -> None:
        """A rate was tried."""

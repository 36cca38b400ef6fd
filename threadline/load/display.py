"""How a run goes, in one line of a terminal that changes every second; elsewhere nothing is said until the end."""

from __future__ import annotations

from contextlib import suppress

from rich.console import Console
from rich.status import Status

from threadline.load.listener import Listener
from threadline.load.outcome import LoadOptions
from threadline.load.steps import Step
from threadline.load.summary import step_line
from threadline.load.watch import Sample


class Display(Listener):
    """On stderr: what is asked for goes to stdout. Whoever closes the terminal sees no more of it, and loses nothing
    that was measured."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._console = Console(stderr=True)
        self._status: Status | None = None
        self._phase = ""

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            status = self._console.status("")
            with suppress(OSError):
                status.start()
                self._status = status
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()

    def phase(self, text: str) -> None:
        self._phase = text
        self._show(text)

    def sample(self, sample: Sample) -> None:
        late_ms = sample.late_ms.at(0.5)
        parts = [
            f"{sample.at_s:.0f} s",
            f"{sample.connected}/{self._options.devices} devices",
            f"{sample.said:,} {self._options.profile.unit} at {sample.rate:,.0f}/s",
            f"{sample.unacknowledged} batches unacknowledged",
            f"{sample.machine_cores:.1f} cores",
        ]
        if late_ms is not None:
            parts.append(f"visible after {late_ms / 1000:.1f} s")
        self._show(", ".join([*parts, self._phase] if self._phase else parts))

    def step(self, step: Step) -> None:
        if self._status is not None:
            with suppress(OSError):
                self._console.print(step_line(step), markup=False, highlight=False)

    def _show(self, text: str) -> None:
        if self._status is not None:
            with suppress(OSError):
                self._status.update(text)

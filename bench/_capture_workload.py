"""The workload of the ProvLight paper (its Listing 1), as data: what every contender is given to capture.

5 chained transformations of 20 tasks each; every task begins with one Data and ends with one, which makes 200 events.
"paper" data is the paper's: a list of so many ones going in, of so many twos coming out, the same in all events.
"real" data is what sensors and training loops report: so many named values, the same names in every event, the values
of every event its own. Names are the ten below, from the eleventh attribute on with a number behind ("loss_1"). Of ten
values six are random doubles in [0, 1) with all their 53 bits, two are whole numbers below 1,000, two are words of
four letters. The dice are seeded, so that all contenders get the same values.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

TRANSFORMATIONS = 5
TASKS_PER_TRANSFORMATION = 20
TASKS = TRANSFORMATIONS * TASKS_PER_TRANSFORMATION
EVENTS = 2 * TASKS
_NAMES_IN = (
    *("humidity", "pressure", "vibration", "voltage", "current", "learning_rate"),
    *("batch_size", "samples", "mode", "location"),
)
_NAMES_OUT = (
    *("train_loss", "accuracy", "precision", "recall", "gradient", "residual"),
    *("epoch", "updates", "state", "verdict"),
)
_WORDS = ("idle", "busy", "late", "warm", "cold", "full")

Attributes = dict[str, Any]


class Workload(NamedTuple):
    """One configuration: which data, how many attributes, how long a task takes, in a workflow how long."""

    kind: str
    attributes: int
    task_s: float
    times: int = 1  # so often one after the other

    @property
    def data_name(self) -> str:
        return f"{self.kind}-{self.attributes}" + f" x {self.times}" * (self.times > 1)

    @property
    def events(self) -> int:
        return EVENTS * self.times

    @property
    def name(self) -> str:
        return f"{self.data_name}, task {self.task_s:g}"

    def data(self) -> list[tuple[Attributes, Attributes]]:
        """What goes into each task and what comes out of it, task by task."""
        if self.kind == "paper":
            pair = {"in": [1] * self.attributes}, {"out": [2] * self.attributes}
            return [pair] * TASKS * self.times
        dice = Random(self.attributes)
        names_in, names_out = _numbered(_NAMES_IN, self.attributes), _numbered(_NAMES_OUT, self.attributes)
        return [(_values(dice, names_in), _values(dice, names_out)) for _ in range(TASKS * self.times)]


def _numbered(names: tuple[str, ...], count: int) -> list[str]:
    series = range(-(-count // len(names)))
    return [f"{name}_{number}" if number else name for number in series for name in names][:count]


def _values(dice: Random, names: list[str]) -> Attributes:
    return {name: _value(dice, number) for number, name in enumerate(names)}


def _value(dice: Random, number: int) -> Any:
    place = number % 10
    if place >= 8:
        return dice.choice(_WORDS)
    return dice.randrange(1_000) if place >= 6 else dice.random()

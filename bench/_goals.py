"""The end of every benchmark: its goals, one line each, and its figures as JSON."""

from __future__ import annotations

import argparse
import json
import operator
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from threadline.load.output_file import CannotWrite, try_output

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}
_DIGITS = range(4, 17)  # more are all that there are
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Goal:
    """What was measured and what was wanted of it."""

    name: str
    measured: float
    op: str
    wanted: float
    unit: str = ""

    @property
    def met(self) -> bool:
        return self._is_met_by(self.measured)

    def line(self) -> str:
        verdict = "met" if self.met else "missed"
        wanted = f"{self.op} {self.wanted:g}{self.unit}"
        return f"goal {self.name} measured {self._rounded()}{self.unit} wanted {wanted} {verdict}"

    def _is_met_by(self, measured: float) -> bool:
        return _OPERATORS[self.op](measured, self.wanted)

    def _rounded(self) -> str:
        """To four digits, or to as many as it takes to have the same verdict."""
        for digits in _DIGITS:
            rounded = float(f"{self.measured:.{digits}g}")
            if self._is_met_by(rounded) == self.met:
                return f"{rounded:.{max(digits, 6)}g}"
        return repr(self.measured)


@dataclass(slots=True)
class Report:
    """Collects figures and goals; `finish` prints the goals and writes the JSON file. If that is not possible, the
    benchmark ends before it has begun."""

    name: str
    quick: bool
    json_file: Path | None
    figures: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.json_file is not None:
            try:
                try_output(self.json_file)
            except CannotWrite as error:
                print(f"bench/{self.name}.py: --json {error}", file=sys.stderr)
                raise SystemExit(2) from error

    def goal(self, name: str, measured: float, op: str, wanted: float, unit: str = "") -> None:
        self.goals.append(Goal(name, float(measured), op, wanted, unit))

    def finish(self) -> None:
        for goal in self.goals:
            print(goal.line())
        if self.json_file is not None:
            goals = [{**asdict(goal), "met": goal.met} for goal in self.goals]
            document = {"bench": self.name, "quick": self.quick, "figures": self.figures, "goals": goals}
            self.json_file.write_text(json.dumps(_finite(document), indent=2, allow_nan=False) + "\n")


def parse_arguments(name: str, description: str) -> Report:
    """The two flags every benchmark takes. From here on signals end it with everything cleaned up."""
    parser = argparse.ArgumentParser(prog=f"bench/{name}.py", description=description)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and goals to FILE")
    arguments = parser.parse_args()
    end_well()
    return Report(name, arguments.quick, arguments.json)


def _finite(value: Any) -> Any:
    """JSON has no numbers that are none, or without end."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def end_well() -> None:
    """From here on SIGTERM and SIGHUP end a benchmark as Ctrl-C does, unless they are ignored: nohup ignores SIGHUP."""
    for each in _SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, _end)


def _end(number: int, _: FrameType | None) -> NoReturn:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second one would disturb the cleaning
    raise SystemExit(128 + number)

"""What the devices of the laboratory run: a works in which every stone has a number, and every worker a notebook.

    quarry: stones -> loads (windows)          -> sink
               \\--> mill: blocks (some stones) -> sink
                        \\--> yard: walls (windows of blocks) -> sink
    gauge:  levels (windows), by a clock of its own -> sink

A worker notes what it does before it does it, one unbuffered write per line, so that a kill -9 takes no note away:

    life NONCE NS                 the agent has started
    took NUMBER TS NS             the source is about to give this number, at this monotonic time
    made MARK NS NUMBER,...       a result is about to be given that came from these numbers

A source goes on behind the last number that it has noted, like a sensor for which time goes on. How the clock of a
worker is wrong, which plan it has, and how large its readings are, stands in files that it reads when it starts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from edge_agent.queries.linear_road import Report, reports
from edge_agent.stream import Plan, Stream

QUARRY, MILL, YARD, GAUGE = "quarry", "mill", "yard", "gauge"
ROADSIDE, CENTER = "accidents-roadside", "accidents-center"
STEP_MS = 10
STONES_PER_S, LEVELS_PER_S = 40.0, 10.0
CARS, ROUNDS, STANDING = 40, 40, 0.10
WINDOWS_MS = {
    "loads": ((200, 200),),
    "heaps": ((400, 200),),
    "walls": ((300, 300), (500, 500)),
    "means": ((50, 50), (150, 150)),
}
"""The sizes and advances of windows, one for each plan that has others."""
_LOOK_S = 0.05
_LIFE = f"{time.monotonic_ns():x}"
_RESULTS = count()


def end_file(folder: Path) -> Path:
    """When it is there, all sources come to their ends."""
    return folder / "end"


def notes_file(folder: Path, agent: str) -> Path:
    return folder / f"{agent}.notes"


def clock_file(folder: Path, agent: str) -> Path:
    """By how many ms the clock of an agent is ahead."""
    return folder / f"{agent}.clock"


def noise_file(folder: Path, agent: str) -> Path:
    """How many bytes, besides its number, a reading of an agent has."""
    return folder / f"{agent}.noise"


def plan_file(folder: Path, agent: str) -> Path:
    """Which of its plans an agent has."""
    return folder / f"{agent}.plan"


class Notebook:
    """The notes of one worker."""

    def __init__(self, folder: Path, agent: str) -> None:
        path = notes_file(folder, agent)
        text = path.read_text() if path.exists() else ""
        self.next_number = text.count("took ")
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def life(self, nonce: int) -> None:
        self._write(f"life {nonce:x} {time.monotonic_ns()}")

    def took(self, number: int, ts: int) -> None:
        self._write(f"took {number} {ts} {time.monotonic_ns()}")

    def made(self, numbers: list[int]) -> str:
        """The mark of a new result."""
        mark = f"{_LIFE}-{next(_RESULTS)}"
        self._write(f"made {mark} {time.monotonic_ns()} {','.join(map(str, numbers))}")
        return mark

    def _write(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())


class Numbers:
    """An aggregator: the numbers of all that is in a window."""

    def initialise(self) -> list[int]:
        return []

    def add(self, state: list[int], value: dict[str, Any]) -> list[int]:
        return [*state, value["number"]]

    def result(self, state: list[int]) -> list[int]:
        return state


def numbered(folder: Path, agent: str, per_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers as they come, until it is the end."""
    notes = Notebook(folder, agent)
    ahead_ms = _number_in(clock_file(folder, agent))
    for number in count(notes.next_number):
        if end_file(folder).exists():
            return
        time.sleep(1 / per_s)
        ts = number * STEP_MS + ahead_ms
        notes.took(number, ts)
        yield ts, {"number": number, "noise": noise(folder, agent, number)}


def noise(folder: Path, agent: str, number: int) -> bytes:
    """What comes with a number; it takes up much room in those that have little."""
    return Random(number).randbytes(_number_in(noise_file(folder, agent)))


def in_windows(stones: Stream[Any], notes: Notebook, size_ms: int, advance_ms: int) -> Stream[Any]:
    """One result per window, which tells what it came from."""

    def noted(numbers: list[int]) -> dict[str, Any]:
        return {"mark": notes.made(numbers), "numbers": numbers}

    return stones.window(size_ms, advance_ms).aggregate(Numbers(), into=noted)


def is_hard(stone: dict[str, Any]) -> bool:
    return bool(stone["number"] % 3)


def cut(stone: dict[str, Any]) -> dict[str, int]:
    return {"number": stone["number"], "square": stone["number"] ** 2}


def quarry(folder: Path) -> Plan:
    plan = Plan(QUARRY)
    stones = plan.source("rocks", lambda: numbered(folder, QUARRY, STONES_PER_S), live=True)
    stones.map(dict).send("stones", to=[MILL])
    in_windows(stones, Notebook(folder, QUARRY), *WINDOWS_MS["loads"][0]).sink("loads")
    if _number_in(plan_file(folder, QUARRY)) % 2:
        in_windows(stones, Notebook(folder, QUARRY), *WINDOWS_MS["heaps"][0]).sink("heaps")
    return plan


def mill(folder: Path) -> Plan:
    plan, notes = Plan(MILL), Notebook(folder, MILL)

    def noted(stone: dict[str, Any]) -> dict[str, int]:
        notes.made([stone["number"]])
        return cut(stone)

    blocks = plan.receive("stones", QUARRY).filter(is_hard).map(noted)
    blocks.sink("blocks")
    blocks.send("cut", to=[YARD])
    return plan


def yard(folder: Path) -> Plan:
    plan = Plan(YARD)
    window_ms = WINDOWS_MS["walls"][_number_in(plan_file(folder, YARD)) % 2]
    in_windows(plan.receive("cut", MILL), Notebook(folder, YARD), *window_ms).sink("walls")
    return plan


def gauge(folder: Path) -> Plan:
    plan = Plan(GAUGE)
    window_ms = WINDOWS_MS["means"][_number_in(plan_file(folder, GAUGE)) % 2]
    levels = plan.source("levels", lambda: numbered(folder, GAUGE, LEVELS_PER_S), live=True)
    in_windows(levels, Notebook(folder, GAUGE), *window_ms).sink("means")
    return plan


PLANS = {QUARRY: quarry, MILL: mill, YARD: yard, GAUGE: gauge}
SINKS = ("loads", "heaps", "blocks", "walls", "means")


def traffic(seed: int) -> Iterator[tuple[int, Report]]:
    """The position reports of a run."""
    return reports(CARS, ROUNDS, seed, STANDING)


def paced_traffic(folder: Path, seed: int, over_s: float) -> Iterator[tuple[int, Report]]:
    """The same, spread over so many seconds; what is left at the end comes at once."""
    items = list(traffic(seed))
    begun = time.monotonic()
    for place, item in enumerate(items):
        while (ahead_s := place * over_s / len(items) - (time.monotonic() - begun)) > 0 and not end_file(
            folder
        ).exists():
            time.sleep(min(ahead_s, _LOOK_S))
        yield item
    while not end_file(folder).exists():
        time.sleep(_LOOK_S)


def app_file(folder: Path, agent: str) -> Path:
    """An app of the works."""
    path = folder / f"{agent}_app.py"
    path.write_text(
        f"from pathlib import Path\n\nfrom tests.faults.chain import works\n\nFOLDER = Path({str(folder)!r})\n\n\n"
        f"def build():\n    return works.{agent}(FOLDER)\n\n\n"
        "def main(agent):\n    works.Notebook(FOLDER, agent.name).life(agent.epoch.nonce)\n"
    )
    return path


def roadside_app(folder: Path, seed: int, over_s: float) -> Path:
    """The accident query's first half, on the traffic of a seed."""
    path = folder / "roadside_app.py"
    path.write_text(
        "from pathlib import Path\n\nfrom edge_agent.queries.split import accidents_roadside as query\n"
        "from edge_agent.stream import Plan\nfrom tests.faults.chain.works import paced_traffic\n\n\n"
        "def build():\n"
        f"    plan = Plan({ROADSIDE!r})\n"
        f"    items = lambda: paced_traffic(Path({str(folder)!r}), {seed}, {over_s})\n"
        "    reports = plan.source('reports', items, live=True)\n"
        f"    query.stopped_cars(reports).send('stopped-cars', to=[{CENTER!r}])\n"
        "    return plan\n"
    )
    return path


def _number_in(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0

"""The graph against the notebooks of those who made it: every result that was made is there with exactly what it came
from, or may be missing: it was younger than the flush interval when its agent was killed, or lay on a card that was
wiped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge_agent.queries import linear_road_accidents
from edge_agent.stream import run
from tests.faults.chain.graph_judge import Graph, Result
from tests.faults.chain.stage import FLUSH_S, Incident, Stage
from tests.faults.chain.works import CENTER, GAUGE, MILL, QUARRY, YARD, is_hard, notes_file, traffic
from tests.system.split.alerts import found_by_one, values_of

BUSY_S = 1.5
"""How much later than its flush interval an agent may write, on a machine that runs all of this and more at once."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Made:
    """A result as its worker has noted it."""

    at_ns: int
    numbers: list[int]


@dataclass(slots=True)
class Notes:
    """A notebook."""

    took: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The time that a number was given, and when that was noted."""
    made: dict[str, Made] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """What was found missing, and why that may be."""

    results: int = 0
    lost_at_kills: int = 0
    lost_with_cards: int = 0
    incomplete: int = 0


def read_notes(folder: Path, agent: str) -> Notes:
    """What a worker has noted. The last line may be in the making."""
    notes = Notes()
    path = notes_file(folder, agent)
    for line in (path.read_text() if path.exists() else "").split("\n")[:-1]:
        word, *values = line.split(" ")
        if word == "took":
            number, ts, at_ns = map(int, values)
            assert number not in notes.took, f"{agent} has taken {number} twice"
            notes.took[number] = ts, at_ns
        else:
            mark, at, numbers = values
            notes.made[mark] = Made(int(at), [int(each) for each in numbers.split(",")])
    return notes


class TruthJudge:
    """Compares the notebooks of one run with its graph."""

    def __init__(self, stage: Stage, graph: Graph) -> None:
        self._stage = stage
        self._graph = graph
        self.tally = Tally()

    def findings(self) -> Iterator[str]:
        """What is wrong; nothing, if everything is as it should be."""
        notes = {agent: read_notes(self._stage.folder, agent) for agent in (QUARRY, YARD, GAUGE)}
        for agent, stream in ((QUARRY, "rocks"), (GAUGE, "levels")):
            yield from self._numbers(agent, stream, notes[agent])
        yield from self._windows(QUARRY, notes[QUARRY], ("loads", "heaps"))
        yield from self._windows(YARD, notes[YARD], ("walls",))
        yield from self._windows(GAUGE, notes[GAUGE], ("means",))
        yield from self._blocks(notes[QUARRY])
        yield from self._accidents()

    def _numbers(self, agent: str, stream: str, notes: Notes) -> Iterator[str]:
        """Every reading is one that was taken, as it was taken, and once."""
        found: Counter[int] = Counter()
        for ts, said in self._readings_of(agent):
            number = said["number"]
            found[number] += 1
            if notes.took.get(number, (None, 0))[0] != ts:
                yield f"{agent}/{stream}: number {number} is of {ts}, and was taken at {notes.took.get(number)}"
        twice = [number for number, times in found.items() if times > 1]
        if twice:
            yield f"{agent}/{stream}: {len(twice)} numbers are there twice, such as {twice[:_SHOWN]}"

    def _readings_of(self, agent: str) -> list[tuple[int, dict[str, int]]]:
        return [said for each, said in self._graph.readings.items() if self._graph.agent_of[each] == agent]

    def _windows(self, agent: str, notes: Notes, streams: Sequence[str]) -> Iterator[str]:
        found: dict[str, Result] = {}
        for result in self._graph.of(agent, *streams):
            mark = result.said["mark"]
            if mark in found:
                yield f"{agent}: {mark} is there twice"
            found[mark] = result
            made = notes.made.get(mark)
            if made is None or made.numbers != result.said["numbers"]:
                yield f"{agent}: {result.said} is not what was made: {made}"
                continue
            yield from self._came_from(result, made.numbers)
        missing = {mark: made.at_ns for mark, made in notes.made.items() if mark not in found}
        there = [notes.made[mark].at_ns for mark in found if mark in notes.made]
        yield from self._excused(f"{agent}: results", agent, missing, there, ("kill",))

    def _blocks(self, notes: Notes) -> Iterator[str]:
        found: dict[int, Result] = {}
        for result in self._graph.of(MILL, "blocks"):
            number = result.said["number"]
            if number in found:
                yield f"{MILL}: block {number} is there twice"
            found[number] = result
            if result.said != {"number": number, "square": number**2}:
                yield f"{MILL}: {result.said} is no block"
            yield from self._came_from(result, [number])
        due = {number: at_ns for number, (_, at_ns) in notes.took.items() if is_hard({"number": number})}
        if found.keys() - due.keys():
            yield f"{MILL}: blocks of stones that nobody took: {sorted(found.keys() - due.keys())[:_SHOWN]}"
        missing = {str(number): at_ns for number, at_ns in due.items() if number not in found}
        there = [due[number] for number in found if number in due]
        yield from self._excused(f"{MILL}: blocks", QUARRY, missing, there, ("kill", "sleep"))

    def _came_from(self, result: Result, numbers: list[int]) -> Iterator[str]:
        """Exactly these; if something was lost on the way, the others."""
        self.tally.results += 1
        of = sorted(self._graph.readings[each][1]["number"] for each in result.sources)
        name = f"{result.agent}/{result.stream} {result.said}"
        if not result.is_incomplete:
            if of != sorted(numbers):
                yield f"{name} comes from {of} in the graph"
            return
        self.tally.incomplete += 1
        if not self._stage.wiped:
            yield f"{name} is incomplete, and no card was wiped"
        elif len(of) + len(result.lost) != len(numbers) or not set(of) < set(numbers):
            yield f"{name} comes from {of} and {len(result.lost)} lost ones in the graph"

    def _excused(
        self, what: str, agent: str, missing: dict[str, int], there: Sequence[int], kinds: Sequence[str]
    ) -> Iterator[str]:
        """Nothing is missing but what was too young at a kill, or the last of what lay on a card that was wiped."""
        incidents = [each for each in self._stage.incidents if each.agent == agent and each.kind in kinds]
        wiped_at = self._stage.wiped.get(agent, [])
        unexcused: list[str] = []
        for name, at_ns in missing.items():
            if any(_is_young(at_ns, incident) for incident in incidents):
                self.tally.lost_at_kills += 1
            elif any(at_ns < wipe and not any(at_ns < each < wipe for each in there) for wipe in wiped_at):
                self.tally.lost_with_cards += 1
            else:
                unexcused.append(name)
        if unexcused:
            yield f"{what}: {len(unexcused)} of {len(missing) + len(there)} are missing, such as {unexcused[:_SHOWN]}"

    def _accidents(self) -> Iterator[str]:
        """What a query finds on two devices that nobody kills is what it finds in one process."""
        inputs = {"reports": traffic(self._stage.schedule.seed)}
        expected = sorted(found_by_one(run(linear_road_accidents.build(), inputs), "accidents"), key=repr)
        found = sorted(
            (
                (
                    each.ts,
                    values_of(each.said),
                    sorted((ts, values_of(said)) for ts, said in (self._graph.readings[one] for one in each.sources)),
                )
                for each in self._graph.of(CENTER, "accidents")
            ),
            key=repr,
        )
        self.tally.results += len(found)
        if not expected:
            yield "there is no accident in this traffic"
        if found != expected:
            yield f"{CENTER}: {len(found)} accidents, {len(expected)} in one process, and they are not the same"


def _is_young(at_ns: int, incident: Incident) -> bool:
    return incident.at_ns - (FLUSH_S + BUSY_S) * 1e9 < at_ns < incident.until_ns

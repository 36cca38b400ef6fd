"""The graph against the notebooks of those who made it: every result that was made is there with exactly what it came
from, or may be missing: it was younger than the flush interval when its agent was killed, or lay on a card that was
wiped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edge_agent.queries import linear_road_accidents
from edge_agent.stream import Loopback, run
from protocol.records import Gap
from tests.faults.chain.graph_judge import Graph, Result
from tests.faults.chain.stage import FLUSH_S, Incident, Stage
from tests.faults.chain.works import (
    CENTER,
    GAUGE,
    MILL,
    PLANS,
    QUARRY,
    SINKS,
    WINDOWS_MS,
    YARD,
    is_hard,
    noise,
    notes_file,
    traffic,
)
from tests.system.split.alerts import Alert, found_by_one, values_of

BUSY_S = 1.5
"""How much later than its flush interval an agent may write, on a machine that runs all of this and more at once."""
_SHOWN = 5
_BEHIND = {QUARRY: {QUARRY}, MILL: {MILL, QUARRY}, YARD: {YARD, MILL, QUARRY}, GAUGE: {GAUGE}}
"""Those whose losses make results of an agent incomplete."""
_GIVEN_UP = re.compile(
    r"given up by (?P<sender>\S+): \d+ messages of (?P<stream>\S+) with (?P<tuples>\d+) tuples at most"
)


@dataclass(frozen=True, slots=True)
class Made:
    """A result as its worker has noted it."""

    at_ns: int
    numbers: list[int]


@dataclass(slots=True)
class Notes:
    """A notebook."""

    lives: dict[int, int] = field(default_factory=dict)
    """The nonces of its agent, and when each was noted."""
    took: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The time that a number was given, and when that was noted."""
    made: dict[str, Made] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """What was found missing, and why that may be."""

    lost_at_kills: int = 0
    lost_with_cards: int = 0
    named_missing: int = 0
    incomplete: int = 0
    compared: int = 0
    """Groups of agents that were compared with one process."""


def read_notes(folder: Path, agent: str) -> Notes:
    """What a worker has noted. The last line may be in the making."""
    notes = Notes()
    path = notes_file(folder, agent)
    for line in (path.read_text() if path.exists() else "").split("\n")[:-1]:
        word, *values = line.split(" ")
        if word == "life":
            notes.lives[int(values[0], 16)] = int(values[1])
        elif word == "took":
            number, ts, at_ns = map(int, values)
            assert number not in notes.took, f"{agent} has taken {number} twice"
            notes.took[number] = ts, at_ns
        else:
            mark, at, numbers = values
            notes.made[mark] = Made(int(at), [int(each) for each in numbers.split(",")])
    return notes


@cache
def accidents_in_one_process(seed: int) -> list[Alert]:
    """What the accident query finds in the traffic of a run."""
    return found_by_one(run(linear_road_accidents.build(), {"reports": traffic(seed)}), "accidents")


class TruthJudge:
    """Compares the notebooks of one run with its graph."""

    def __init__(self, stage: Stage, graph: Graph, gaps: Sequence[tuple[str, Gap]] = ()) -> None:
        self._stage = stage
        self._graph = graph
        there = {(each.nonce, each.stream, each.seq) for each in graph.results}
        missing = {
            (agent, gap.nonce, lost.name, seq)
            for agent, gap in gaps
            for lost in gap.tuples
            for seq in range(lost.first, lost.last + 1)
            if (gap.nonce, lost.name, seq) not in there
        }
        self._named = Counter((agent, stream) for agent, _, stream, _ in missing)
        """How many tuples of a stream are missing as gaps name them; those that a sender has given up are named by its
        receiver."""
        for agent, gap in gaps:
            given_up = _GIVEN_UP.fullmatch(gap.reason)
            if given_up:
                self._named[given_up["sender"], f"{given_up['stream']} for {agent}"] += int(given_up["tuples"])
        self._notes = {agent: read_notes(stage.folder, agent) for agent in (QUARRY, MILL, YARD, GAUGE)}
        self.tally = Tally()

    def findings(self) -> Iterator[str]:
        """What is wrong; nothing, if everything is as it should be."""
        for agent, notes in self._notes.items():
            yield from self._lives(agent, notes)
        for agent in (QUARRY, GAUGE):
            yield from self._numbers(agent, self._notes[agent])
        yield from self._windows(QUARRY, "loads", "heaps")
        yield from self._windows(YARD, "walls")
        yield from self._windows(GAUGE, "means")
        yield from self._blocks()
        yield from self._walls()
        yield from self._accidents()
        yield from self._unhurt()

    def _lives(self, agent: str, notes: Notes) -> Iterator[str]:
        """Nobody else speaks in the name of an agent."""
        strange = {result.nonce for result in self._graph.results if result.agent == agent}.difference(notes.lives)
        if strange:
            yield f"{agent}: starts that it knows nothing of: {strange}"

    def _numbers(self, agent: str, notes: Notes) -> Iterator[str]:
        """Every reading is one that was taken, as it was taken, and once."""
        found: Counter[int] = Counter()
        for each, (ts, said) in self._graph.readings.items():
            if self._graph.agent_of[each] == agent:
                number = said["number"]
                found[number] += 1
                if notes.took.get(number, (None, 0))[0] != ts:
                    yield f"{agent}: number {number} is of {ts}, and was taken as {notes.took.get(number)}"
                if said["noise"] != noise(self._stage.folder, agent, number):
                    yield f"{agent}: number {number} says something else than was taken"
        twice = [number for number, times in found.items() if times > 1]
        if twice:
            yield f"{agent}: {len(twice)} numbers are there twice, such as {twice[:_SHOWN]}"

    def _windows(self, agent: str, *streams: str) -> Iterator[str]:
        """Results of windows by the marks that they were given."""
        notes, found = self._notes[agent], dict[str, Result]()
        for result in self._graph.of(agent, *streams):
            mark = result.said["mark"]
            if mark in found:
                yield f"{agent}: {mark} is there twice"
            found[mark] = result
            made = notes.made.get(mark)
            if made is None or made.numbers != result.said["numbers"]:
                yield f"{agent}: {result.said} is not what was made: {made}"
                continue
            if not self._is_at_the_end_of_a_window(notes, result, made.numbers):
                yield f"{agent}: {result.said} is of {result.ts}, which is not when a window of these ends"
            yield from self._came_from(result, made.numbers)
        missing = {mark: made.at_ns for mark, made in notes.made.items() if mark not in found}
        there = [notes.made[mark].at_ns for mark in found if mark in notes.made]
        missing = self._without_young(missing, there, agent, "kill")
        missing = self._without_wiped(missing, there, self._stage.wiped.get(agent, []))
        missing = self._without_named(missing, agent, *streams)
        yield from _told_missing(f"{agent}: results", missing, len(there))

    def _is_at_the_end_of_a_window(self, notes: Notes, result: Result, numbers: Sequence[int]) -> bool:
        """Whether some plan of its agent has a window that ends then and holds them all."""
        taken = self._notes[QUARRY] if result.agent == YARD else notes
        times = [taken.took[each][0] for each in numbers]
        return any(
            result.ts % advance_ms == 0 and result.ts - size_ms <= min(times) and max(times) < result.ts
            for size_ms, advance_ms in WINDOWS_MS[result.stream]
        )

    def _blocks(self) -> Iterator[str]:
        """Of every hard stone there is a block. Once, but a mill that was wiped may get stones a second time."""
        took, wiped_at = self._notes[QUARRY].took, self._stage.wiped.get(MILL, [])
        found: dict[int, list[Result]] = {}
        for result in self._graph.of(MILL, "blocks"):
            number = result.said["number"]
            found.setdefault(number, []).append(result)
            if result.said != {"number": number, "square": number**2}:
                yield f"{MILL}: {result.said} is no block"
            if result.ts != took.get(number, (None, 0))[0]:
                yield f"{MILL}: {result.said} is of {result.ts}, and the stone of {took.get(number)}"
            yield from self._came_from(result, [number])
        due = {number: at_ns for number, (_, at_ns) in took.items() if is_hard({"number": number})}
        if found.keys() - due.keys():
            yield f"{MILL}: blocks of stones that nobody took: {sorted(found.keys() - due.keys())[:_SHOWN]}"
        for number, results in found.items():
            if len({each.nonce for each in results}) != len(results) or len(results) > 1 + len(wiped_at):
                yield f"{MILL}: block {number} is there {len(results)} times, by {len(wiped_at) + 1} cards"
        missing = {str(number): at_ns for number, at_ns in due.items() if number not in found}
        there = [due[number] for number in found if number in due]
        missing = self._without_young(missing, there, QUARRY, "kill", "sleep")
        missing = self._without_wiped(missing, there, self._stage.wiped.get(QUARRY, []))
        for wiped_ns in wiped_at:
            first, last = self._between_cards(found, wiped_ns)
            lost = [each for each, at_ns in missing.items() if first < int(each) < last and at_ns < wiped_ns]
            self.tally.lost_with_cards += len(lost)
            missing = {each: at_ns for each, at_ns in missing.items() if each not in lost}
        missing = self._without_named(missing, QUARRY, f"stones for {MILL}")
        yield from _told_missing(f"{MILL}: blocks", missing, len(there))

    def _walls(self) -> Iterator[str]:
        """Every block of the mill is in a wall of the yard, unless that was stopped with open windows."""
        if any(each.agent == YARD and each.kind in ("kill", "sleep") for each in self._stage.incidents):
            return
        made = {each.numbers[0]: each.at_ns for each in self._notes[MILL].made.values()}
        used = {number for wall in self._graph.of(YARD, "walls") for number in wall.said["numbers"]}
        cut = {result.said["number"] for result in self._graph.of(MILL, "blocks")}
        missing = {str(number): made.get(number, 0) for number in cut - used}
        there = [made[each] for each in used]
        missing = self._without_young(missing, there, MILL, "kill")
        missing = self._without_wiped(missing, there, self._stage.wiped.get(MILL, []))
        yield from _told_missing(f"{YARD}: blocks in walls", missing, len(used))

    def _between_cards(self, found: Mapping[int, Sequence[Result]], wiped_ns: int) -> tuple[float, float]:
        """Between the last block of the mill that has left a card and the first one of the next card."""
        lives = self._notes[MILL].lives
        before = [number for number, of in found.items() if any(lives[each.nonce] < wiped_ns for each in of)]
        after = [number for number, of in found.items() if any(lives[each.nonce] > wiped_ns for each in of)]
        return max(before, default=-inf), min(after, default=inf)

    def _came_from(self, result: Result, numbers: list[int]) -> Iterator[str]:
        """Exactly these; if something was lost on the way, the others."""
        sources = [*result.sources, *result.late]
        of = sorted(self._graph.readings[each][1]["number"] for each in sources if each in self._graph.readings)
        unsaid, lost = len(sources) - len(of), len(result.lost)
        name = f"{result.agent}/{result.stream} {result.said}"
        self.tally.incomplete += result.is_incomplete
        behind = _BEHIND[result.agent]
        named = sum(count for (agent, _), count in self._named.items() if agent in behind)
        if unsaid > named:
            yield f"{name} comes from {unsaid} readings of which nobody knows what they said"
        elif unsaid + lost > named and behind.isdisjoint(self._stage.wiped):
            yield f"{name} lacks {unsaid + lost} readings: no card of {behind} was wiped, and {named} are named"
        if result.is_incomplete != bool(lost) or len(of) + unsaid + lost != len(numbers) or not set(of) <= set(numbers):
            yield f"{name} comes from {of}, {unsaid} readings that say nothing and {lost} lost ones in the graph"

    def _without_young(
        self, missing: Mapping[str, int], there: Sequence[int], agent: str, *kinds: str
    ) -> dict[str, int]:
        """Without what was too young to be on disk when the agent was killed, or stopped in the middle of it. Who is
        told to stop still writes what it has, but for the last one, which it was about to take."""
        young: set[str] = set()
        for one in self._stage.incidents:
            if one.agent == agent and one.kind in kinds:
                found = {each: at_ns for each, at_ns in missing.items() if _is_young(at_ns, one)}
                if one.kind == "sleep":
                    last_ns = max((at_ns for at_ns in (*there, *found.values()) if at_ns < one.until_ns), default=0)
                    found = {each: at_ns for each, at_ns in found.items() if at_ns == last_ns}
                young |= found.keys()
        self.tally.lost_at_kills += len(young)
        return {each: at_ns for each, at_ns in missing.items() if each not in young}

    def _without_wiped(
        self, missing: Mapping[str, int], there: Sequence[int], wiped_at: Sequence[int]
    ) -> dict[str, int]:
        """Without the last of what lay on a card when it was wiped: nothing that came after it has left the card."""
        lost = {
            each
            for each, at_ns in missing.items()
            if any(at_ns < wiped_ns and not any(at_ns < one < wiped_ns for one in there) for wiped_ns in wiped_at)
        }
        self.tally.lost_with_cards += len(lost)
        return {each: at_ns for each, at_ns in missing.items() if each not in lost}

    def _without_named(self, missing: dict[str, int], agent: str, *streams: str) -> dict[str, int]:
        """Without what gaps name: it is not known which results those are, but how many."""
        if len(missing) > sum(self._named[agent, stream] for stream in streams):
            return missing
        self.tally.named_missing += len(missing)
        return {}

    def _unhurt(self) -> Iterator[str]:
        """Agents that were never killed, nor put to sleep, deliver what they do in one process."""
        hurt = {each.agent for each in self._stage.incidents if each.kind in ("kill", "sleep")}
        hurt |= {agent for agent, _ in self._named}
        for agents in ((QUARRY, MILL, YARD), (GAUGE,)):
            if hurt.isdisjoint(agents):
                self.tally.compared += 1
                yield from self._in_one_process(agents)

    def _in_one_process(self, agents: Sequence[str]) -> Iterator[str]:
        with TemporaryDirectory() as folder:
            plans = {agent: PLANS[agent](Path(folder)) for agent in agents}
            source = {QUARRY: "rocks", GAUGE: "levels"}[agents[0]]
            took = [(ts, {"number": number}) for number, (ts, _) in self._notes[agents[0]].took.items()]
            results = Loopback(plans).run({agents[0]: {source: took}})
        expected = Counter(
            (agent, each.stream.name, each.ts, *_numbers_of(each.payload))
            for agent, told in results.items()
            for each in told.deliveries
            if each.stream.name in SINKS
        )
        found = Counter(
            (each.agent, each.stream, each.ts, *_numbers_of(each.said))
            for agent in agents
            for each in self._graph.of(agent, *SINKS)
        )
        for what, difference in (("missing", expected - found), ("too many", found - expected)):
            if difference:
                some = list(difference)[:_SHOWN]
                yield f"{', '.join(agents)}: {difference.total()} results {what}, compared with one process: {some}"

    def _accidents(self) -> Iterator[str]:
        """What a query finds on two devices that nobody kills is what it finds in one process."""
        expected = sorted(accidents_in_one_process(self._stage.schedule.seed), key=repr)
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
        if not expected:
            yield "there is no accident in this traffic"
        if found != expected:
            yield f"{CENTER}: {len(found)} accidents, {len(expected)} in one process, and they are not the same"


def _numbers_of(said: dict[str, Any]) -> list[int]:
    """Those that a result tells of itself."""
    return said["numbers"] if "numbers" in said else [said["number"], said["square"]]


def _told_missing(what: str, missing: Mapping[str, int], there: int) -> Iterator[str]:
    if missing:
        yield f"{what}: {len(missing)} of {len(missing) + there} are missing, such as {list(missing)[:_SHOWN]}"


def _is_young(at_ns: int, incident: Incident) -> bool:
    return incident.at_ns - (FLUSH_S + BUSY_S) * 1e9 < at_ns < incident.until_ns

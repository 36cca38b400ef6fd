"""The judges find what is wrong: each of these graphs is as it should be but for one thing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from collector.store import open_store
from protocol.records import Gap, Lost
from tests.faults.chain.graph_judge import Graph, Result, differences
from tests.faults.chain.schedule import Schedule
from tests.faults.chain.stage import Incident, Stage
from tests.faults.chain.truth_judge import TruthJudge, accidents_in_one_process
from tests.faults.chain.works import CENTER, GAUGE, MILL, QUARRY, YARD, notes_file
from tests.support.pipeline import Pipeline
from tests.support.told_log import Log
from tests.support.whole_graph import every_edge
from tests.system.graph.city import City

SECOND_NS = 1_000_000_000
NONCES = {QUARRY: 1, MILL: 2, YARD: 3, GAUGE: 4, CENTER: 5}
STONES = 30


class Day:
    """A day at the works on which nothing happens, one stone a second: its notebooks, and its graph."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder, Schedule(1, 1.0), print)
        self.graph = Graph()
        self._ids = itertools.count(1)
        said = [{"number": number, "noise": b""} for number in range(STONES)]
        self._stones = {number: self._reading(QUARRY, number * 10, said[number]) for number in range(STONES)}
        took = "".join(f"took {number} {number * 10} {number * SECOND_NS}\n" for number in self._stones)
        made = ""
        for load in range(STONES // 10):
            numbers = list(range(10 * load, 10 * load + 10))
            mark = f"m-{load}"
            made += f"made {mark} {(10 * load + 10) * SECOND_NS} {','.join(map(str, numbers))}\n"
            sources, end_ms = [self._stones[each] for each in numbers], load // 2 * 200 + 200
            self._result(QUARRY, "loads", {"mark": mark, "numbers": numbers}, sources, end_ms)
        notes_file(folder, QUARRY).write_text(f"life 1 0\n{took}{made}")
        hard = [number for number in self._stones if number % 3]
        cut = "".join(f"made b-{number} {number * SECOND_NS} {number}\n" for number in hard)
        notes_file(folder, MILL).write_text(f"life 2 0\n{cut}")
        wall = f"made w-0 {STONES * SECOND_NS} {','.join(map(str, hard))}\n"
        notes_file(folder, YARD).write_text(f"life 3 0\n{wall}")
        notes_file(folder, GAUGE).write_text("life 4 0\n")
        for number in hard:
            self._result(MILL, "blocks", {"number": number, "square": number**2}, [self._stones[number]], number * 10)
        self._result(YARD, "walls", {"mark": "w-0", "numbers": hard}, [self._stones[number] for number in hard], 300)
        for ts, values, readings in accidents_in_one_process(1):
            sources = [self._reading("accidents-roadside", at, dict(enumerate(said))) for at, said in readings]
            self._result(CENTER, "accidents", dict(enumerate(values)), sources, ts)

    def _reading(self, agent: str, ts: int, said: object) -> int:
        number = next(self._ids)
        self.graph.readings[number] = ts, said
        self.graph.agent_of[number] = agent
        return number

    def _result(self, agent: str, stream: str, said: object, sources: list[int], ts: int) -> None:
        result = Result(next(self._ids), ts, agent, NONCES[agent], stream, said, False, sources, [], [])
        self.graph.results.append(result)

    def happened(self, kind: str, at_s: float, until_s: float | None = None, agent: str = QUARRY) -> None:
        """Afterwards nobody compares the agent with one process."""
        at_ns, until_ns = int(at_s * SECOND_NS), int((until_s or at_s) * SECOND_NS)
        self.stage.incidents.append(Incident(agent, kind, at_ns, until_ns))

    def without(self, is_missing: Callable[[Result], bool]) -> None:
        self.graph.results = [each for each in self.graph.results if not is_missing(each)]

    def findings(self, *gaps: tuple[str, Gap]) -> list[str]:
        return list(TruthJudge(self.stage, self.graph, gaps).findings())


@pytest.fixture
def day(tmp_path: Path) -> Day:
    made = Day(tmp_path)
    made.happened("kill", 1_000.0)  # long afterwards
    return made


def block(number: int) -> Callable[[Result], bool]:
    return lambda result: result.stream == "blocks" and result.said["number"] == number


def load(number: int) -> Callable[[Result], bool]:
    return lambda result: result.stream == "loads" and result.said["mark"] == f"m-{number}"


def test_a_day_on_which_nothing_happens(day: Day) -> None:
    assert day.findings() == []


@pytest.mark.parametrize("is_missing", [block(10), load(1)], ids=["block", "load"])
def test_something_is_missing(day: Day, is_missing: Callable[[Result], bool]) -> None:
    day.without(is_missing)
    assert len(day.findings()) == 1 and "missing" in day.findings()[0]


@pytest.mark.parametrize(("at_s", "is_young"), [(10.5, True), (13.0, False), (9.9, False)])
def test_what_was_young_at_a_kill_may_be_missing(day: Day, at_s: float, is_young: bool) -> None:
    day.without(block(10))
    day.happened("kill", at_s)
    assert (day.findings() == []) == is_young


def test_who_is_told_to_stop_loses_the_one_in_the_making_only(day: Day) -> None:
    day.without(block(11))
    day.happened("sleep", 11.5)
    assert day.findings() == []
    day.without(block(10))
    assert len(day.findings()) == 1 and "missing, such as ['10']" in day.findings()[0]


def test_who_is_told_to_stop_loses_no_more_though_it_stops_late(day: Day) -> None:
    for number in range(13, 20):
        day.without(block(number))
    day.happened("sleep", 11.5, 20.0)
    (finding,) = day.findings()
    assert "'13'" in finding and "'17'" in finding and "'19'" not in finding


def test_what_a_reading_says_must_be_what_was_taken(day: Day) -> None:
    reading = next(iter(day.graph.readings))
    ts, said = day.graph.readings[reading]
    day.graph.readings[reading] = ts, {**said, "noise": b"garbage"}
    assert day.findings() == ["quarry: number 0 says something else than was taken"]


def test_who_is_told_to_stop_leaves_no_hole(day: Day) -> None:
    day.without(block(10))
    day.happened("sleep", 11.5)
    assert len(day.findings()) == 1 and "missing, such as ['10']" in day.findings()[0]


def test_what_came_after_a_card_of_the_mill_was_wiped_did_not_lie_on_it(day: Day) -> None:
    for number in range(21, 30):
        day.without(block(number))
    day.stage.wiped[MILL] = [int(24.5 * SECOND_NS)]
    (finding,) = day.findings()
    assert "'25'" in finding and "'22'" not in finding


@pytest.mark.parametrize(("missing", "is_last"), [(range(20, 25), True), (range(20, 22), False)])
def test_the_last_of_a_wiped_card_may_be_missing_but_no_hole(day: Day, missing: range, is_last: bool) -> None:
    for number in missing:
        day.without(block(number))
    day.stage.wiped[QUARRY] = [int(24.5 * SECOND_NS)]
    assert (day.findings() == []) == is_last


def test_as_many_may_be_missing_as_gaps_name(day: Day) -> None:
    day.without(load(1))
    assert day.findings((QUARRY, Gap("dropped", 1, 1, tuples=(Lost("rocks", 0, 5),)))) != []
    assert day.findings((QUARRY, Gap("dropped", 1, 1, tuples=(Lost("loads", 1, 1),)))) == []
    for number in (10, 11, 13):
        day.without(block(number))
    named = [(QUARRY, Gap("dropped", 1, 1, tuples=(Lost("loads", 1, 1),)))]
    reason = f"given up by {QUARRY}: 1 messages of stones with {{}} tuples at most"
    assert day.findings(*named, (MILL, Gap(reason.format(2), 1, 1))) != []
    assert day.findings(*named, (MILL, Gap(reason.format(3), 1, 1))) == []


def test_what_is_named_twice_is_missing_once(day: Day) -> None:
    gap = QUARRY, Gap("dropped", 1, 1, tuples=(Lost("loads", 1, 1),))
    day.without(load(1))
    assert day.findings(gap, gap) == []
    day.without(load(2))
    assert day.findings(gap, gap) != []


def test_what_is_named_and_there_excuses_nothing(day: Day) -> None:
    (named,) = filter(load(0), day.graph.results)
    day.without(load(1))
    assert day.findings((QUARRY, Gap("dropped", 1, 1, tuples=(Lost("loads", named.seq, named.seq),)))) != []


@pytest.mark.parametrize("is_wrong", [load(1), block(4)], ids=["load", "block"])
def test_a_result_of_another_time(day: Day, is_wrong: Callable[[Result], bool]) -> None:
    (result,) = filter(is_wrong, day.graph.results)
    result.ts += 200
    (finding,) = day.findings()
    assert f"is of {result.ts}" in finding


def test_no_more_may_be_incomplete_than_gaps_name(day: Day) -> None:
    (result,) = filter(load(0), day.graph.results)
    result.is_incomplete, result.lost, result.sources = True, [998, 999], result.sources[2:]
    assert day.findings((QUARRY, Gap("dropped", 1, 1, tuples=(Lost("rocks", 0, 0),)))) != []
    assert day.findings((QUARRY, Gap("dropped", 1, 1, tuples=(Lost("rocks", 0, 1),)))) == []


def test_something_is_there_twice(day: Day) -> None:
    day.graph.results += [each for each in day.graph.results if load(2)(each) or block(4)(each)]
    assert [finding for finding in day.findings() if "twice" in finding] and len(day.findings()) == 2


def test_a_wrong_origin(day: Day) -> None:
    (result,) = filter(block(4), day.graph.results)
    (other,) = filter(block(5), day.graph.results)
    result.sources = other.sources
    assert len(day.findings()) == 1 and "comes from [5]" in day.findings()[0]


def test_an_incomplete_result_though_no_card_was_wiped(day: Day) -> None:
    (result,) = filter(load(0), day.graph.results)
    result.is_incomplete, result.lost, result.sources = True, [999], result.sources[1:]
    assert len(day.findings()) == 1 and "no card of" in day.findings()[0]
    day.stage.wiped[GAUGE] = [1]  # nothing of a load comes from there
    assert len(day.findings((GAUGE, Gap("dropped", 1, 1, tuples=(Lost("means", 0, 5),))))) == 1
    day.stage.wiped[QUARRY] = [1]
    assert day.findings() == []
    result.lost = []
    assert len(day.findings()) == 1


def test_a_block_that_came_to_nothing(day: Day, tmp_path: Path) -> None:
    (wall,) = day.graph.of(YARD, "walls")
    *numbers, last = wall.said["numbers"]
    notes = notes_file(tmp_path, YARD)
    notes.write_text(notes.read_text().replace(f",{last}\n", "\n"))
    wall.said, wall.sources = {"mark": "w-0", "numbers": numbers}, wall.sources[:-1]
    assert len(day.findings()) == 1 and "blocks in walls" in day.findings()[0]
    day.happened("kill", last + 0.5, agent=MILL)
    assert day.findings() == []


def test_an_accident_is_missing(day: Day) -> None:
    last = day.graph.of(CENTER, "accidents")[-1]
    day.graph.results.remove(last)
    assert len(day.findings()) == 1 and "accidents" in day.findings()[0]


def test_somebody_speaks_in_the_name_of_an_agent(day: Day) -> None:
    next(filter(block(4), day.graph.results)).nonce = 77
    assert len(day.findings()) == 1 and "77" in day.findings()[0]


def test_unhurt_agents_are_compared_with_one_process(tmp_path: Path) -> None:
    day = Day(tmp_path)  # its loads are smaller than those of windows
    assert [finding for finding in day.findings() if "one process" in finding]


def test_the_graph_of_a_log_is_missing_its_last_rows(tmp_path: Path) -> None:
    rounds = itertools.count()
    city = list(City(3).rounds(lambda: next(rounds) == 6))
    store, told, pipeline = f"sqlite:///{tmp_path / 'graph.db'}", Log(2), Pipeline(2, 4)
    assert differences(store, told)
    with open_store(store).writer() as writer:
        for rows in city:
            told.add(rows)
            assert differences(store, told)
            writer.write(pipeline.run(rows))
    assert differences(store, told) == []
    with closing(open_store(store).reader()) as reader:
        edge = next(every_edge(reader))
    told.deliveries[edge[1]].origins.clear()
    assert [finding for finding in differences(store, told) if "too many" in finding]

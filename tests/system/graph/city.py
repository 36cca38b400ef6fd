"""A fleet whose agents are out of step, its log on disk, and the graph that must come of it.

    car:     readings -> minutes ------------------+--> center: both -> alerts
                            \\--> hub: hours --------/
                                  \\--> hub: reports

A reading reaches an alert by two ways. The center is ahead of the hub by some rounds, the hub ahead of the car.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from collector.log import ShardWriter
from collector.store import open_store
from protocol.plan import PlanDocument
from protocol.records import END_OF_TIME, Origin
from tests.spark_jobs.rows import document, receive, send, sink, source, window
from tests.support.fleet_log import Shards, Speaker
from tests.support.pipeline import MicroBatch
from tests.support.told_log import Log
from tests.support.whole_graph import every_edge, every_late, every_sink, every_source
from threadline.graph_check import check_feed

ROUND_MS = 1_000
READINGS = 10  # of each round
_CAR = document(source("readings"), window("w", "readings", ROUND_MS), send("minutes", "w", "hub", "center"))
_HUB = document(
    receive("in", "car", "minutes"),
    window("w", "in", 4 * ROUND_MS),
    send("hours", "w", "center"),
    sink("reports", "w"),
)
_CENTER = document(
    receive("from-car", "car", "minutes"),
    receive("from-hub", "hub", "hours"),
    window("near", "from-car", 4 * ROUND_MS),
    window("far", "from-hub", 4 * ROUND_MS),
    sink("alerts", "near"),
    sink("far-alerts", "far"),
)


class City:
    """Says what happens, round by round; every agent is a few rounds behind the next one with its batches."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._shards = Shards(None)
        plans = {"car": _CAR, "hub": _HUB, "center": _CENTER}
        self._agents = {name: Speaker(self._shards, name, plan) for name, plan in plans.items()}
        self._minutes: list[Origin] = []
        self._hours: list[Origin] = []

    def rounds(self, is_over: Callable[[], bool]) -> Iterator[MicroBatch]:
        """The rows that each round adds to the log, until it is over; the last one ends everything."""
        car, hub, center = (self._agents[name] for name in ("car", "hub", "center"))
        for number in itertools.takewhile(lambda _: not is_over(), itertools.count()):
            end = (number + 1) * ROUND_MS
            step = ROUND_MS // READINGS
            readings = [car.source("readings", end - ROUND_MS + place * step) for place in range(READINGS)]
            self._minutes.append(car.deliver("minutes", end, *readings))
            car.progress("minutes", end)
            hub_origins = self._minutes[-3:]
            self._hours.append(hub.deliver("hours", end, *hub_origins))
            hub.deliver("reports", end, *hub_origins[-2:])
            hub.progress("hours", end)
            hub.progress("reports", end)
            center.deliver("alerts", end, *self._minutes[-2:], *self._hours[-2:])
            center.deliver("far-alerts", end, *self._hours[-3:], parts=2)
            center.progress("alerts", end)
            center.progress("far-alerts", end)
            self._leave([center, hub, car])
            yield self._shards.micro_batch()
        for agent, streams in ((car, ["minutes"]), (hub, ["hours", "reports"]), (center, ["alerts", "far-alerts"])):
            for stream in streams:
                agent.progress(stream, END_OF_TIME)
            agent.end()
            agent.leave()
        yield self._shards.micro_batch()

    def joined_by(self, name: str, plan: PlanDocument) -> Speaker:
        """Another agent: what it says is in the next round."""
        return Speaker(self._shards, name, plan)

    def _leave(self, ahead_first: list[Speaker]) -> None:
        """Those behind say less often that they have something."""
        for place, agent in enumerate(ahead_first):
            if self._random.random() < 1 / (1 + 2 * place):
                agent.leave()


class DiskLog:
    """The log on disk, as translators write it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[int, ShardWriter] = {}
        self.told = Log(levels=2)

    def append(self, rows: MicroBatch) -> None:
        """Rows, readable as soon as this returns."""
        self.told.add(rows)
        for shard, each in rows.items():
            self.begin(shard)
            self._writers[shard].append(each)
            self._writers[shard].commit()

    def begin(self, shard: int) -> None:
        """A translator has taken a shard."""
        if shard not in self._writers:
            self._writers[shard] = ShardWriter(self._folder, shard)
            self._writers[shard].begin(list, [])

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def differences(store: str, told: Log) -> list[str]:
    """How the graph in a store differs from the one that the log says, once everything has ended."""
    expected = {number: told.resolve(number) for number in told.sink_tuples}
    edges = {(origin, sink) for sink, of in expected.items() for origin in of.sources}
    found: list[str] = []
    with closing(open_store(store).reader()) as reader:
        found += check_feed(reader, all_labelled=True)
        found += _differ("sinks", {each.id for each in every_sink(reader)}, set(expected))
        found += _differ("sources", {each.id for each in every_source(reader)}, {origin for origin, _ in edges})
        found += _differ("edges", set(every_edge(reader)), edges)
        found += _differ("late edges", {(each.origin, each.sink) for each in every_late(reader)}, set())
        found += [f"{each} is not labelled" for each in every_sink(reader) if each.label_stamp is None]
        found += [f"{each} is flagged" for each in every_sink(reader) if each.flags]
    return found


def _differ(what: str, found: set[Any], expected: set[Any]) -> Iterator[str]:
    if found != expected:
        yield f"{what}: {len(expected - found)} missing, {len(found - expected)} too many of {len(expected)}"

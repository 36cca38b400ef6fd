"""The demo's last scenes: from the log to the live graph. Which readings caused an alert, which results a reading
touched, and which readings can still touch more."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import typer

from collector.store import StoreReader, open_store
from collector.store.vertices import Source
from edge_agent import stream
from edge_agent.queries import linear_road, linear_road_accidents, linear_road_stopped
from protocol.chunks import SEQ_BITS
from threadline.graph_check import check_feed
from threadline.lab import SparkService

Found = TypeVar("Found")
LIVE = "stops-live"
_ALERTS = ("accidents-center", "accidents")
_PATIENCE_S = 90.0
_APP = """
import time
from pathlib import Path

from edge_agent.queries.linear_road import reports, stopped_cars
from edge_agent.stream import Plan


def until_told():
    for ts, report in reports():
        if ts > {pause_ms}:
            break
        yield ts, report
    while not Path({go!r}).exists():
        time.sleep(0.05)


def build(provenance="segments"):
    plan = Plan("stops-live", provenance=provenance)
    stopped_cars(plan.source("reports", until_told, live=True)).sink("stopped")
    return plan
"""


class GraphScenes:
    """Runs an agent beside those whose results are in the log, and asks the store."""

    def __init__(self, folder: Path, gateway: str, spark: SparkService, verdict: Callable[[bool, str], None]) -> None:
        self._folder = folder
        self._gateway = gateway
        self._spark = spark
        self._verdict = verdict

    def play(self) -> None:
        typer.echo("\nSpark follows the log and keeps the live graph in a store: which readings caused what.")
        with closing(open_store(self._spark.store).reader()) as reader:
            self._alerts(reader)
            self._live(reader)
            findings = check_feed(reader, all_labelled=True)
        self._verdict(not findings, "the change feed told all of it in order: no vertex, edge or label twice")
        for finding in findings:
            typer.echo(f"      {finding}")

    def _alerts(self, reader: StoreReader) -> None:
        expected = [alert.ts for alert in stream.run(linear_road_accidents.build()).of("accidents")]
        found = _wait(lambda: _sinks(reader, *_ALERTS), lambda sinks: len(sinks) >= len(expected))
        alerts = [alert for alert in found if alert[1] in set(expected)]
        self._verdict([ts for _, ts in alerts] == expected, f"{len(alerts)} accidents found, those that were planted")
        if not alerts:
            return
        causes = [[edge.id for edge in reader.backward(alert)] for alert, _ in alerts]
        planted = {(stop.vid, stop.place) for stop in linear_road.stops()}
        said = [[_said(reader, each) for each in of] for of in causes]
        where = [[(each.vid, linear_road.place_of_report(each)) for each in of] for of in said]
        self._verdict(
            all(len(of) == 8 and planted.issuperset(of) for of in where),
            "each comes from 8 readings of the other device: four of each of two cars where they were planted",
        )
        names = _names(reader)
        first, ts = alerts[0]
        typer.echo(f"      {names(first)} at {ts} ms, because of")
        for each, report in list(zip(causes[0], said[0], strict=True))[:3]:
            typer.echo(f"        {names(each)}  car {report.vid}, speed {report.speed}")
        typer.echo(f"        and {len(causes[0]) - 3} more")
        reading = max((each for of in causes for each in of), key=lambda each: len(reader.forward(each)))
        results = reader.forward(reading)
        self._verdict(
            all(reading in of for (alert, _), of in zip(alerts, causes, strict=True) if alert in results),
            f"the reading {names(reading)} touched {len(results)} alerts: {', '.join(map(names, results))}",
        )

    def _live(self, reader: StoreReader) -> None:
        long_stop = max(linear_road.stops(), key=lambda stop: stop.reports)
        pause_ms = long_stop.first_ms + 6 * linear_road.ROUND_MS
        typer.echo(f"\nA third device, {LIVE}, is still at work; it has seen the traffic up to {pause_ms} ms.")
        go = self._folder / "go-on"
        app = self._folder / "stops_live.py"
        app.write_text(_APP.format(pause_ms=pause_ms, go=str(go)))
        command = [sys.executable, "-m", "edge_agent.cli", "run", str(app), "--name", LIVE, "--drain", "30"]
        agent = subprocess.Popen(
            [*command, "--gateway", self._gateway, "--spool", str(self._folder / LIVE)], stderr=subprocess.DEVNULL
        )
        try:
            seen = [(ts, report) for ts, report in linear_road.reports() if ts <= pause_ms]
            told = stream.run(linear_road_stopped.build(), {"reports": seen})
            due = [result.ts for result in told.of("stopped") if result.ts <= pause_ms]
            stops = _wait(lambda: _sinks(reader, LIVE, "stopped"), lambda sinks: len(sinks) >= len(due))
            self._verdict([ts for _, ts in stops] == due, f"{len(stops)} stopped cars found so far, as on one device")
            alive, expired = _wait(lambda: _readings(reader), lambda counts: counts[0] > 0)
            self._verdict(
                alive > 0,
                f"{alive} of its readings are alive (they can still touch more), {expired} of all have expired",
            )
        finally:
            go.touch()
            try:
                agent.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                agent.kill()
        alive, expired = _wait(lambda: _readings(reader), lambda counts: counts[0] == 0)
        self._verdict(alive == 0, f"it has ended: {alive} readings are alive, {expired} have expired")


def _sinks(reader: StoreReader, agent: str, name: str) -> list[tuple[int, int]]:
    """The sink tuples of a stream, and their times, if they are complete: what a tuple came from may be told later."""
    numbers = [each.number for each in reader.streams(agent=agent, name=name)]
    found = reader.sinks(streams=numbers, limit=10_000)
    return [(sink.id, sink.ts) for sink in found if sink.label_stamp is not None]


def _readings(reader: StoreReader) -> tuple[int, int]:
    """How many source vertices are alive, and how many have expired."""
    counters = reader.counters()
    expired = counters.get("source_labels", 0)
    return counters.get("sources", 0) - expired, expired


def _names(reader: StoreReader) -> Callable[[int], str]:
    names = {each.number: f"{each.agent}/{each.name}@{each.epoch}" for each in reader.streams()}
    return lambda tuple_id: f"{names[tuple_id >> SEQ_BITS]}:{tuple_id & (1 << SEQ_BITS) - 1}"


def _said(reader: StoreReader, source: int) -> linear_road.Report:
    found, vertex = reader.payload(source), reader.vertex(source)
    assert found is not None and isinstance(vertex, Source)
    return linear_road.Report(**found.value)


def _wait(ask: Callable[[], Found], holds: Callable[[Found], bool]) -> Found:
    """What is found once the condition holds, or when patience is at an end."""
    give_up = time.monotonic() + _PATIENCE_S
    while not holds(found := ask()) and time.monotonic() < give_up:
        time.sleep(0.2)
    return found

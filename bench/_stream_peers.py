"""Linear Road's stopped cars (Q1) in other stream engines for Python, without provenance, for the same alerts.

Each is written the way its own documentation would have it, and the way it runs fastest:

- streamz has operators but no event time, so `accumulate` keeps the windows. Emitting lists and flattening them inside
  costs less per tuple than calling `emit` for every one.
- bytewax has event-time windows. Its input hands over lists of tuples: of one, as its own inputs do if nothing else is
  said, or of a thousand.

The functions of the query (what is standing, what is stopped) are the ones that our own plan uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from edge_agent.queries.linear_road import Report, StoppedCar, is_standing, is_stopped, place_of_report, summarise
from protocol.records import END_OF_TIME

SIZE_MS = 120_000
ADVANCE_MS = 30_000

Item: TypeAlias = tuple[int, Report]
Alert: TypeAlias = tuple[int, StoppedCar]


# --- streamz ------------------------------------------------------------------------------


class OpenWindows:
    """The standing reports of the windows that are not over yet: right boundary -> car -> reports."""

    def __init__(self) -> None:
        self._cars: dict[int, dict[int, list[Report]]] = {}

    def add(self, ts: int, report: Report | None) -> list[Alert]:
        """What the windows held that end with this report; the report goes into the others."""
        over = sorted(right for right in self._cars if right <= ts)
        results = [(right, _summary(vid, reports)) for right in over for vid, reports in self._cars.pop(right).items()]
        if report is not None:
            first = ts - ts % ADVANCE_MS + ADVANCE_MS
            for right in range(first, first + SIZE_MS, ADVANCE_MS):
                self._cars.setdefault(right, {}).setdefault(report.vid, []).append(report)
        return results


def _slide(windows: OpenWindows, item: tuple[int, Report | None]) -> tuple[OpenWindows, list[Alert]]:
    return windows, windows.add(*item)


def _summary(vid: int, reports: list[Report]) -> StoppedCar:
    return summarise(vid, len(reports), len({place_of_report(report) for report in reports}), reports[-1])


def streamz_stopped(items: list[Item], batch: int) -> list[Alert]:
    from streamz import Stream

    alerts: list[Alert] = []
    source = Stream()
    standing = source.flatten().filter(lambda item: is_standing(item[1]))
    windows = standing.accumulate(_slide, start=OpenWindows(), returns_state=True).flatten()
    windows.filter(lambda alert: is_stopped(alert[1])).sink(alerts.append)
    for start in range(0, len(items), batch):
        source.emit(items[start : start + batch])
    standing.emit((END_OF_TIME, None))
    return alerts


# --- bytewax ------------------------------------------------------------------------------

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def bytewax_stopped(items: list[Item], batch: int) -> list[Alert]:
    from bytewax import operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.operators import windowing
    from bytewax.testing import TestingSink, run_main

    alerts: list[tuple[str, Alert]] = []
    flow = Dataflow("stopped")
    reports = op.input("reports", flow, _lists_source(items, batch))
    standing = op.filter("standing", reports, lambda item: is_standing(item[1]))
    per_car = op.key_on("vid", standing, lambda item: str(item[1].vid))
    # Time stands still apart from the events': otherwise the clock would be asked for every one.
    clock: windowing.EventClock[Item] = windowing.EventClock(
        lambda item: _EPOCH + timedelta(milliseconds=item[0]), timedelta(0), now_getter=lambda: _EPOCH
    )
    windower = windowing.SlidingWindower(
        length=timedelta(milliseconds=SIZE_MS), offset=timedelta(milliseconds=ADVANCE_MS), align_to=_EPOCH
    )
    windows = windowing.collect_window("windows", per_car, clock, windower)
    summaries = op.map_value("per car", windows.down, _summary_of_window)
    op.output("alerts", op.filter_value("four at one place", summaries, _is_alert), TestingSink(alerts))
    run_main(flow)  # type: ignore[no-untyped-call]
    return [alert for _, alert in alerts]


def _summary_of_window(window: tuple[int, list[Item]]) -> Alert:
    number, items = window
    return number * ADVANCE_MS + SIZE_MS, _summary(items[-1][1].vid, [report for _, report in items])


def _is_alert(alert: Alert) -> bool:
    return is_stopped(alert[1])


def _lists_source(items: list[Item], batch: int) -> Any:
    """An input that hands over slices of a list; bytewax's own for tests does more work per tuple."""
    from bytewax.inputs import DynamicSource, StatelessSourcePartition

    class Partition(StatelessSourcePartition[Item]):
        def __init__(self) -> None:
            self._starts: Iterator[int] = iter(range(0, len(items), batch))

        def next_batch(self) -> list[Item]:
            start = next(self._starts)
            return items[start : start + batch]

    class Lists(DynamicSource[Item]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Partition:
            return Partition()

    return Lists()

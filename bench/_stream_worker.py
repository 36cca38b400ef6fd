"""A process that measures what it is told, so that builds which cannot share a process still take turns.

`Worker` is the handle in the parent; the child reads one JSON object per line and answers with one. The child's path
decides which build of the engine it imports. Input data is made once, before any timing, and the collector leaves it
out: what is measured is the engine, not the benchmark's own lists.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self

from edge_agent.garbage import collect_seldom
from edge_agent.queries import linear_road, linear_road_stopped, smart_grid
from edge_agent.stream import Engine, Feeder, Plan, run

ROOT = Path(__file__).resolve().parent.parent
FAST = ROOT / "build" / "fast"
Answer = dict[str, Any]


class Query(NamedTuple):
    """An app file of edge_agent/queries, its source, and what the source is fed here."""

    app: str
    source: str
    data: str


QUERIES = {
    "Q1": Query("linear_road_stopped", "reports", "sparse"),
    "Q2": Query("linear_road_accidents", "reports", "sparse"),
    "Q3": Query("smart_grid_blackout", "readings", "meters"),
    "Q4": Query("smart_grid_anomaly", "readings", "meters"),
    # Told, without a goal: several times the alerts.
    "Q1 dense": Query("linear_road_stopped", "reports", "dense"),
    "Q2 dense": Query("linear_road_accidents", "reports", "dense"),
}
PYTHON_THRESHOLDS = gc.get_threshold()
MODES = ("none", "segments", "genealog", "annotation")


class WorkerFailed(Exception):
    """The child answered with an error, or not at all."""


class Worker:
    """A child process with the plain source, or with the compiled build first on its path."""

    def __init__(self, build: str) -> None:
        self.build = build
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench._stream_worker"], env=_environment(build), cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, what: str, **arguments: Any) -> Answer:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.build} worker died at {what} {arguments}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.build} worker, {what} {arguments}: {answer['error']}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(build: str) -> dict[str, str]:
    path = [str(FAST), str(ROOT)] if build == "compiled" else [str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0"}


# --- the child ----------------------------------------------------------------------------


class Tally:
    """Where records go: counted and forgotten."""

    def __init__(self) -> None:
        self.records = 0

    def add(self, record: object) -> None:
        self.records += 1


class Child:
    """Holds the data and answers by the name of the method."""

    def __init__(self) -> None:
        self._data: dict[str, list[Any]] = {}
        self._windows: Any = None

    def engine(self) -> Answer:
        """Which file the engine comes from."""
        return {"file": import_module("edge_agent.stream.aggregate").__file__}

    def prepare(self, **sizes: dict[str, Any]) -> Answer:
        """Make the input, and settle on a processor: moving costs what is in its caches."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        for data, size in sizes.items():
            self._data[data] = list(generate(data, size))
        collect_seldom()
        return {data: len(items) for data, items in self._data.items()}

    def query(self, query: str, mode: str, relaxed: bool) -> Answer:
        """Run a query to its end."""
        self.begin(query, mode, relaxed)
        return self.step(sys.maxsize)

    def begin(self, query: str, mode: str, relaxed: bool) -> Answer:
        """Get ready to run a query a few lists at a time."""
        self._tally = Tally()
        with plan_of(query, mode) as plan:
            engine = Engine(plan, self._tally.add)
        self._items = self._data[QUERIES[query].data]
        self._feeder = Feeder(plan, engine, {QUERIES[query].source: self._items})
        gc.collect()
        self._thresholds = gc.get_threshold() if relaxed else PYTHON_THRESHOLDS
        return {}

    def step(self, lists: int) -> Answer:
        """Go on with what was begun."""
        feeder = self._feeder
        relaxed = gc.get_threshold()
        gc.set_threshold(*self._thresholds)
        start = time.process_time()
        while lists and feeder.running:
            feeder.feed()
            lists -= 1
        spent = time.process_time() - start
        gc.set_threshold(*relaxed)
        return {"cpu_s": spent, "running": feeder.running, "units": len(self._items), "records": self._tally.records}

    def peer(self, name: str, tuples: int, singly: bool) -> Answer:
        """Q1 in another engine, fed lists as long as the ones that our own `run` feeds, or one by one."""
        from bench import _stream_peers
        from edge_agent.stream.feeder import LIST_SIZE

        stopped = {"streamz": _stream_peers.streamz_stopped, "bytewax": _stream_peers.bytewax_stopped}[name]
        items = self._data["sparse"][:tuples]
        return timed(lambda: stopped(items, 1 if singly else LIST_SIZE)) | {"units": len(items)}

    def singly(self, tuples: int) -> Answer:
        """Q1 in our engine, fed one by one."""
        engine = Engine(linear_road_stopped.build("none"), Tally().add)
        lists = [[item] for item in self._data["sparse"][:tuples]]

        def feed() -> None:
            for each in lists:
                engine.feed("reports", each)
            engine.finish()

        return timed(feed) | {"units": len(lists)}

    def window(self, group: str, overlap: int, tuples: int) -> Answer:
        from bench._sliding import SlidingWindows

        if self._windows is None:
            self._windows = SlidingWindows(tuples)
            collect_seldom()
        engine = self._windows.engine(group, overlap)
        return timed(lambda: self._windows.feed(engine)) | {"units": tuples}

    def traversal(self, mode: str, size: int, roots: int) -> Answer:
        from bench._traversal import results_over, unfold_all

        lineage, results = results_over(mode, size, roots)
        return timed(lambda: unfold_all(lineage, results)) | {"units": roots}

    def peak(self, query: str, mode: str, size: dict[str, Any]) -> Answer:
        """The peak resident memory of this process after it has run the query on a generator. `input`: nothing but
        the generator was consumed, by a process that is otherwise the same."""
        items = generate(QUERIES[query].data, size)
        tally = Tally()
        collect_seldom()
        with plan_of(query, "none" if mode == "input" else mode) as plan:
            if mode == "input":
                for item in items:
                    tally.add(item)
            else:
                run(plan, {QUERIES[query].source: items}, emit=tally.add)
        return {"peak_kb": peak_rss_kb()}


@contextmanager
def plan_of(query: str, mode: str) -> Iterator[Plan]:
    build = import_module(f"edge_agent.queries.{QUERIES[query].app}").build
    if mode != "annotation":
        yield build(mode)
    else:
        from bench._annotation import annotated

        with annotated(build("none")) as plan:
            yield plan


def generate(data: str, size: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    return smart_grid.readings(**size) if data == "meters" else linear_road.reports(**size)


def timed(work: Callable[[], object]) -> Answer:
    """CPU time of this process, all its threads."""
    gc.collect()
    start = time.process_time()
    work()
    return {"cpu_s": time.process_time() - start}


def peak_rss_kb() -> int:
    """From /proc: getrusage would also count what the parent held before this process took its own image."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise RuntimeError("this kernel does not tell the peak resident memory")


def main() -> None:
    child = Child()
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints must not get between the answers
    for line in sys.stdin:
        arguments = json.loads(line)
        what = arguments.pop("what")
        try:
            answer = getattr(child, what)(**arguments)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

"""The Spark job at a steady rate for a quarter of an hour: do state, memory and batch time stay as they are?

`threadline spark` runs as a process of its own, with its defaults, into SQLite. Its log grows at a steady rate; every
few seconds the job is asked for its metrics and the memory of all its processes is read. The second quarter of the run
is compared with the last one: in the first, Java is still compiling what it runs. The store grows, as it should.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.request import urlopen

import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench._goals import parse_arguments
from bench._graph_log import GraphLog, Shape
from threadline.lab import SparkService, free_port

RATE = 2_000
STEP_S = 0.1
SAMPLE_S = 5.0
PREFIX = "threadline_spark_"


@dataclass(frozen=True, slots=True)
class Sample:
    """How the job is at one moment."""

    at_s: float
    edges: int
    behind: int
    """Edges that are in the log and not in the store."""
    batch_ms: float
    state_bytes: int
    state_rows: int
    live_sources: int
    deliveries: int
    java_bytes: int
    python_bytes: int
    """Of the driver and of all workers."""
    cpu_s: float
    store_bytes: int

    @property
    def memory_bytes(self) -> int:
        return self.java_bytes + self.python_bytes


class Feeder:
    """Lets the log grow at a steady rate, until it is told to stop."""

    def __init__(self, log: GraphLog) -> None:
        self._log = log
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self.edges = 0

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _feed(self) -> None:
        begun, step = time.monotonic(), 0
        while not self._done.wait(max(0.0, begun + step * STEP_S - time.monotonic())):
            self.edges += self._log.append(round(RATE * STEP_S))
            step += 1


def main() -> None:
    report = parse_arguments("spark_steady", __doc__.splitlines()[0])
    seconds = 120.0 if report.quick else 900.0
    with tempfile.TemporaryDirectory(prefix="threadline-steady-") as name:
        samples = _run(Path(name), seconds)
    report.figures += [asdict(each) for each in samples]
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    for when, some in (("second", early), ("last", late)):
        cpu = (some[-1].cpu_s - some[0].cpu_s) / (some[-1].at_s - some[0].at_s)
        print(
            f"{when} quarter: {some[-1].edges:,} edges; micro-batch {_median(some, 'batch_ms'):.0f} ms, "
            f"state {_median(some, 'state_bytes') / 1e6:.2f} MB in {_median(some, 'state_rows'):.0f} values, "
            f"{_median(some, 'live_sources'):.0f} live sources, {_median(some, 'deliveries'):.0f} deliveries kept, "
            f"Java {_median(some, 'java_bytes') / 1e6:.0f} MB, Python {_median(some, 'python_bytes') / 1e6:.0f} MB, "
            f"CPU {cpu:.2f} cores, store {some[-1].store_bytes / 1e6:.0f} MB"
        )
    for what, name, most in (
        ("state", "state_bytes", 1.1),
        ("live sources", "live_sources", 1.1),
        ("memory of all processes", "memory_bytes", 1.1),
        ("time of a micro-batch", "batch_ms", 1.1),
    ):
        ratio = _median(late, name) / _median(early, name)
        report.goal(f"{what}, last quarter of {seconds / 60:g} min over the second", ratio, "<=", most, "x")
    report.goal("edges behind at the end, in seconds", late[-1].behind / RATE, "<=", 5.0, " s")
    report.finish()


def _run(folder: Path, seconds: float) -> list[Sample]:
    port = free_port()
    (folder / "log").mkdir()
    spark = SparkService(folder, folder / "log", "--metrics", f"127.0.0.1:{port}")
    samples: list[Sample] = []
    with GraphLog(folder / "log", Shape()) as log, spark, Feeder(log) as feeder:
        begun = time.monotonic()
        while (at_s := time.monotonic() - begun) < seconds:
            time.sleep(SAMPLE_S)
            sample = _sample(at_s + SAMPLE_S, spark, port, feeder.edges)
            samples.append(sample)
            if len(samples) % 6 == 0:
                print(
                    f"{sample.at_s:4.0f} s: {sample.edges:,} edges stored, {sample.behind:,} behind, "
                    f"micro-batch {sample.batch_ms:.0f} ms, state {sample.state_bytes / 1e6:.2f} MB, "
                    f"Java {sample.java_bytes / 1e6:.0f} MB, Python {sample.python_bytes / 1e6:.0f} MB",
                    flush=True,
                )
    return samples


def _sample(at_s: float, spark: SparkService, port: int, appended: int) -> Sample:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = {
            sample.name.removeprefix(PREFIX).removesuffix("_total"): sample.value
            for family in text_string_to_metric_families(answer.read().decode())
            for sample in family.samples
        }
    java = python = 0
    cpu_s = 0.0
    job = psutil.Process(spark.pid)
    for process in [job, *job.children(recursive=True)]:
        try:
            bytes_ = process.memory_info().rss
            java, python = (java + bytes_, python) if process.name() == "java" else (java, python + bytes_)
            times = process.cpu_times()
            cpu_s += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return Sample(
        at_s=at_s,
        edges=int(found["edges"]),
        behind=appended - int(found["edges"]),
        batch_ms=found["batch_seconds"] * 1000,
        state_bytes=int(found["state_bytes"]),
        state_rows=int(found["state_rows"]),
        live_sources=int(found["live_sources"]),
        deliveries=int(found["deliveries"]),
        java_bytes=java,
        python_bytes=python,
        cpu_s=cpu_s,
        store_bytes=sum(each.stat().st_size for each in spark.store_path.parent.glob("graph.db*")),
    )


def _median(samples: Sequence[Sample], name: str) -> float:
    return statistics.median(float(getattr(each, name)) for each in samples)


if __name__ == "__main__":
    main()

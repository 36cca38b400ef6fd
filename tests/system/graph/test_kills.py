"""kill -9 of everything that Spark consists of, at any moment: the graph is what it would have been."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from collector.store import open_store
from tests.support.told_log import Log
from tests.support.waiting import wait_until
from tests.system.graph.city import City, DiskLog, differences
from threadline.lab import SparkService, free_port

OPTIONS = ("--trigger", "100ms", "--max-rows", "400")


class Victim(SparkService):
    """A job that can be killed in several ways. However it ended, `start` goes on."""

    def __init__(self, folder: Path, log_folder: Path) -> None:
        self.metrics_port = free_port()
        super().__init__(folder, log_folder, *OPTIONS, "--metrics", f"127.0.0.1:{self.metrics_port}")
        self.left_behind: list[psutil.Process] = []

    def kill(self) -> int:
        """kill -9; what it has started has to end by itself."""
        if self.process is not None and self.process.poll() is None:
            self.left_behind = psutil.Process(self.pid).children(recursive=True)
        return super().kill()

    @contextmanager
    def killed_at_last(self) -> Iterator[None]:
        """Leave nothing behind, whatever happens."""
        try:
            yield
        finally:
            self.kill()

    def kill_worker(self, chance: random.Random) -> None:
        """Kill one of the Python processes in which stages run. If it was at work, the job fails; else it goes on."""
        wait_until(lambda: bool(self.workers) or not self.is_running, "a worker", 60)
        time.sleep(chance.uniform(0.0, 4.0))
        for each in chance.sample(self.workers, min(1, len(self.workers))):
            each.send_signal(signal.SIGKILL)

    @property
    def workers(self) -> list[psutil.Process]:
        """The Python processes in which stages run."""
        below = psutil.Process(self.pid).children(recursive=True) if self.is_running else []
        return [each for each in below if "pyspark.daemon" in _line(each)]

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill_between_commits(self, batches: int) -> None:
        """Run until so many batches are stored, and die before Spark hears of the last one."""
        command = [sys.executable, "-m", "tests.system.graph.dies_after", str(batches), *self.command()[3:]]
        found = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=120, check=False)
        assert found.returncode == -signal.SIGKILL


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Growing:
    """A log that grows by itself, until it is closed."""

    def __init__(self, folder: Path, seed: int, pause_s: float) -> None:
        self.log = DiskLog(folder)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._grow, args=(seed, pause_s))
        self._thread.start()

    def _grow(self, seed: int, pause_s: float) -> None:
        for rows in City(seed).rounds(self._closing.is_set):
            self.log.append(rows)
            self._closing.wait(pause_s)

    def close(self) -> None:
        """Everybody ends."""
        self._closing.set()
        self._thread.join()
        self.log.close()


def play(folder: Path, seed: int, kills: int, pause_s: float) -> tuple[Victim, Log]:
    """Kill so often, by turns between the commits of store and Spark, a worker, and all of it, each at any moment; then
    let it come to its end."""
    chance = random.Random(seed)
    log_folder = folder / "log"
    log_folder.mkdir()
    spark = Victim(folder, log_folder)
    growing = Growing(log_folder, seed, pause_s)
    with closing(growing), spark.killed_at_last():
        for number in range(kills):
            kind = number % 3
            if kind == 0:
                spark.kill_between_commits(chance.randrange(1, 4))
                continue
            if not spark.is_running:
                spark.start()
            if kind == 1:
                spark.kill_worker(chance)
            else:
                time.sleep(chance.uniform(0.0, 8.0))
                spark.kill()
    finish(spark, growing.log.told)
    return spark, growing.log.told


def replay(folder: Path, spark: Victim, told: Log) -> None:
    """A new checkpoint over the same log and store changes nothing."""
    again = SparkService(folder, folder / "log", "--once", name="again")
    before = counters(spark)
    assert subprocess.run(again.command(), stderr=subprocess.DEVNULL, timeout=300, check=False).returncode == 0
    assert differences(spark.store, told) == []
    assert counters(spark) == before


def finish(spark: Victim, told: Log) -> None:
    """Let it work everything through; then it is stopped as it should be."""
    with spark:
        assert not psutil.wait_procs(spark.left_behind, 5)[1], "a killed job's processes live on"
        wait_until(lambda: not differences(spark.store, told), "the graph that the log says", 200, every_s=1)
        with urlopen(f"http://127.0.0.1:{spark.metrics_port}/metrics", timeout=5) as answer:
            assert "threadline_spark_edges_total" in answer.read().decode()
        assert spark.stop() == 0
    said = spark.output().splitlines()
    assert "spark stopped" in said[-1], said
    assert not [line for line in said if "WARN" in line or "Traceback" in line]


def counters(spark: SparkService) -> dict[str, int]:
    """Of the graph, and of what belongs to it."""
    graph = ("sinks", "sources", "edges", "sink_labels", "source_labels", "late", "lost", "deliveries", "payloads")
    with closing(open_store(spark.store).reader()) as reader:
        return {name: value for name, value in reader.counters().items() if name in graph}


@pytest.mark.timeout(400)
def test_three_kills_change_nothing(tmp_path: Path) -> None:
    play(tmp_path, seed=1, kills=3, pause_s=0.3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_four_kills_change_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    spark, told = play(tmp_path, seed, kills=24, pause_s=0.1)
    replay(tmp_path, spark, told)

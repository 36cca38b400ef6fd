"""Many devices as processes: if the benchmark ends before its time, none of them keeps it, and none is left. What they
captured together counts once, however often it arrived."""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import _load_devices
from bench._capture_contenders import NOTHING, PROVLIGHT, Contender, Measured, Worker, WorkerFailed
from bench._load_devices import capture
from tests.support.waiting import wait_until

SERVER: Any = SimpleNamespace(address=("127.0.0.1", 9))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """All devices; there is none after the third."""
    found: list[Worker] = []

    def make(*given: Any) -> Worker:
        if len(found) == 3:
            raise SystemExit(143)
        found.append(Worker(*given))
        return found[-1]

    monkeypatch.setattr(_load_devices, "Worker", make)
    return found


def is_over(worker: Worker) -> bool:
    return worker._process.returncode is not None and not worker._limit.is_alive()


def test_devices_are_ended_if_one_of_them_fails(tmp_path: Path, made: list[Worker]) -> None:
    absent = Contender("absent", "absent", "bench", "", "nowhere")
    with pytest.raises(WorkerFailed, match="No module named"):
        capture(absent, 3, 1, SERVER, tmp_path)
    assert len(made) == 3
    wait_until(lambda: all(map(is_over, made)), "they are gone, and nobody waits for them")


def test_devices_are_ended_if_a_signal_comes_while_others_are_made(tmp_path: Path, made: list[Worker]) -> None:
    with pytest.raises(SystemExit):
        capture(NOTHING, 4, 1, SERVER, tmp_path)
    assert len(made) == 3
    wait_until(lambda: all(map(is_over, made)), "they are gone, and nobody waits for them")
    assert all(each._limit.daemon for each in made), "one that is not ended keeps nobody, either"


class Device(nullcontext[None]):
    """A worker that has done its tasks, with calls of these times."""

    def __init__(self, client: str, call_us: list[float]) -> None:
        super().__init__()
        self._measured = Measured(client, call_us, call_us, 1.0, 1.0)

    def wait_until_ready(self) -> None:
        pass

    def go(self) -> None:
        pass

    def result(self) -> Measured:
        return self._measured


def message(task: int, status: str) -> bytes:
    return zlib.compress(repr({"task_id": task, "status": status}).encode())


@pytest.mark.parametrize(
    ("first", "delivered"),
    [
        ([message(1, "running"), message(1, "finished")], 1.0),
        ([message(1, "running"), message(1, "finished"), message(1, "finished")], 1.0),
        ([message(1, "running"), message(1, "running")], 0.75),
        ([], 0.5),
    ],
)
def test_an_event_counts_once_for_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: list[bytes], delivered: float
) -> None:
    """One that came twice does not stand for another that did not come; another device has events of the same names."""
    arrived = {"first": first, "second": [message(1, "running"), message(1, "finished")]}
    devices = iter([Device("first", [1.0, 3.0]), Device("second", [2.0, 8.0])])
    arrivals = SimpleNamespace(wait_until_quiet=lambda: None, of=arrived.__getitem__)
    server: Any = SimpleNamespace(address=("127.0.0.1", 9), arrivals=arrivals)
    monkeypatch.setattr(_load_devices, "Worker", lambda *_: next(devices))
    monkeypatch.setattr(_load_devices, "TASK_S", 0.0)
    found = capture(PROVLIGHT, 2, 1, server, tmp_path)
    assert found.delivered == delivered
    assert (found.events, found.mean_us, found.p50_us, found.p99_us) == (4, 3.5, 2.5, 8.0)

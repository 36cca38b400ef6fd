"""Many devices as processes: if the benchmark ends before its time, none of them keeps it, and none is left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import _load_devices
from bench._capture_contenders import NOTHING, Contender, Worker, WorkerFailed
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

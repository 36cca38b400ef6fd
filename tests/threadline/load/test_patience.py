"""How long a run waits, with a clock that moves when somebody sleeps."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from threadline.load import patience as patiences
from threadline.load.patience import Patience


class Waiting:
    """Its patience is 10 s; it is told to stop at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stops_at: float = math.inf) -> None:
        self.now = 0.0
        self.seen: list[float] = []
        self._stop = threading.Event()
        self._stops_at = stops_at
        watch: Any = SimpleNamespace(now_s=0.0, samples=[], check=lambda: None)
        self.patience = Patience(self._stop, watch, 10.0, self.seen.append)
        monkeypatch.setattr(patiences, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))

    def _sleep(self, duration_s: float) -> None:
        self.now += duration_s
        if self.now >= self._stops_at:
            self._stop.set()


def test_what_comes_nearer_is_waited_for_as_long_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes much longer than anything that comes no nearer would be waited for."""
    waiting = Waiting(monkeypatch)
    waiting.patience.wait_for(lambda: waiting.now >= 60, lambda: 60 - waiting.now)
    assert 60 <= waiting.now < 61
    waiting.patience.wait_for(lambda: False, lambda: 7.0)
    assert 70 <= waiting.now < 72


def test_who_is_told_to_stop_waits_only_for_what_matters_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, stops_at=3.0)
    assert not waiting.patience.sleep(5.0)
    assert waiting.now < 3.2
    waiting.patience.wait_for(lambda: False, lambda: 7.0)
    assert waiting.now < 3.2
    assert waiting.patience.sleep(5.0, although_stopped=True)
    waiting.patience.wait_for(lambda: waiting.now >= 12, lambda: 7.0, although_stopped=True)
    assert waiting.now >= 12


def test_it_looks_around_while_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch)
    assert waiting.patience.sleep(2.0)
    assert len(waiting.seen) >= 19

"""The processes of the devices, as the process of the command sees them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from threadline.load.breakdown import Breakdown
from threadline.load.fleet import Fleet, usual_processes
from threadline.load.histogram import Histogram
from threadline.load.profiles import profile_named


class Gone:
    """A process that has ended; what it said is read no sooner than somebody has seen that it is gone."""

    pid = 1
    returncode = 0

    def __init__(self, words: dict[str, Any], end: int | None) -> None:
        self.stdin = io.StringIO()
        self._words = f"{json.dumps(words)}\n"[:end]
        self._is_seen = threading.Event()
        self.stdout = self._said()

    def _said(self) -> Iterator[str]:
        self._is_seen.wait()
        yield self._words

    def poll(self) -> int:
        self._is_seen.set()
        return self.returncode


def started(words: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, end: int | None = None) -> Fleet:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Gone(words, end))
    return Fleet(profile_named("light"), 1, 1, folder, {}, "load").__enter__()


def test_a_process_that_has_said_its_last_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody has read it yet."""
    started({"ended": []}, tmp_path, monkeypatch).check()


def test_a_process_that_ends_without_a_word_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = started({"ready": []}, tmp_path, monkeypatch)
    (tmp_path / "devices-0.log").write_text("no memory\n")
    with pytest.raises(Breakdown, match="a process with devices died: exit code 0; its log ends with\nno memory"):
        fleet.check()


def test_a_process_that_dies_without_a_word_leaves_no_open_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Breakdown) as found:
        started({"ready": []}, tmp_path, monkeypatch).check()
    assert str(found.value) == "a process with devices died: exit code 0"


def test_what_a_process_was_about_to_say_when_it_died_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thrown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", thrown.append)
    with pytest.raises(Breakdown):
        started({"ended": []}, tmp_path, monkeypatch, end=-2).check()
    assert thrown == [], "the thread that reads has ended well"


def test_a_process_that_has_said_its_last_need_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that its devices have said is known then."""
    end = {"agent": "load-0", "nonce": 1, "said": {"readings": 3}, "left": 0}
    stays = tmp_path / "stays"
    stays.write_text(f"#!/bin/sh\necho '{json.dumps({'ended': [end]})}'\nexec sleep 600\n")
    stays.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stays))
    monkeypatch.setattr("threadline.load.fleet._END_S", 0.1)
    with Fleet(profile_named("light"), 1, 1, tmp_path, {}, "load") as fleet:
        (found,) = fleet.stop(5.0)
    assert found.said.readings == 3


def test_nobody_has_to_wait_for_a_goodbye(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the gateway has died, for instance, no device can take leave."""
    stays = tmp_path / "stays"
    stays.write_text("#!/bin/sh\nexec sleep 600\n")
    stays.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stays))

    def look() -> None:
        raise Breakdown("gateway", "died")

    with Fleet(profile_named("light"), 1, 1, tmp_path, {}, "load") as fleet, pytest.raises(Breakdown, match="gateway"):
        fleet.stop(600.0, look)


class Crew:
    """A process that lives, and tells once how its devices are."""

    pid = 1

    def __init__(self, connected: int) -> None:
        said = {"results": 1, "origins": 50}
        states = {"connected": connected, "connecting": 2 - connected}
        now = {"at": 7.5, "said": said, "states": states, "sums": {}, "missed": 0, "caller_us": Histogram().to_json()}
        self.stdin = io.StringIO()
        self.stdout = [f"{json.dumps(words)}\n" for words in ({"ready": [["load-0", 1]]}, {"now": now})]

    def poll(self) -> None: ...


def crews(connected: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Fleet, list[Crew]]:
    made: list[Crew] = []

    def start(*_: object, **__: object) -> Crew:
        made.append(Crew(connected[len(made)]))
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    processes = len(connected)
    fleet = Fleet(profile_named("query"), 2 * processes, processes, folder, {"gateway": "127.0.0.1:1"}, "load")
    return fleet.__enter__(), made


def test_every_process_has_a_place_of_its_own_between_the_steps_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = crews([2, 2], tmp_path, monkeypatch)
    assert [json.loads(crew.stdin.getvalue())["phase"] for crew in made] == [0.25, 0.75]


def test_what_a_process_said_is_told_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, _ = crews([2, 2], tmp_path, monkeypatch)
    assert fleet.wait_ready(60.0, lambda: None)
    assert [(at, said.origins) for at, said in fleet.state().told] == [(7.5, 50), (7.5, 50)]
    assert fleet.state().said.origins == 100


class Clock:
    """Moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, duration_s: float) -> None:
        threading.Event().wait(0.001)  # somebody has to read what the processes tell
        self.now += duration_s


def test_if_nobody_answers_nobody_waits_for_all_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, _ = crews([0, 0], tmp_path, monkeypatch)
    clock = Clock()
    monkeypatch.setattr("threadline.load.fleet.time", clock)
    with pytest.raises(Breakdown, match=r"nobody answers at 127\.0\.0\.1:1: none of 4 devices was connected within 1"):
        fleet.wait_ready(600.0, lambda: None)
    assert clock.now < 200


def test_if_some_are_connected_the_others_have_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, _ = crews([1, 0], tmp_path, monkeypatch)
    clock = Clock()
    monkeypatch.setattr("threadline.load.fleet.time", clock)
    assert not fleet.wait_ready(60.0, lambda: None)
    assert clock.now >= 160


def test_there_is_a_process_for_every_core_and_for_so_many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert [usual_processes(devices) for devices in (1, 3, 400, 401)] == [1, 3, 4, 5]

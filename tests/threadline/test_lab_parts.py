"""How a part of the lab is looked after: started when what it needs is there, started again when it ends, and ended
with all that it has started. The parts are shell scripts here; the lab itself is in test_lab.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from threadline.lab import Service, ServiceFailed
from threadline.live_lab import Part

NOW = 1_000.0


class Script(Service):
    """A shell script that says when it is ready."""

    def __init__(self, folder: Path, script: str = "echo ready; exec sleep 600", name: str = "script") -> None:
        super().__init__(name, folder)
        self.script = script

    def command(self) -> Sequence[str]:
        return ["/bin/sh", "-c", self.script]

    def is_ready(self) -> bool:
        return "ready" in self.output()


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


@pytest.fixture
def part(script: Script) -> Iterator[Part]:
    made = Part(script)
    yield made
    made.end()


def started(part: Part, now: float = NOW) -> None:
    """Start it, and look at it until it is ready."""
    part.start(now)
    wait_until(lambda: part.look(now) or part.ready_at is not None, "it is ready")


def told(part: Part, now: float = NOW) -> str:
    """The next that there is to tell of it."""
    news = wait_until(lambda: part.look(now), "there is something to tell")
    assert news is not None
    return news


def is_gone(pid: int) -> bool:
    """Whether there is no such process, or only what nobody has asked for yet of one that has ended."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_a_part_waits_for_what_it_needs_but_only_the_first_time(tmp_path: Path, script: Script) -> None:
    part = Part(script, Script(tmp_path, name="one"), Script(tmp_path, name="other"))
    assert not part.may_start(set(), NOW)
    assert not part.may_start({"one"}, NOW)
    assert part.may_start({"one", "other"}, NOW)
    started(part)
    assert not part.may_start({"one", "other"}, NOW)
    script.kill()
    told(part)
    assert part.may_start(set(), NOW + 60)


def test_what_ends_is_started_again_each_time_a_little_later(part: Part, script: Script) -> None:
    started(part)
    script.kill()
    waits_s = []
    for restart in range(1, 10):
        news = told(part)
        found = re.match(r"ended (.+), it is started again in ([\d.]+) s \(restart (\d+)\); its log ends with\n", news)
        assert found is not None and int(found[3]) == restart == part.restarts, news
        assert found[1] == ("by SIGKILL" if restart == 1 else "with code 3")
        wait_s = float(found[2])
        waits_s.append(wait_s)
        assert not part.may_start(set(), NOW + wait_s - 0.1) and part.may_start(set(), NOW + wait_s)
        script.script = "echo it broke; exit 3"
        part.start(NOW)
    assert waits_s == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert told(part).endswith("\n    it broke")


def test_after_a_minute_without_trouble_the_wait_is_short_again(part: Part, script: Script) -> None:
    started(part)
    for wait_s in ("0.5", "1"):
        script.kill()
        assert f"again in {wait_s} s" in told(part)
        part.start(NOW)
        assert told(part) == "runs again"
    script.kill()
    assert "again in 0.5 s" in told(part, NOW + 60)


def test_what_never_was_ready_is_not_tried_again(part: Part, script: Script) -> None:
    script.script = "echo no port is free; exit 2"
    part.start(NOW)
    with pytest.raises(ServiceFailed, match=r"^script did not start, it ended with code 2:\nno port is free$"):
        told(part)


def test_what_is_not_ready_in_time_is_ended(part: Part, script: Script) -> None:
    script.script = "exec sleep 600"
    part.start(NOW)
    pid = script.pid
    assert part.look(NOW + script.start_s) is None
    with pytest.raises(ServiceFailed, match="script did not start, it was killed because it was not ready after 20 s"):
        part.look(NOW + script.start_s + 1)
    assert is_gone(pid)


def test_a_program_that_is_not_there_is_told(part: Part, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "command", lambda: ["/no/such/program"])
    with pytest.raises(ServiceFailed, match=r"script cannot be started: .*No such file or directory"):
        part.start(NOW)


def test_nothing_that_a_part_has_started_outlives_it(part: Part, script: Script) -> None:
    script.script = "sleep 600 & echo child $!; echo ready; wait"
    started(part)
    child = int(script.output().split()[1])
    assert not is_gone(child)
    script.kill()  # the shell alone
    told(part)
    wait_until(lambda: is_gone(child), "its child is gone too")


def test_stopping_waits_for_the_end(part: Part, script: Script) -> None:
    script.script = "trap 'echo bye; exit 143' TERM; echo ready; while :; do sleep 0.02; done"
    started(part)
    assert part.stop(lambda: False) == "has stopped"
    assert "bye" in script.output() and not part.runs


def test_an_end_with_an_error_is_told(part: Part, script: Script) -> None:
    script.script = "trap 'echo lost something; exit 1' TERM; echo ready; while :; do sleep 0.02; done"
    started(part)
    assert part.stop(lambda: False).endswith(
        "with code 1 when it was to stop; its log ends with\n    ready\n    lost something"
    )


def test_what_does_not_stop_is_killed(part: Part, script: Script) -> None:
    script.script = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
    started(part)
    pid = script.pid
    script.stop_s = 0.1
    assert part.stop(lambda: False).startswith("was killed: it did not stop within 0 s; its log ends with\n")
    assert is_gone(pid)


def test_who_is_in_a_hurry_does_not_wait(part: Part, script: Script) -> None:
    script.script = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
    started(part)
    pid = script.pid
    assert part.stop(lambda: True) == "was killed, as asked"
    assert is_gone(pid)

"""How a chain starts, or does not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL
from unittest.mock import Mock

import psutil
import pytest

from tests.support.waiting import wait_until
from threadline.lab import Service
from threadline.load import chain as chains
from threadline.load.breakdown import Breakdown
from threadline.load.chain import Stopped, started
from threadline.load.resources import is_alive


class Never(Service):
    """A broker that does not become ready."""

    version = "5"
    address = "127.0.0.1:1"

    def __init__(self, folder: Path, code: str) -> None:
        super().__init__("mosquitto", folder)
        self._code = code

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", self._code]

    def is_ready(self) -> bool:
        return False


def never(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Never:
    made = Never(folder, code)
    monkeypatch.setattr(chains, "mqtt_broker", lambda *_: made)
    return made


def test_nobody_has_to_wait_for_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of it is left."""
    broker = never("import time; time.sleep(600)", tmp_path, monkeypatch)
    with (
        pytest.raises(Stopped),
        started(tmp_path, embedded=False, with_spark=True, is_stopping=lambda: True),
    ):
        pytest.fail("it has started")
    assert not psutil.pid_exists(broker.pid)


@pytest.mark.parametrize(
    ("code", "start_s", "words"),
    [
        ("raise SystemExit('no room')", 60.0, "broker died: exit code 1; its log ends with\nno room"),
        ("import time; time.sleep(600)", 0.0, "broker is not ready after 0 s"),
    ],
)
def test_what_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, start_s: float, words: str
) -> None:
    never(code, tmp_path, monkeypatch).start_s = start_s
    with pytest.raises(Breakdown) as found, started(tmp_path, embedded=False, with_spark=True):
        pytest.fail("it has started")
    assert str(found.value) == words


def test_who_does_not_want_to_wait_for_the_end_leaves_nobody_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a service nor what it has started, as Spark starts Java."""
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\nimport time\ntime.sleep(600)"
    service = Never(tmp_path, code)
    service.launch(apart=True)
    wait_until(lambda: service.output().endswith("\n"), "it has started another one")
    monkeypatch.setattr(service, "stop", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        chains._end(service)
    assert service.process is not None and service.process.returncode == -SIGKILL
    other = int(service.output())
    wait_until(lambda: not is_alive(other), "the other one is gone, too")

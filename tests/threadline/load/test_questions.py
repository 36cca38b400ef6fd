"""Those who ask the API: what is said of one that answers, of one that does not, and of nobody at all."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from tests.support.waiting import wait_until
from threadline.lab import free_port
from threadline.load.questions import MISSING, NoApi, Users, check_api, is_installed


class Hung:
    """A process that users would live in."""

    def __init__(self, *_: object, **__: object) -> None:
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self, timeout: float) -> int:
        return 0

    def poll(self) -> None: ...


def users(folder: Path, monkeypatch: pytest.MonkeyPatch, **told: Any) -> Users:
    """Five seconds of some, as they tell of it."""
    monkeypatch.setattr(subprocess, "Popen", Hung)
    stopped = time.time()
    monkeypatch.setattr("threadline.load.questions.time.time", lambda: stopped)
    (folder / "asked.json").write_text(json.dumps({"begun": stopped - 5, "questions": [], "errors": [], **told}))
    with Users("http://127.0.0.1:1", 2, folder) as found:
        assert found.have_begun
    return found


def question(requests: int, failures: int) -> dict[str, Any]:
    times = dict.fromkeys(("p50_ms", "p95_ms", "p99_ms", "most_ms"), 9)
    return {"name": "sinks", "requests": requests, "failures": failures, **times}


def test_rates_are_of_the_time_in_which_users_were_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request alone begins and ends at the same moment."""
    asked = users(tmp_path, monkeypatch, questions=[question(1, 0)]).asked
    assert asked.questions[0].per_s == pytest.approx(0.2)
    assert asked.was_answered
    assert asked.errors == []


@pytest.mark.parametrize("questions", [[], [question(7, 7)]])
def test_if_nobody_was_answered_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: list[dict[str, Any]]
) -> None:
    asked = users(tmp_path, monkeypatch, questions=questions, errors=["7 times GET sinks: refused"]).asked
    assert not asked.was_answered
    assert asked.errors == ["7 times GET sinks: refused", "nobody was answered"]


def test_if_locust_dies_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hung, "poll", lambda _: -9)
    monkeypatch.setattr(subprocess, "Popen", Hung)
    with Users("http://127.0.0.1:1", 2, tmp_path) as found:
        (tmp_path / "locust.log").write_text("no memory\n")
        found.look(7.2)
        found.look(8.2)
    assert found.asked.errors == ["locust died at 7 s: killed by SIGKILL; its log ends with", "no memory"]
    assert not found.asked.was_answered


def test_locust_asks_an_address_without_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    Users("http://127.0.0.1:1/", 2, tmp_path)
    assert commands[0][commands[0].index("--host") + 1] == "http://127.0.0.1:1"


@pytest.fixture
def ignores_interrupts() -> Iterator[None]:
    """As everybody does whom a script has started in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


class Silent:
    """An API that takes connections, and ends them without a word."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked = 0

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self.asked += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            thread.join()


@pytest.mark.skipif(not is_installed(), reason=MISSING)
def test_what_locust_cannot_ask_is_a_failure_and_no_traceback(tmp_path: Path, ignores_interrupts: None) -> None:
    api = Silent()
    with api.running():
        with Users(api.url, 2, tmp_path) as asking:
            wait_until(lambda: api.asked >= 8, "they have asked", 60)
        found = {each.name: each for each in asking.asked.questions}
    assert {"sinks", "stream"} >= found.keys()
    assert all(each.requests == each.failures > 0 for each in found.values())
    assert asking.asked.errors[-1] == "nobody was answered"
    assert any("GET sinks" in error for error in asking.asked.errors)
    assert "Traceback" not in (tmp_path / "locust.log").read_text()


@pytest.mark.skipif(not is_installed(), reason=MISSING)
def test_users_end_with_whoever_wants_to_know_though_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from threadline.load.questions import Users\n"
        "with Users(sys.argv[1], 2, Path(sys.argv[2])): time.sleep(600)"
    )
    api = Silent()
    with api.running():
        with subprocess.Popen([sys.executable, "-c", code, api.url, str(tmp_path)]) as process:
            try:
                wait_until(lambda: api.asked > 0, "they have asked", 60)
                (locust,) = psutil.Process(process.pid).children()
            finally:
                process.kill()
        try:
            wait_until(lambda: not locust.is_running(), "the users are gone", 20)
        finally:
            if locust.is_running():
                locust.kill()


class Other(BaseHTTPRequestHandler):
    """Somebody who answers all questions alike below /any, and is well below /ours."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = {"ours": b'{"status": "ok"}', "any": b"<p>Welcome"}.get(self.path.split("/")[1])
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None: ...


@pytest.mark.skipif(not is_installed(), reason=MISSING)
def test_live_events_are_no_page(tmp_path: Path) -> None:
    """Somebody answers, but does not tell what happens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with Users(f"http://127.0.0.1:{server.server_port}/any", 1, tmp_path) as asking:
                wait_until(lambda: Other.asked.count("/any/v1/graph/stream") > 1, "the first is over", 60)
        finally:
            server.shutdown()
    (stream,) = asking.asked.questions
    assert stream.requests == stream.failures > 0
    assert any("no live events but text/html" in error for error in asking.asked.errors)


def test_an_api_is_asked_before_anything_starts() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            check_api(f"{url}/ours/")
            with pytest.raises(NoApi, match=f"{url}/healthz answers 404"):
                check_api(url)
            with pytest.raises(NoApi, match=f"{url}/any/healthz answers b'<p>Welcome': that is no API of ours"):
                check_api(f"{url}/any")
        finally:
            server.shutdown()


@pytest.mark.parametrize(("address", "why"), [("127.0.0.1:{port}", "Connection refused"), ("[::1", "Invalid IPv6 URL")])
def test_nobody_to_ask_is_told(address: str, why: str) -> None:
    url = f"http://{address.format(port=free_port())}"
    with pytest.raises(NoApi) as found:
        check_api(url)
    assert str(found.value) == f"nobody answers at {url}: {why}"

"""What people ask the API, for Locust: what is new, what a result came from, what a reading touched, and all live.

`threadline load --users N` runs it; by itself: `locust --locustfile threadline/load/locustfile.py --host URL`. In the
first case the environment names a file for what was asked, which is there from the moment on when users are, and the
process that wants to know: without it nobody has to ask.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from random import Random
from typing import Any

import gevent
from locust import HttpUser, between, events, task
from locust.env import Environment
from requests import RequestException

_FOLLOWED_S = 5.0
_LOOK_S = 0.5
_RECENT = 50
_MOST_ERRORS = 5
_RANDOM = Random()


class Analyst(HttpUser):
    """Looks at the latest results, and follows some of them back and forth."""

    wait_time = between(0.05, 0.2)

    def on_start(self) -> None:
        self._sinks: list[str] = []
        self._sources: list[str] = []

    @task(3)
    def sinks(self) -> None:
        found = self._ask("/v1/sinks", "sinks", limit=_RECENT)
        self._sinks = [each["id"] for each in found.get("vertices", [])] or self._sinks

    @task(3)
    def vertex(self) -> None:
        if self._sinks:
            self._ask(f"/v1/vertices/{_RANDOM.choice(self._sinks)}", "vertex")

    @task(3)
    def backward(self) -> None:
        if self._sinks:
            name = _RANDOM.choice(self._sinks)
            found = self._ask(f"/v1/vertices/{name}/backward", "backward", payload="true")
            readings = [each["id"] for each in found.get("vertices", []) if each["kind"] == "source"]
            self._sources = readings or self._sources

    @task(2)
    def forward(self) -> None:
        if self._sources:
            self._ask(f"/v1/vertices/{_RANDOM.choice(self._sources)}/forward", "forward")

    @task(1)
    def impact(self) -> None:
        if self._sources:
            self._ask("/v1/impact", "impact", source=_RANDOM.choice(self._sources))

    def _ask(self, path: str, name: str, **parameters: Any) -> dict[str, Any]:
        """An answer; what is none is counted as a failure, and is empty."""
        with self.client.get(path, params=parameters, name=name, catch_response=True) as answer:
            if answer.error is not None:  # nobody is there: Locust counts that
                return {}
            if not answer.ok:
                answer.failure(f"{answer.status_code} {answer.text[:200]}")
                return {}
            try:
                found: dict[str, Any] = answer.json()
            except RequestException:
                answer.failure(f"not JSON: {answer.text[:200]}")
                return {}
        return found


class Follower(HttpUser):
    """Has the graph told live for a while, then again. The time is that until the first event."""

    fixed_count = 1
    wait_time = between(0.5, 1.0)

    @task
    def stream(self) -> None:
        begun = time.monotonic()
        with self.client.get("/v1/graph/stream", name="stream", stream=True, catch_response=True) as answer:
            if answer.error is not None:
                return
            if not answer.ok:
                answer.failure(str(answer.status_code))
                return
            kind = answer.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                answer.failure(f"no live events but {kind or 'something without a type'}")
                return
            answer.success()
            try:
                for _ in answer.iter_lines():
                    if time.monotonic() > begun + _FOLLOWED_S:
                        return
            except RequestException as error:
                answer.failure(f"broken off: {type(error).__name__}")


def _tell(environment: Environment, **_: Any) -> None:
    """What was asked so far, and since when."""
    stats, runner = environment.stats, environment.runner
    assert runner is not None
    errors = [(each.occurrences, each.to_name()) for each in stats.errors.values()]
    errors += [(each["count"], each["msg"]) for each in runner.exceptions.values()]
    told = {
        "begun": stats.total.start_time,
        "questions": [
            {
                "name": each.name,
                "requests": each.num_requests,
                "failures": each.num_failures,
                "p50_ms": each.get_response_time_percentile(0.5),
                "p95_ms": each.get_response_time_percentile(0.95),
                "p99_ms": each.get_response_time_percentile(0.99),
                "most_ms": each.max_response_time,
            }
            for each in stats.entries.values()
        ],
        "errors": [f"{count} times {text}" for count, text in sorted(errors, reverse=True)[:_MOST_ERRORS]],
    }
    file = Path(os.environ["THREADLINE_ASKED"])
    new = file.with_suffix(".new")
    new.write_text(json.dumps(told))
    new.replace(file)


def _end_with_parent(environment: Environment, **_: Any) -> None:
    """Whoever is killed at once cannot stop the users, who would ask for ever."""
    runner, parent = environment.runner, int(os.environ["THREADLINE_PARENT"])
    assert runner is not None

    def look() -> None:
        while os.getppid() == parent:
            gevent.sleep(_LOOK_S)
        runner.quit()

    gevent.spawn(look)


if "THREADLINE_ASKED" in os.environ:
    events.init.add_listener(_end_with_parent)  # type: ignore[no-untyped-call]
    events.test_start.add_listener(_tell)  # type: ignore[no-untyped-call]
    events.test_stop.add_listener(_tell)  # type: ignore[no-untyped-call]

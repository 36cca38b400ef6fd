"""Logs as JSON: one object per event, with its values by name."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from threadline.logs import JsonLines


def line(text: str, *values: object, **more: object) -> dict[str, object]:
    record = logging.LogRecord("collector.api", logging.WARNING, "x.py", 1, text, values, **{"exc_info": None, **more})  # type: ignore[arg-type]
    found: dict[str, object] = json.loads(JsonLines().format(record))
    return found


def test_values_have_their_names() -> None:
    found = line("request method=%s path=%s ms=%.1f", "GET", "/v1/sinks", 1.25)
    assert (found["event"], found["method"], found["path"], found["ms"]) == ("request", "GET", "/v1/sinks", "1.2")
    assert (found["level"], found["logger"]) == ("warning", "collector.api")
    assert str(found["time"]).endswith("+00:00")


def test_a_value_may_hold_spaces_and_quotes() -> None:
    found = line("the log cannot be written shard=%d error=%s", 3, 'no "space" left\non device')
    assert (found["event"], found["shard"]) == ("the log cannot be written", "3")
    assert found["error"] == 'no "space" left\non device'


def test_a_message_does_not_overwrite_when_and_how_bad() -> None:
    found = line("answered level=%s time=%s event=%s", "none", "never", "other")
    assert (found["level"], found["event"]) == ("warning", "answered")
    assert found["time"] != "never"


def test_a_traceback_is_in_the_same_object() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        assert "KeyError: 'x'" in str(line("a defect", exc_info=sys.exc_info())["traceback"])


def test_every_command_logs_as_asked() -> None:
    command = [sys.executable, "-m", "threadline", "--log-format", "json", "spark", "--log", "/nowhere"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    refused = subprocess.run([*command[:4], "yaml", "spark"], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "yaml" in refused.stderr

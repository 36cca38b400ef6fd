"""`--json` of commands that run until they are stopped."""

from __future__ import annotations

import json
import logging

import pytest
from typer.testing import CliRunner

from threadline.cli import app


@pytest.mark.parametrize(
    "command",
    [
        ["serve", "--listen", "192.0.2.1:1"],
        ["forward", "--to", "nobody", "--url", "http://127.0.0.1:9", "--position", "/nowhere/position"],
    ],
    ids=lambda command: command[0],
)
def test_logs_are_json_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert CliRunner().invoke(app, [*command, "--json"]).exit_code == 2
    [handler] = logging.getLogger().handlers
    record = logging.LogRecord("api", logging.INFO, "", 0, "api ready on=%s", ("127.0.0.1:8080",), None)
    told = json.loads(handler.format(record))
    assert (told["event"], told["on"], told["level"]) == ("api ready", "127.0.0.1:8080", "info")

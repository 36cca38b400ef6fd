from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_agent.config import ConfigError, Settings, load_settings


def test_defaults_are_allowed() -> None:
    assert Settings() == load_settings(environment={})


def test_a_file_then_the_environment_then_flags(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('name = "from-file"\ngateway = "file:1"\nwindow = 3\nflush_s = 1\ndurable = true\n')
    environment = {"THREADLINE_CONFIG": str(path), "THREADLINE_GATEWAY": "environment:2", "THREADLINE_AGENT": "env"}
    settings = load_settings(environment=environment, name="flag", window=None)
    assert (settings.name, settings.gateway, settings.window) == ("flag", "environment:2", 3)
    assert (settings.flush_s, settings.durable) == (1.0, True)
    assert load_settings(path, environment={}).name == "from-file"
    assert load_settings(environment={"THREADLINE_AGENT": ""}).name == ""


def test_several_gateways() -> None:
    assert Settings(gateway="a:1, b:2,").gateways == ["a:1", "b:2"]
    assert Settings().gateways == []


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("true", True), ("0", False), ("no", False)])
def test_the_environment_says_yes_and_no(text: str, value: bool) -> None:
    assert load_settings(environment={"THREADLINE_DURABLE": text}).durable is value


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"name": "Pump_7"}, "name 'Pump_7': 1 to 23 small letters"),
        ({"name": "p" * 24}, "1 to 23"),
        ({"gateway": "a:1,b"}, "gateway 'b'"),
        ({"gateway": "a:0"}, "gateway"),
        ({"when_full": "drop"}, "when_full is drop-oldest or block, not 'drop'"),
        ({"fsync": "always"}, "fsync is batch or interval or never"),
        ({"grouping": "some"}, "grouping is all or ended"),
        ({"spool_bytes": 1000}, "spool_bytes is at least 65536, not 1000"),
        ({"flush_s": 0.0}, "flush_s is at least 0.001"),
        ({"batch_bytes": 10}, "batch_bytes is at least 64"),
        ({"batch_bytes": 60_000}, "batch_bytes is at most 32768"),
        ({"memory_bytes": 1}, "memory_bytes is at least"),
        ({"window": 0}, "window is at least 1"),
        ({"qos": 3}, "qos is 0, 1 or 2"),
        ({"qos": -1}, "qos is 0, 1 or 2"),
        ({"durable": "perhaps"}, "durable is true or false, not 'perhaps'"),
        ({"window": "3"}, "window is a whole number, not '3'"),
        ({"window": True}, "window is a whole number"),
        ({"flush_s": "soon"}, "flush_s is a number"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(setting: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_settings(environment={}, **setting)


@pytest.mark.parametrize(
    ("text", "complaint"), [("windw = 3", "there is no setting 'windw', only name, gateway"), ("= 3", "agent.toml: ")]
)
def test_a_bad_file_is_refused_with_a_reason(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load_settings(path, environment={})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_settings(tmp_path / "none.toml", environment={})

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_agent.home import host_name, state_folder, tidy_path


def test_a_program_without_a_name_has_that_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Pump_7.plant.example.org-very-long")
    assert host_name() == "pump-7-plant-example-or"
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert host_name() == "agent"


@pytest.mark.parametrize(
    ("state_home", "home", "folder"),
    [
        ("/var/state", "/root", "/var/state/threadline"),
        ("/var//state/", "/root", "/var/state/threadline"),
        ("", "/root/", "/root/.local/state/threadline"),
        (None, "/root", "/root/.local/state/threadline"),
    ],
)
def test_state_is_where_the_user_keeps_such_things(
    monkeypatch: pytest.MonkeyPatch, state_home: str | None, home: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if state_home is not None:
        monkeypatch.setenv("XDG_STATE_HOME", state_home)
    assert state_folder() == folder


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # nobody has that
    with pytest.raises(RuntimeError, match="home directory"):
        state_folder()


@given(st.lists(st.sampled_from(["/", ".", "..", "a", "b-2"]), max_size=8).map("".join))
@example("")
@example("spool/.")
@example("link/../spool/")
def test_a_path_is_as_short_as_it_can_be_and_names_the_same_file(path: str) -> None:
    expected = str(Path(path))
    assert tidy_path(path) == (expected[1:] if expected.startswith("//") else expected)

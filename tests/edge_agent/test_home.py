from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.config import Settings
from edge_agent.home import at_home, host_name, is_home, sibling, state_folder
from edge_agent.spool import Spool


def test_a_program_without_a_name_has_that_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Pump_7.plant.example.org-very-long")
    assert host_name() == "pump-7-plant-example-or"
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert host_name() == "agent"


@pytest.mark.parametrize(
    ("state_home", "home", "folder"),
    [
        ("/var/state", "/home/pi", "/var/state/threadline"),
        ("/var//state/", "/home/pi", "/var/state/threadline"),
        ("", "/home/pi/", "/home/pi/.local/state/threadline"),
        (None, "/home/pi", "/home/pi/.local/state/threadline"),
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


@pytest.mark.parametrize("spool", ["spool", "./spool/", "{here}//spool/."])
def test_a_folder_is_the_same_wherever_the_program_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spool: str
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = at_home(Settings(name="pump-7", spool=spool.format(here=tmp_path)))
    assert (settings.name, settings.spool) == ("pump-7", f"{tmp_path}/spool")


def test_who_tells_nothing_is_at_home_under_the_machines_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "pi-4")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    settings = at_home(Settings(window=3))
    assert (settings.name, settings.spool, settings.window) == ("pi-4", "/var/state/threadline/pi-4", 3)


def test_siblings_have_names_and_folders_of_their_own() -> None:
    settings = Settings(name="a-name-of-23-characters", spool="/var/spool")
    assert sibling(settings, 1) == settings
    found = [sibling(settings, number) for number in (2, 100)]
    assert [each.name for each in found] == ["a-name-of-23-characte-2", "a-name-of-23-charac-100"]
    assert [each.spool for each in found] == ["/var/spool-2", "/var/spool-100"]


def test_a_folder_where_an_agent_was(tmp_path: Path) -> None:
    assert not is_home(str(tmp_path))
    Spool.open(tmp_path / "up").close()
    assert is_home(str(tmp_path))

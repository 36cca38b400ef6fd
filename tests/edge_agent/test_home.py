from __future__ import annotations

import pytest

from edge_agent.home import host_name


def test_a_program_without_a_name_has_that_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Pump_7.plant.example.org-very-long")
    assert host_name() == "pump-7-plant-example-or"
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert host_name() == "agent"

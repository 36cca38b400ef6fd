"""Q1 to Q4 over two devices: the alerts and the readings behind them are those of the query on one device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edge_agent import app_file
from edge_agent.queries import (
    linear_road_accidents,
    linear_road_stopped,
    smart_grid_anomaly,
    smart_grid_blackout,
    split,
)
from edge_agent.queries.split import (
    accidents_center,
    accidents_roadside,
    anomaly_center,
    anomaly_substation,
    blackout_center,
    blackout_substation,
    stopped_center,
    stopped_roadside,
)
from edge_agent.stream import Loopback, Plan, Results, run
from protocol.plan import delays, fleet_delays
from protocol.records import OriginKind
from tests.support import oracle

Build = Callable[[str], Plan]
# timestamp, alert, and (timestamp, what it says) of the readings behind it
Alert = tuple[int, Any, list[tuple[int, str]]]

# query on one device, its parts, source, sink, and what kinds of origins its alerts have at the second device
QUERIES: list[tuple[Build, ModuleType, ModuleType, str, str, set[OriginKind]]] = [
    (linear_road_stopped.build, stopped_roadside, stopped_center, "reports", "stopped", {OriginKind.SOURCE}),
    (linear_road_accidents.build, accidents_roadside, accidents_center, "reports", "accidents", {OriginKind.REMOTE}),
    (smart_grid_blackout.build, blackout_substation, blackout_center, "readings", "blackouts", {OriginKind.REMOTE}),
    (
        smart_grid_anomaly.build,
        anomaly_substation,
        anomaly_center,
        "readings",
        "anomalies",
        {OriginKind.REMOTE, OriginKind.SOURCE},
    ),
]
every_query = pytest.mark.parametrize(
    ("whole", "sensing", "finding", "source", "sink", "kinds"), QUERIES, ids=[query[4] for query in QUERIES]
)


def agent_of(part: ModuleType) -> str:
    return part.__name__.rpartition(".")[2].replace("_", "-")


def plans_of(*parts: ModuleType, mode: str = "segments") -> dict[str, Plan]:
    return {agent_of(part): part.build(mode) for part in parts}


def alerts(fleet: Mapping[str, Results], agent: str, sink: str) -> list[Alert]:
    """A sink's tuples and the readings behind them, wherever these were made, by what they say: numbers are given as
    tuples leave a device, which is not the same for one device and for two. No reading says what another one says."""
    upstream = {each.id: each.origins for results in fleet.values() for each in results.deliveries}
    said = {each.id: (each.ts, repr(each.payload)) for results in fleet.values() for each in results.sources.values()}
    assert len(set(said.values())) == len(said)
    return [
        (each.ts, each.payload, sorted(said[origin.id] for origin in oracle.resolve(each.origins, upstream)))
        for each in fleet[agent].of(sink)
    ]


@pytest.mark.parametrize("mode", ["segments", "genealog"])
@every_query
def test_two_devices_find_what_one_finds_and_from_the_same_readings(
    whole: Build, sensing: ModuleType, finding: ModuleType, source: str, sink: str, kinds: set[OriginKind], mode: str
) -> None:
    alone = {"local": run(whole(mode))}
    fleet = Loopback(plans_of(sensing, finding, mode=mode)).run()
    found = alerts(fleet, agent_of(finding), sink)
    assert len(found) > 3
    assert found == alerts(alone, "local", sink)
    assert {origin.kind for each in fleet[agent_of(finding)].of(sink) for origin in each.origins} == kinds
    assert not fleet[agent_of(finding)].sources, "readings are told where they were made"
    assert not any(results.late or results.skipped for results in fleet.values())


@every_query
def test_u_is_that_of_the_query_on_one_device(
    whole: Build, sensing: ModuleType, finding: ModuleType, source: str, sink: str, kinds: set[OriginKind]
) -> None:
    documents = {agent: plan.document() for agent, plan in plans_of(sensing, finding).items()}
    [reached] = [reached for name, reached in fleet_delays(documents).items() if name == (agent_of(sensing), source)]
    assert reached == {(agent_of(finding), sink): delays(whole("segments").document())[source][sink]}


@every_query
def test_little_crosses(
    whole: Build, sensing: ModuleType, finding: ModuleType, source: str, sink: str, kinds: set[OriginKind]
) -> None:
    fleet = Loopback(plans_of(sensing, finding)).run()
    sent = fleet[agent_of(sensing)]
    assert 0 < len(sent.deliveries) < sent.metrics[source].taken / 20


def test_each_part_is_an_app_file_named_like_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_file, "_loaded", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    files = sorted(path for path in Path(split.__file__).parent.glob("*.py") if path.stem != "__init__")
    assert len(files) == 2 * len(QUERIES)
    for path in files:
        assert app_file.load(path).build().name == path.stem.replace("_", "-")
        del sys.modules[path.stem]

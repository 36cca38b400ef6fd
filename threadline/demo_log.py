"""The demo's scenes from the device to the durable log: nothing is lost while the cloud is away, and what one device
reports of another's data is traced back to the readings."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import typer

from collector.log_view import check, entries
from edge_agent import stream
from edge_agent.queries import linear_road_accidents
from protocol.events import TaskBegun, TaskEnded
from protocol.ids import TupleId
from protocol.records import Delivery, OriginKind
from protocol.wire.sections import Kind
from threadline.lab import TranslatorService

ROADSIDE, CENTER = "accidents-roadside", "accidents-center"
AWAY_S = 1.5
_PATIENCE_S = 60.0
_LISTING = """
from edge_agent.capture import Data, Task, Workflow, close

workflow = Workflow(1)
workflow.begin()
for step in range(5):
    for number in range(20):
        task = Task(f"{step}-{number}", workflow, step)
        task.begin([Data(f"in_{step}_{number}", workflow.id, {"in": [1] * 10})])
        task.end([Data(f"out_{step}_{number}", workflow.id, {"out": [2] * 10})])
workflow.end()
close(60)
"""


class LogScenes:
    """Runs agents as processes against a translator and looks into the log."""

    def __init__(
        self, folder: Path, gateway: str, translator: TranslatorService, verdict: Callable[[bool, str], None]
    ) -> None:
        self._folder = folder
        self._gateway = gateway
        self._translator = translator
        self._verdict = verdict

    def play(self) -> None:
        self._capture()
        self._split()
        faults = [line for line, is_fault in check(self._translator.log_folder) if is_fault]
        self._verdict(not faults, "the log is sound: checksums, order, nothing twice, nothing missing")

    def _capture(self) -> None:
        typer.echo(
            "\nA program on pi-1 captures a workflow of 100 tasks (ProvLight's Listing 1) through the same link,\n"
            f"while the translator is dead: killed (-9) before, back after {AWAY_S:g} s."
        )
        self._translator.kill()
        environment = {
            **os.environ,
            "THREADLINE_GATEWAY": self._gateway,
            "THREADLINE_AGENT": "pi-1",
            "THREADLINE_SPOOL": str(self._folder / "pi-1"),
        }
        program = subprocess.Popen([sys.executable, "-c", _LISTING], env=environment)
        time.sleep(AWAY_S)
        self._translator.start()
        ended = _ended(program)
        events = [entry.record for entry in entries(self._translator.log_folder, [Kind.EVENT], "pi-1")]
        begun = {event.key for event in events if isinstance(event, TaskBegun)}
        done = {event.key for event in events if isinstance(event, TaskEnded)}
        self._verdict(
            ended and [event.number for event in events] == list(range(202)) and begun == done and len(begun) == 100,
            f"the log holds all {len(events)} events of {len(begun)} tasks, each once and in order",
        )

    def _split(self) -> None:
        typer.echo(
            "\nThe accident query on two devices: roadside finds stopped cars, center finds accidents among them."
        )
        agents = [self._agent(name) for name in (CENTER, ROADSIDE)]
        ended = sum(_ended(agent) for agent in agents) == len(agents)
        told: dict[TupleId, Delivery] = {}
        alerts: list[Delivery] = []
        for entry in entries(self._translator.log_folder, [Kind.DELIVERY]):
            told[entry.record.id] = entry.record
            if entry.agent == CENTER:
                alerts.append(entry.record)
        alone = stream.run(linear_road_accidents.build())
        expected = [(alert.ts, vars(alert.payload)) for alert in alone.of("accidents")]
        self._verdict(
            ended and [(alert.ts, alert.payload) for alert in alerts] == expected,
            f"{len(alerts)} alerts in the log, the same as on one device",
        )
        readings = [{source for origin in alert.origins for source in _sources(told, origin.id)} for alert in alerts]
        self._verdict(
            all(len(each) == 8 for each in readings),
            f"each is traced back to its 8 reports, such as {min(readings[0])} for {alerts[0].id}",
        )

    def _agent(self, name: str) -> subprocess.Popen[bytes]:
        app = Path(stream.__file__).parent.parent / "queries" / "split" / f"{name.replace('-', '_')}.py"
        command = [sys.executable, "-m", "edge_agent.cli", "run", str(app), "--name", name, "--drain", "30"]
        command += ["--gateway", self._gateway, "--spool", str(self._folder / name)]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has come to a good end in time."""
    try:
        return process.wait(_PATIENCE_S) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        return False


def _sources(told: dict[TupleId, Delivery], of: TupleId) -> list[TupleId]:
    """The readings behind a tuple that another agent has delivered."""
    found: list[TupleId] = []
    for origin in told[of].origins:
        found += [origin.id] if origin.kind is OriginKind.SOURCE else _sources(told, origin.id)
    return found

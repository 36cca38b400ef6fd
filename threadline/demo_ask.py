"""The demo's end: the API is asked over HTTP, as anybody can do it, and a copy of the store stays to ask more of it."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import typer

from threadline.lab import ApiService

_PATIENCE_S = 30.0
_ALERTS = "accidents-center/accidents"
_URL = "http://127.0.0.1:8080"
"""Where the API is when a user serves the copy."""


class AskScenes:
    """Asks a server, and prints the lines by which a user can ask the same."""

    def __init__(self, api: ApiService, verdict: Callable[[bool, str], None]) -> None:
        # A proxy for the web knows nothing of what runs here.
        self._client = httpx.Client(base_url=api.url, timeout=_PATIENCE_S, trust_env=False)
        self._verdict = verdict

    def play(self) -> None:
        typer.echo("\nThe API answers over HTTP what the graph knows.")
        with self._client:
            self._wait_until_ready()
            alert = self._alert()
            reading = self._causes(alert)
            self._impact(reading)
            self._lineage(alert)
            self._captured()
            self._agents()

    def _wait_until_ready(self) -> None:
        give_up = time.monotonic() + _PATIENCE_S
        while self._client.get("/readyz").status_code != 200 and time.monotonic() < give_up:
            time.sleep(0.1)

    def _ask(self, path: str) -> Any:
        """An answer, behind the line by which anybody gets it."""
        typer.echo(f"    curl -s '{_URL}{path}'")
        response = self._client.get(path)
        return response.json() if response.status_code == 200 else {}

    def _alert(self) -> str:
        found = self._ask(f"/v1/sinks?stream={_ALERTS}&order=oldest&limit=1").get("vertices", [])
        said = found[0]["payload"] if found else {}
        self._verdict(
            len(found) == 1 and found[0]["state"] == "complete",
            f"the first accident: {found[0]['id'] if found else 'none'} on segment {said.get('segment')}",
        )
        return str(found[0]["id"]) if found else ""

    def _causes(self, alert: str) -> str:
        found = self._ask(f"/v1/vertices/{alert}/backward?payload=true")
        readings = found.get("vertices", [])[1:]
        cars = sorted({str(each["payload"]["vid"]) for each in readings})
        self._verdict(len(readings) == 8, f"it came from {len(readings)} readings of the cars {' and '.join(cars)}")
        return str(readings[-1]["id"]) if readings else ""

    def _impact(self, reading: str) -> None:
        found = self._ask(f"/v1/impact?source={reading}")
        state = "can touch no more" if found.get("alive") == 0 else "can still touch more"
        self._verdict(found.get("results", 0) > 0, f"{reading} touched {found.get('results')} results, and {state}")

    def _lineage(self, alert: str) -> None:
        found = self._ask(f"/v1/vertices/{alert}/lineage?levels=2&format=prov-json")
        entities, derivations = (len(found.get(part, {})) for part in ("entity", "wasDerivedFrom"))
        self._verdict(
            entities > 8 and derivations > 8,
            f"as W3C PROV: {entities} entities, {derivations} derivations, with the tuples that crossed devices",
        )

    def _captured(self) -> None:
        query = f"agent=pi-1&where={quote('used.in.0=1')}&order_by=-elapsed_ms&limit=3&select=elapsed_ms"
        rows = self._ask(f"/v1/tasks?{query}").get("items", [])
        times = ", ".join(f"{row['name']} {row['elapsed_ms']} ms" for row in rows)
        self._verdict(len(rows) == 3, f"the three longest tasks that pi-1 captured: {times}")

    def _agents(self) -> None:
        found = {each["name"]: each["presence"] for each in self._ask("/v1/agents").get("items", [])}
        states = {name: presence["state"] for name, presence in found.items()}
        self._verdict(
            bool(states) and set(states.values()) == {"offline"},
            f"{len(states)} agents, and the gateway says of each how it is (with --mqtt): {json.dumps(states)}",
        )


def kept_copy(store: Path) -> Path:
    """A copy of a store that stays when the demo is over."""
    folder = Path(tempfile.gettempdir()) / f"threadline-demo-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    kept = folder / "graph.db"
    for suffix in ("", "-wal", "-shm"):
        kept.with_name(kept.name + suffix).unlink(missing_ok=True)
    with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(kept)) as target:
        source.backup(target)
    return kept

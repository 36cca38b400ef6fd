"""A job of another streaming system: it counts readings over windows of time, and tells of it in documents."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from collector.ingest import Document, read_json, read_msgpack

STEP_MS = 1_000
READINGS = 5
"""Of each step."""
WINDOW_MS = 3 * STEP_MS
PLAN = {"sources": ["readings"], "sinks": {"counts": {"from": ["readings"], "window_ms": WINDOW_MS}}}


class Job:
    """One run of it. Batch n tells of step n, and of the count over the last steps; the last batch tells the end."""

    def __init__(self, agent: str, run: str, steps: int, epoch: int = 1) -> None:
        self.agent = agent
        self.run = run
        self.steps = steps
        self.epoch = epoch

    def batch(self, number: int) -> dict[str, Any]:
        """A batch as a caller writes it."""
        end = (number + 1) * STEP_MS
        sources = [{"source": {**each, "payload": {"value": each["seq"] % 7}}} for each in self.readings(number)]
        origins = [each for step in range(max(0, number - 2), number + 1) for each in self.readings(step)]
        count = {"stream": "counts", "seq": number, "ts": end, "payload": {"count": len(origins)}, "origins": origins}
        records = [*sources, {"delivery": count}, {"progress": {"stream": "counts", "watermark": end}}]
        if number == self.steps - 1:
            records.append({"end": {"ts": end}})
        made = {"agent": self.agent, "run": self.run, "epoch": self.epoch, "batch": number, "records": records}
        return made if number else {**made, "plan": PLAN}

    def readings(self, step: int) -> list[dict[str, Any]]:
        """The tuples of a step."""
        seqs = range(step * READINGS, (step + 1) * READINGS)
        return [{"stream": "readings", "seq": seq, "ts": seq * STEP_MS // READINGS} for seq in seqs]

    def document(self, number: int) -> Document:
        """The same, as it is taken: in JSON and in MessagePack by turns."""
        made = self.batch(number)
        return read_msgpack(msgspec.msgpack.encode(made)) if number % 2 else read_json(json.dumps(made).encode())

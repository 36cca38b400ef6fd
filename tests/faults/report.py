"""What the laboratory has found: a table of runs for people, and the same as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.faults.chain.run import Outcome

FILES = ("report.md", "report.json")
REPLAY = ".venv/bin/python -m tests.faults.chaos --layer {layer} --seed {seed}"
_COLUMNS = (
    "seed", "s", "faults", "events", "deliveries", "edges", "gaps", "named missing", "lost at kills", "lost with cards",
    "incomplete", "late", "verdict",
)  # fmt: skip


class Report:
    """Runs as they come, and the files that tell of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[Outcome] = []
        self.simulated = 0
        self.simulated_faults: Counter[str] = Counter()
        self.simulated_bad: dict[int, str] = {}

    @property
    def is_good(self) -> bool:
        return all(each.is_good for each in self.runs) and not self.simulated_bad

    def add(self, outcome: Outcome) -> None:
        """A run of the whole chain."""
        self.runs.append(outcome)

    def add_simulated(self, seed: int, error: str | None, faults: Mapping[str, int] | None = None) -> None:
        """A simulated run: what was wrong with it, or how often there was each kind of fault in it."""
        self.simulated += 1
        self.simulated_faults.update(faults or {})
        if error is not None:
            self.simulated_bad[seed] = error

    def summary(self) -> str:
        """All of it in a line."""
        parts: list[str] = []
        if self.runs:
            good = sum(each.is_good for each in self.runs)
            parts.append(f"{good} of {len(self.runs)} runs of the whole chain are good")
        if self.simulated:
            parts.append(f"{self.simulated - len(self.simulated_bad)} of {self.simulated} simulated runs are good")
        return "; ".join(parts) or "no run has come to its end"

    def write(self) -> None:
        """Both files, anew."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text, data = FILES
        (self.folder / text).write_text(self.markdown())
        told = {
            "runs": [each.as_dict() | {"replay": self._replay("chain", each.seed)} for each in self.runs],
            "simulated": {"runs": self.simulated, "faults": self.simulated_faults, "bad": self.simulated_bad},
        }
        (self.folder / data).write_text(json.dumps(told, indent=1) + "\n")

    def markdown(self) -> str:
        """For people."""
        parts = ["# Fault laboratory", self.summary() + "."]
        if self.runs:
            parts += ["## Runs of the whole chain", self._table(), "## Faults", self._faults()]
        if self.simulated_faults:
            rows = [f"| {kind} | {times} |" for kind, times in sorted(self.simulated_faults.items())]
            parts += ["## What happened in simulated runs", "\n".join(["| | times |", "|---|---|", *rows])]
        failures = [(each.seed, "chain", each.findings) for each in self.runs if not each.is_good]
        failures += [(seed, "simulation", [error]) for seed, error in self.simulated_bad.items()]
        if failures:
            parts.append("## What was wrong")
        for seed, layer, findings in failures:
            told = "\n".join(f"    {line}" for finding in findings for line in finding.splitlines())
            parts.append(f"Seed {seed}, again with `{self._replay(layer, seed)}`:\n\n{told}")
        return "\n\n".join(parts) + "\n"

    def _table(self) -> str:
        rows = [_COLUMNS, ("---",) * len(_COLUMNS)]
        for each in self.runs:
            made = (each.events, each.deliveries, each.edges, each.gaps)
            missing = (each.named_missing, each.lost_at_kills, each.lost_with_cards, each.incomplete, each.late)
            shown = (each.seed, f"{each.duration_s:.0f}", each.kinds, *made, *missing)
            rows.append((*map(str, shown), "good" if each.is_good else "BAD"))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def _faults(self) -> str:
        """How often there was each kind, and at whom."""
        total: dict[str, Counter[str]] = {}
        for each in self.runs:
            for kind, targets in each.faults.items():
                total.setdefault(kind, Counter()).update(targets)
        lines = ["| fault | times | at |", "|---|---|---|"]
        for kind, of in sorted(total.items()):
            lines.append(
                f"| {kind} | {of.total()} | {', '.join(f'{who} {times}' for who, times in sorted(of.items()))} |"
            )
        faults, dropped = sum(of.total() for of in total.values()), sum(each.dropped for each in self.runs)
        lines.append(f"| all | {faults} | besides, {dropped} datagrams were lost |")
        return "\n".join(lines)

    def _replay(self, layer: str, seed: int) -> str:
        return REPLAY.format(layer=layer, seed=seed)

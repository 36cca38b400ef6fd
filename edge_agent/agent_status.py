"""How an agent on this machine is, from what it leaves in its folder; it need not run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from edge_agent.config import Settings
from edge_agent.home import at_home
from edge_agent.siblings import is_open
from edge_agent.status_file import NAME, read_status_file

_STALE_S = 15.0
_STALE = ", and it should be newer: the agent stands still, or its disk takes nothing"


class StatusError(Exception):
    """There is nothing to tell."""


def read_status(settings: Settings) -> dict[str, Any]:
    """What the agent has last said of itself, and whether it runs."""
    folder = Path(at_home(settings).spool)
    try:
        status = read_status_file(str(folder))
    except FileNotFoundError:
        raise StatusError(f"no agent has its spool in {folder}") from None
    except (OSError, ValueError) as error:
        raise StatusError(f"{folder / NAME} cannot be read: {error}") from None
    status["running"] = is_open(str(folder))
    return status


def status_text(status: dict[str, Any], *, as_json: bool) -> str:
    """For people, or for programs."""
    if as_json:
        return json.dumps(status, indent=2) + "\n"
    link = status["link"]
    round_trip = link.get("round_trip_s")
    age_s = max(0.0, time.time() - status["at_ms"] / 1_000)
    lines = [
        f"agent {status['agent']}, epoch {status['epoch']}: "
        + (f"running, pid {status['pid']}" if status["running"] else "not running"),
        f"  as of           {_ago(age_s)} ago" + (_STALE if status["running"] and age_s > _STALE_S else ""),
        f"  spool           {status['spool_bytes']} of {status['spool_most_bytes']} bytes",
        f"  batches         {status['acknowledged']} acknowledged since it started, "
        f"{status['unacknowledged']} not yet, {status['resent_batches']} sent again",
        f"  dropped         {status['dropped']} records",
        *[
            f"  sends           {name}: {send['not_taken']} messages not taken yet, {send['given_up']} tuples given up"
            for name, send in status["sends"].items()
        ],
        *[f"  receives        {name}: {count} messages taken" for name, count in status["receives"].items()],
        *_in_vain(status.get("in_vain")),
        f"  not captured    {status['replaced']} values were replaced by placeholders",
        f"  link            {link['state']}, round trip "
        + ("unknown" if round_trip is None else f"{1000 * round_trip:.0f} ms")
        + f", {link['sent']} packets sent, {link['resent']} again, {link.get('duplicates', 0)} received twice, "
        f"{link['reconnects']} reconnects",
    ]
    troubles = [status["trouble"], *[send["trouble"] for send in status["sends"].values()]]
    lines += [f"  trouble         {trouble}" for trouble in troubles if trouble]
    if status.get("unreadable"):
        lines.append(f"  unreadable      {status['unreadable']} batches: the spool was damaged")
    if status.get("ignored"):
        lines.append(f"  ignored         {status['ignored']} messages that mean nothing came on its topics")
    if status["duplicate_agent"]:
        lines.append("  trouble         another agent uses the same name")
    return "\n".join(lines) + "\n"


def _in_vain(came: dict[str, int] | None) -> list[str]:
    """Messages of other agents that were not taken; older versions do not tell."""
    if not came or not any(came.values()):
        return []
    return [
        f"  came in vain    {came['duplicates']} messages twice, {came['early_dropped']} too early: these come again"
    ]


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"

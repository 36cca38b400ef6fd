"""How an agent on this machine is, from what it leaves in its folder; it need not run."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from edge_agent.config import Settings
from edge_agent.home import host_name, state_folder

_TRIES = 5


class StatusError(Exception):
    """There is nothing to tell."""


def read_status(settings: Settings) -> dict[str, Any]:
    """What the agent has last said of itself, and whether it runs."""
    folder = Path(settings.spool) if settings.spool else state_folder() / (settings.name or host_name())
    for _ in range(_TRIES):
        try:
            status: dict[str, Any] = json.loads((folder / "status.json").read_text())
            break
        except FileNotFoundError:
            raise StatusError(f"no agent has its spool in {folder}") from None
        except (OSError, ValueError):
            time.sleep(0.02)  # it is just being written
    else:
        raise StatusError(f"{folder / 'status.json'} cannot be read")
    status["running"] = _is_locked(folder / "up" / "lock")
    return status


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def status_text(status: dict[str, Any], *, as_json: bool) -> str:
    """For people, or for programs."""
    if as_json:
        return json.dumps(status, indent=2) + "\n"
    link = status["link"]
    round_trip = link.get("round_trip_s")
    acknowledged = status["batches"] - status["unacknowledged"]
    lines = [
        f"agent {status['agent']}, epoch {status['epoch']}: "
        + (f"running, pid {status['pid']}" if status["running"] else "not running"),
        f"  spool           {status['spool_bytes']} of {status['spool_most_bytes']} bytes",
        f"  batches         {max(acknowledged, 0)} acknowledged, {status['unacknowledged']} not yet, "
        f"{status['resent_batches']} sent again",
        f"  dropped         {status['dropped']} records",
        *[
            f"  sends           {name}: {send['not_taken']} messages not taken yet, {send['given_up']} tuples given up"
            for name, send in status["sends"].items()
        ],
        *[f"  receives        {name}: {count} messages taken" for name, count in status["receives"].items()],
        f"  not captured    {status['replaced']} values were replaced by placeholders",
        f"  link            {link['state']}, round trip "
        + ("unknown" if round_trip is None else f"{1000 * round_trip:.0f} ms")
        + f", {link['sent']} packets sent, {link['resent']} again, {link['reconnects']} reconnects",
    ]
    troubles = [status["trouble"], *[send["trouble"] for send in status["sends"].values()]]
    lines += [f"  trouble         {trouble}" for trouble in troubles if trouble]
    if status["duplicate_agent"]:
        lines.append("  trouble         another agent uses the same name")
    return "\n".join(lines) + "\n"

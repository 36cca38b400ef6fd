"""The spools of one program whose processes run at the same time: `spool`, `spool-2`, `spool-3` and so on.

A process takes the first one that nobody has open. So what the last of many could not send waits until as many run at
the same time again, or until somebody sends it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from edge_agent.config import Settings
from edge_agent.home import MOST_SIBLINGS, at_home, is_home, lock_in, sibling
from edge_agent.logger import Logger
from edge_agent.spool import Spool, SpoolError, SpoolLocked
from edge_agent.status_file import read_status_file
from protocol.structs import replaced

_LOG = Logger(__name__)
_LOOK_S = 0.1


class NoSpool(Exception):
    """There is nothing to send from; the text says why."""


def is_open(folder: str) -> bool:
    """Whether an agent has its spool in this folder and runs."""
    try:
        handle = os.open(lock_in(folder), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def tell_of_left(settings: Settings) -> None:
    """Warn if batches wait that no process is there to send."""
    waiting = {}
    for each in _existing(settings):
        # What somebody tests just now looks open to a process that begins: so only those are tested that matter.
        count = _last_status(each.spool).get("unacknowledged", 0)
        if count and not is_open(each.spool):
            waiting[each.spool] = count
    if waiting:
        from shlex import join

        _LOG.warning(
            "batches of processes that have ended are not sent yet: `%s` sends them agent=%s batches=%d spools=%s",
            join(["threadline-agent", "send", "--spool", settings.spool, "--gateway", settings.gateway]),
            settings.name,
            sum(waiting.values()),
            ",".join(waiting),
        )


def spools(settings: Settings) -> list[Settings]:
    """The spool of an agent and its siblings, as far as they exist, each with the name that its records were captured
    under: under another one they would be another agent's."""
    home = at_home(settings)
    if not is_home(home.spool):
        raise NoSpool(f"no agent has its spool in {home.spool}")
    known = _last_status(home.spool).get("agent")
    if settings.name and known not in (None, settings.name):
        raise NoSpool(f"{home.spool} is the spool of agent {known!r}, not of {settings.name!r}")
    if settings.spool and not settings.name and known is None:
        raise NoSpool(f"nothing in {home.spool} tells the agent's name: give --name")
    home = replaced(home, name=known or home.name)
    return [replaced(each, name=_last_status(each.spool).get("agent", each.name)) for each in _existing(home)]


def send_left(settings: Settings, drain_s: float, stop: threading.Event, say: Callable[[str], None]) -> bool:
    """Send what is left in one spool, for so long at most or until told to stop, and say how that went. Returns whether
    nothing is left; what a running agent has is its own to send."""
    where = f"agent {settings.name}, spool {settings.spool}"
    try:
        text, left = _sent(settings, drain_s, stop)
        for_others = _count_for_others(settings)
    except SpoolLocked as error:
        say(f"{where}: in use, left alone ({error})")
        return True
    except (SpoolError, OSError) as error:
        say(f"{where}: cannot be sent: {error}")
        return False
    if for_others:
        text += f"; {for_others} messages for other agents wait until its app runs again"
    say(f"{where}: {text}")
    return not (left or for_others)


def _sent(settings: Settings, drain_s: float, stop: threading.Event) -> tuple[str, int]:
    from edge_agent.agent import Agent

    # An agent says that it has begun and ended. Where there is nothing to send, neither has to be said.
    if not (_count(f"{settings.spool}/up", settings) or _last_status(settings.spool).get("unacknowledged")):
        return "nothing to send", 0
    deadline = monotonic() + drain_s
    agent = Agent(replaced(settings, when_full="block")).start()  # nothing is given up to make room for that
    while agent.left and monotonic() < deadline and not stop.wait(_LOOK_S):
        pass
    left = agent.close(0.0 if stop.is_set() else max(0.0, deadline - monotonic()))
    acknowledged = agent.status()["acknowledged"]
    return f"{acknowledged} batch{'es' * (acknowledged != 1)} acknowledged, {left or 'nothing'} left", left


def _count(folder: str, settings: Settings) -> int:
    """How many entries a spool holds, with the one that was being made when its process was killed."""
    with Spool.open(folder, max_bytes=settings.spool_bytes, fsync=settings.fsync) as spool:
        return spool.count + bool(spool.recovered_journal)


def _count_for_others(settings: Settings) -> int:
    """Messages to other agents. To send them, one has to know to whom, and only the plan does."""
    folders = [each.path for each in os.scandir(settings.spool) if each.name.startswith("send-") and each.is_dir()]
    return sum([_count(folder, settings) for folder in folders])


def _existing(settings: Settings) -> Iterator[Settings]:
    for number in range(1, MOST_SIBLINGS + 1):
        each = sibling(settings, number)
        if is_home(each.spool):
            yield each


def _last_status(folder: str) -> dict[str, Any]:
    """What the agent there has last said of itself, if that can be read."""
    try:
        return read_status_file(folder)
    except (OSError, ValueError):
        return {}

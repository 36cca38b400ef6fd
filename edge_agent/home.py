"""Where an agent is at home if nobody says: under the name of its machine, in a folder of the user's."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING

from protocol.structs import replaced
from protocol.topics import AGENT_NAME

if TYPE_CHECKING:
    from edge_agent.config import Settings

MOST_SIBLINGS = 100
_MOST_CHARACTERS = 23  # of a name


def at_home(settings: Settings) -> Settings:
    """Settings that say who the agent is and where its spool is, whether or not anybody told. The folder stays the same
    one when the program changes its own."""
    name = settings.name or host_name()
    return replaced(settings, name=name, spool=os.path.abspath(settings.spool or os.path.join(state_folder(), name)))


def sibling(settings: Settings, number: int) -> Settings:
    """The agent of one of several processes that run at the same time: they share a name and may not share a spool, so
    the second one is called name-2."""
    if number == 1:
        return settings
    suffix = f"-{number}"
    name = f"{settings.name[: _MOST_CHARACTERS - len(suffix)]}{suffix}"
    return replaced(settings, name=name, spool=f"{settings.spool}{suffix}")


def lock_in(folder: str) -> str:
    """What the process of an agent holds as long as it has its spool in this folder."""
    return os.path.join(folder, "up", "lock")


def is_home(folder: str) -> bool:
    """Whether an agent has, or once had, its spool in this folder."""
    return os.path.exists(lock_in(folder))


def host_name() -> str:
    """The name of this machine, as far as it can be an agent's."""
    name = re.sub("[^a-z0-9-]", "-", socket.gethostname().lower())[:_MOST_CHARACTERS]
    return name if re.fullmatch(AGENT_NAME, name) else "agent"


def state_folder() -> str:
    """Where agents keep their spools if they are not told."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(_home(), ".local", "state")
    return os.path.abspath(os.path.join(state, "threadline"))


def _home() -> str:
    home = os.path.expanduser("~")
    if home.startswith("~"):  # neither HOME nor the system's users tell
        raise RuntimeError("Could not determine home directory.")
    return home

"""Where an agent is at home if nobody says: under the name of its machine, in a folder of the user's."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from protocol.topics import AGENT_NAME


def host_name() -> str:
    """The name of this machine, as far as it can be an agent's."""
    name = re.sub("[^a-z0-9-]", "-", socket.gethostname().lower())[:23]
    return name if re.fullmatch(AGENT_NAME, name) else "agent"


def state_folder() -> Path:
    """Where agents keep their spools if they are not told."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "threadline"

"""Where an agent is at home if nobody says: under the name of its machine, in a folder of the user's."""

from __future__ import annotations

import os
import re
import socket

from protocol.topics import AGENT_NAME


def host_name() -> str:
    """The name of this machine, as far as it can be an agent's."""
    name = re.sub("[^a-z0-9-]", "-", socket.gethostname().lower())[:23]
    return name if re.fullmatch(AGENT_NAME, name) else "agent"


def state_folder() -> str:
    """Where agents keep their spools if they are not told."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(_home(), ".local", "state")
    return tidy_path(os.path.join(state, "threadline"))


def _home() -> str:
    home = os.path.expanduser("~")
    if home.startswith("~"):  # neither HOME nor the system's users tell
        raise RuntimeError("Could not determine home directory.")
    return home


def tidy_path(path: str) -> str:
    """A path as a person wrote it, without what says nothing: `.`, doubled slashes and one at the end.

    So `spool/` has the sibling `spool-2`. Each `..` stays: behind a link it does not undo what is before it.
    """
    root = "/" if path.startswith("/") else ""
    return root + "/".join([part for part in path.split("/") if part not in ("", ".")]) or "."

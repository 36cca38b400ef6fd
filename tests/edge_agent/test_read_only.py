"""A disk that has become read-only, as worn cards do: what is in the spool can still be sent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.agent import Agent
from edge_agent.config import Settings
from tests.edge_agent.spooled import NOWHERE, batches

SCRIPT = """
set -e
mount --bind "$1" "$1"
mount -o remount,ro,bind "$1"
exec "$2" -c "$3" "$1"
"""
PROGRAM = """
import sys
from edge_agent.agent import Agent
from edge_agent.config import Settings
agent = Agent(Settings(name="pump-7", gateway="127.0.0.1:9", spool=sys.argv[1])).start()
print(agent.status()["unacknowledged"], next(agent._spool.entries()).first)
agent.close(0.0)
print(agent.status()["trouble"])
"""


def can_mount() -> bool:
    return (
        os.geteuid() == 0
        and shutil.which("unshare") is not None
        and subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not can_mount(), reason="only root may mount a folder read-only")
def test_a_spool_on_a_disk_that_is_read_only_can_still_be_sent(tmp_path: Path) -> None:
    with Agent(Settings(name="pump-7", gateway=NOWHERE, spool=str(tmp_path))) as agent:
        agent.close(0.0)
    count = len(batches(tmp_path))
    command = ["unshare", "-m", "bash", "-c", SCRIPT, "", str(tmp_path), sys.executable, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    sent, trouble = done.stdout.splitlines()
    assert sent == f"{count} 0"
    assert "Read-only file system" in trouble

"""The command in a process of its own, for what a process shows only from outside: signals, pipes, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from edge_agent import cli
from tests.support.waiting import wait_until

ROOT = Path(cli.__file__).parent.parent


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs. It is waited for at the end, and killed first if the test has failed."""
    with subprocess.Popen(
        [sys.executable, "-m", "edge_agent.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def in_shell(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as "$@" of a shell script, which can close and redirect what it is given."""
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "edge_agent.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
        timeout=60,
    )


def wait_until_it_waits(process: subprocess.Popen[str]) -> None:
    """Until a command that has always something to print can do nothing but wait: nobody reads, the pipe is full.

    A signal wakes it before `send_signal` returns; so when it waits again, it has seen the signal.
    """
    command = psutil.Process(process.pid)
    wait_until(lambda: command.status() == psutil.STATUS_SLEEPING, "the command waits for the reader of its output")

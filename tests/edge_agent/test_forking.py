"""Programs that fork right after their first capture, when the agent's threads do everything for the first time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.edge_agent.spooled import NOWHERE, spooled

ROUNDS = 3
PROGRAM = """
import os, sys, time
from edge_agent.capture import Task, Workflow, close, flush
with Workflow("parent"):
    with Task("a"):
        pass
    {before}
    child = os.fork()
    if child == 0:
        with Workflow("child"), Task("b"):
            pass
        close(0.1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
close(0.1)
"""


@pytest.mark.parametrize("gateway", [NOWHERE, "no-such-host.invalid:9"])
def test_a_child_that_is_forked_at_once_captures_and_ends(tmp_path: Path, gateway: str) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        environment = {"THREADLINE_GATEWAY": gateway, "THREADLINE_AGENT": "pump-7", "THREADLINE_SPOOL": str(folder)}
        program = PROGRAM.format(before=f"time.sleep({0.002 * number})")
        subprocess.run([sys.executable, "-c", program], env=environment, timeout=20, check=True)
        for name, spool in (("pump-7", folder), ("pump-7-2", folder.with_name(f"{number}-2"))):
            assert len([each for each in spooled(spool, name) if hasattr(each, "number")]) == 4


def test_a_fork_waits_for_the_module_that_another_thread_loads() -> None:
    program = """
import importlib, os, sys, threading, time
from edge_agent.background import importing
sys.modules.pop("slow", None)
def load():
    with importing:
        entered.set()
        time.sleep(0.3)
        loaded.append(1)
entered, loaded = threading.Event(), []
thread = threading.Thread(target=load)
thread.start()
entered.wait()
child = os.fork()
if child == 0:
    with importing:
        os._exit(0 if loaded else 1)
assert os.waitpid(child, 0)[1] == 0
with importing:
    print("ok")
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=20, check=True, capture_output=True, text=True)
    assert done.stdout == "ok\n"


def test_a_child_compresses_although_its_parent_was_just_doing_so() -> None:
    program = """
import os, threading
from protocol.wire.compression import Codec, compress, decompress
stop = False
def work():
    while not stop:
        compress(bytes(9000), Codec.ZSTD_DICTIONARY)
thread = threading.Thread(target=work)
thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        assert decompress(compress(b"a" * 999, Codec.ZSTD_DICTIONARY), Codec.ZSTD_DICTIONARY) == b"a" * 999
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
"""
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True)

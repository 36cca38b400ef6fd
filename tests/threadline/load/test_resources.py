"""What processes cost, as /proc tells it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.waiting import wait_until
from threadline.load.resources import Resources, is_alive, machine_cpu_s


def test_what_a_component_has_started_belongs_to_it() -> None:
    """Until it has ended; the CPU time that it took stays counted."""
    command = [sys.executable, "-c", "print(sum(range(3_000_000)), flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        resources = Resources({"all": [os.getpid()], "own": [os.getpid()], "child": [child.pid]}, alone=("own",))
        child.stdout.readline()
        seen = resources.look()
        assert seen["all"].memory_bytes > seen["own"].memory_bytes > 1 << 20
        assert seen["child"].rss_bytes > seen["child"].memory_bytes > 1 << 20
        child.stdin.write("\n")
        child.stdin.close()
        child.wait()
    after = resources.look()
    assert after["child"].memory_bytes == 0
    assert after["child"].cpu_s == seen["child"].cpu_s
    assert after["own"].cpu_s >= seen["own"].cpu_s


def test_a_process_that_never_was_costs_nothing() -> None:
    assert Resources({"nobody": [2**22 + 1]}).look()["nobody"].cpu_s == 0.0


def test_the_machine_only_ever_gets_busier() -> None:
    assert 0 < machine_cpu_s() <= machine_cpu_s()


def test_a_process_that_has_ended_is_gone_though_nobody_has_waited_for_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid)
    assert process.stdin is not None
    process.stdin.close()
    wait_until(lambda: not is_alive(process.pid), "it is gone", 20)
    process.wait()
    assert not is_alive(process.pid)

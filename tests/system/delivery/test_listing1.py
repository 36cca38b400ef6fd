"""The paper's Listing 1 as a program, into the log; and a task that can be seen while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collector.log_view import entries
from protocol.events import TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded
from protocol.wire.sections import Kind
from tests.support.waiting import wait_until
from tests.system.delivery.site import Cloud

LISTING = Path(__file__).parents[3] / "examples" / "listing1.py"
SLOW_TASK = """
from edge_agent.capture import Data, Task, Workflow
with Workflow("slow") as workflow:
    task = Task("long", workflow, "wait").begin([Data("in", workflow.id, {"speed": 13.9})])
    input()
    task.end([Data("out", workflow.id, {"speed": 14.1})])
"""


def environment(cloud: Cloud, name: str, spool: Path) -> dict[str, str]:
    return {
        **os.environ,
        "THREADLINE_GATEWAY": cloud.gateway_url,
        "THREADLINE_AGENT": name,
        "THREADLINE_SPOOL": str(spool),
    }


def events(cloud: Cloud, name: str) -> list[Any]:
    return [entry.record for entry in entries(cloud.log_folder, [Kind.EVENT], name)]


@pytest.mark.parametrize("attributes", [10, 100])
def test_listing_1_is_in_the_log(cloud: Cloud, tmp_path: Path, attributes: int) -> None:
    text = LISTING.read_text().replace("attributes = 100\n", f"attributes = {attributes}\n")
    assert f"attributes = {attributes}\n" in text
    name = f"listing-{attributes}"
    subprocess.run([sys.executable, "-c", text], env=environment(cloud, name, tmp_path), check=True, timeout=60)
    wait_until(lambda: len(events(cloud, name)) == 202, "all events")
    found = events(cloud, name)
    assert [event.number for event in found] == list(range(202))
    assert isinstance(found[0], WorkflowBegun) and isinstance(found[-1], WorkflowEnded)
    begun = [event for event in found if isinstance(event, TaskBegun)]
    ended = [event for event in found if isinstance(event, TaskEnded)]
    assert [task.id for task in begun] == [f"{step}-{number}" for step in range(5) for number in range(20)]
    assert [task.key for task in begun] == [task.key for task in ended]
    assert all(task.used[0].attributes == {"in": [1] * attributes} for task in begun)
    assert all(task.generated[0].attributes == {"out": [2] * attributes} for task in ended)
    assert [task.dependencies[0].key for task in begun[1:]] == [task.key for task in begun[:-1]]


def test_a_task_is_visible_while_it_runs(cloud: Cloud, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_TASK], env=environment(cloud, "slow-1", tmp_path), stdin=subprocess.PIPE
    ) as process:
        wait_until(lambda: len(events(cloud, "slow-1")) == 2, "the begin of workflow and task")
        _, running = events(cloud, "slow-1")
        assert isinstance(running, TaskBegun)
        assert (running.id, running.used[0].attributes) == ("long", {"speed": 13.9})
        assert process.poll() is None
        process.communicate(b"\n", timeout=30)
    wait_until(lambda: len(events(cloud, "slow-1")) == 4, "the ends")
    ended = events(cloud, "slow-1")[2]
    assert isinstance(ended, TaskEnded)
    assert (ended.key, ended.status, ended.generated[0].attributes) == (running.key, "finished", {"speed": 14.1})

"""The recorder of a process: an agent started by the first workflow, ended with the program, left behind by a fork."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from edge_agent.capture import Task, Workflow, close, counts, flush, use
from edge_agent.capture.process import EXIT_S, process
from protocol.events import TaskBegun, WorkflowBegun
from tests.edge_agent.capture.memory import Memory

ROOT = Path(__file__).parents[3]


class Starting:
    """Stands for the agent module: every agent that it starts is a memory."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.started: list[Memory] = []
        self.error: Exception | None = None
        self.tries = 0
        module = ModuleType("edge_agent.agent")
        module.default_agent = self._default_agent  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "edge_agent.agent", module)

    def _default_agent(self) -> Memory:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.started.append(Memory())
        return self.started[-1]


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Starting:
    use(None)
    return Starting(monkeypatch)


def test_the_first_workflow_starts_the_agent_and_others_share_it(starting: Starting) -> None:
    flush()
    close()
    assert starting.started == []
    made: list[Workflow] = []
    threads = [threading.Thread(target=lambda: made.append(Workflow("w").begin())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (agent,) = starting.started
    assert len(agent.of(WorkflowBegun)) == 8
    flush(3.0)
    assert agent.flushed == [8]
    close(7.0)
    assert agent.closed == [7.0]


def test_what_is_captured_after_close_goes_to_a_new_agent(starting: Starting) -> None:
    workflow = Workflow("w").begin()
    made, running = Task("made", workflow), Task("running", workflow).begin()
    close()
    close()
    made.begin().end()
    running.end()
    first, second = starting.started
    assert len(first.closed) == 1
    assert [row[1] for row in first.rows] == [0, 2]
    assert [row[1] for row in second.rows] == [0, 2, 3], "the workflow begins again for the new agent"
    assert second.of(TaskBegun)[0].workflow == second.of(WorkflowBegun)[0].key
    assert counts()["task_left_behind"] == 1


def test_an_agent_that_is_closed_within_a_workflow_leaves_its_end_behind(starting: Starting) -> None:
    with Workflow("w"):
        close()
    assert counts()["workflow_left_behind"] == 1
    (agent,) = starting.started
    assert [row[1] for row in agent.rows] == [0]


def test_a_recorder_in_use_is_flushed_by_close_not_ended(memory: Memory) -> None:
    Workflow("w").begin()
    close()
    assert (memory.flushed, memory.closed) == ([1], [])
    Workflow("w").begin()
    assert len(memory.rows) == 2


def test_use_ends_the_agent_that_was_started_before(starting: Starting, memory: Memory) -> None:
    workflow = Workflow("w").begin()
    use(memory)
    workflow.begin()
    assert starting.started[0].closed == [EXIT_S]
    assert (len(starting.started[0].rows), len(memory.rows)) == (1, 1)


def test_an_explicit_recorder_needs_no_agent(starting: Starting) -> None:
    own = Memory()
    with Workflow("w", recorder=own), Task("t"):
        pass
    assert starting.tries == 0
    assert [row[1] for row in own.rows] == [0, 2, 3, 1]


def test_without_an_agent_the_program_runs_and_the_loss_is_counted(
    starting: Starting, caplog: pytest.LogCaptureFixture
) -> None:
    starting.error = ValueError("no gateway: set THREADLINE_GATEWAY")
    for _ in range(3):
        with Workflow("w"), Task("t") as task:
            task.generate(None)
    close()
    (record,) = caplog.records
    assert "no gateway: set THREADLINE_GATEWAY" in record.getMessage()
    assert starting.tries == 1
    assert counts()["discarded"] == 12


def test_strict_mode_raises_when_there_is_no_agent(starting: Starting) -> None:
    starting.error = ValueError("no gateway")
    use(None, strict=True)
    with pytest.raises(ValueError, match="no gateway"):
        Workflow("w")


@pytest.mark.parametrize(("strict", "expected"), [(None, True), (False, False)])
def test_a_strict_recorder_makes_its_process_strict(strict: bool | None, expected: bool) -> None:
    from edge_agent.capture.misuse import misuse

    use(Memory(strict=True), strict=strict)
    assert misuse.strict is expected
    use(Memory())
    assert misuse.strict is False


# In processes of their own

STAND_IN = """
import os, sys, logging
from types import ModuleType
from tests.edge_agent.capture.memory import Memory

logging.basicConfig(stream=sys.stdout, format="%(message)s")

class Agent(Memory):
    def close(self, timeout=None):
        kinds = "".join(str(row[1]) for row in self.rows)
        keys = ",".join(str(row[3]) for row in self.rows)
        os.write(1, f"{'child' if os.getpid() != FIRST else 'first'} {kinds} {keys} {timeout}\\n".encode())

FIRST = os.getpid()
module = ModuleType("edge_agent.agent")
module.default_agent = Agent
sys.modules["edge_agent.agent"] = module
from edge_agent.capture import *
"""


def lines(program: str, folder: Path, **environment: str) -> list[str]:
    """What a program prints that captures with the stand-in."""
    script = folder / "program.py"
    script.write_text(STAND_IN + program)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_end_of_the_program_ends_the_agent_in_time(tmp_path: Path) -> None:
    program = """
import atexit
atexit.register(lambda: Workflow("too late").begin() and print(counts()["discarded"]))
with Workflow("w"), Task("t"): pass
"""
    first, warning, count = lines(program, tmp_path)
    assert first == f"first 0231 0,1,1,0 {EXIT_S}"
    assert "what is captured now is discarded" in warning
    assert count == "1"


def test_a_forked_child_begins_anew(tmp_path: Path) -> None:
    program = """
@task
def work(number): return number

workflow = Workflow("w").begin()
other = Workflow("other").begin()
before = Task("made before", workflow, dependencies=[Task("x", workflow)])
with Task("running", workflow) as running:
    child = os.fork()
    if child == 0:
        before.begin().end()
        work(1)
        running.end()
        row = work.__name__, counts()["task_left_behind"], [r[7] for r in workflow.run().recorder.rows if r[1] == 2]
        os.write(1, f"{row}\\n".encode())
        close(1.0)
        os._exit(0)
    os.waitpid(child, 0)
workflow.end()
"""
    assert lines(program, tmp_path) == [
        "task 'running' was begun with an agent that this process has no more"
        " (further ones are only counted) kind=task_left_behind",
        "('work', 1, [(('x', -1),), (('running', -1),)])",
        "child 02323 0,1,1,2,2 1.0",
        f"first 00231 0,1,4,4,0 {EXIT_S}",
    ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_multiprocessing_end_their_agents(tmp_path: Path, method: str) -> None:
    program = """
import multiprocessing

def work(workflow):
    with Task("t", workflow): pass

if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    workflow = Workflow("w").begin()
    child = context.Process(target=work, args=(workflow,))
    child.start()
    child.join()
"""
    told = lines(program.replace("METHOD", method), tmp_path)
    role = "child" if method == "fork" else "first"  # a spawned process knows no other
    assert told == [f"{role} 023 0,1,1 {EXIT_S}", f"first 0 0 {EXIT_S}"]


def test_strict_comes_from_the_environment(tmp_path: Path) -> None:
    program = """
try: Task("t")
except CaptureError as error: print(error)
"""
    (said,) = lines(program, tmp_path, THREADLINE_STRICT="1")
    assert said.startswith("task 't' has no workflow")


def test_no_two_processes_make_up_the_same_ids(tmp_path: Path) -> None:
    program = """
from edge_agent.capture.process import process
os.write(1, f"{process.token}\\n".encode())
if os.fork() == 0:
    os.write(1, f"{process.token}\\n".encode())
    os._exit(0)
os.wait()
"""
    tokens = [*lines(program, tmp_path), *lines(program, tmp_path), process.token]
    assert len(set(tokens)) == len(tokens) == 5

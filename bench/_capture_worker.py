"""The process that a contender is measured in: the paper's Listing 1, with a clock around every begin and end.

A contender is a module `bench._capture_<name>` with what the listing uses, the classes Workflow, Task and Data, and
with `start(server, ...)`, which imports the library and connects, and `finish()`, which returns when everything was
sent. What a library imports is part of its cost, so this module imports next to nothing that a bare interpreter has not
loaded already: whatever it brought along, the contenders would get for nothing. Hence marshal instead of JSON.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
from importlib import import_module

TYPE_CHECKING = False  # the one of typing would be an import
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def main() -> None:
    """Read the settings, get ready and say so, wait for a line, run, tell."""
    settings = marshal.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # whatever a library prints is no answer
        library = import_module(settings["module"])
        library.start(**settings["options"])
        answers.write(b"ready\n")
        answers.flush()
        sys.stdin.buffer.readline()
        marshal.dump(run(library, **settings["workload"]), answers)


def run(library: ModuleType, data: list[Any], transformations: int, task_s: float, settle_s: float) -> dict[str, Any]:
    """The listing. `call_ns` is begin or end by itself; `event_ns` also makes the objects that it is called with.

    To fall asleep and to be woken is what a task of this workload consists of: that CPU time is not the library's.
    """
    call_ns, event_ns = [0] * (2 * len(data)), [0] * (2 * len(data))
    clock, sleep = time.perf_counter_ns, time.sleep
    tasks_per_transformation = len(data) // transformations
    workflow = library.Workflow(1)
    workflow.begin()
    sleep(settle_s)
    cpu_s, asleep_s = time.process_time(), 0.0
    previous: list[str] = []
    for number, (attributes_in, attributes_out) in enumerate(data):
        transformation = number // tasks_per_transformation
        task_id, in_id, out_id = f"{transformation}-{number}", f"in_{number}", f"out_{number}"

        at = clock()
        task = library.Task(task_id, workflow, transformation, dependencies=previous)
        data_in = [library.Data(in_id, workflow.id, attributes_in)]
        called = clock()
        task.begin(data_in)
        done = clock()
        call_ns[2 * number], event_ns[2 * number] = done - called, done - at

        if task_s:
            asleep_s -= time.thread_time()
            sleep(task_s)
            asleep_s += time.thread_time()

        at = clock()
        data_out = [library.Data(out_id, workflow.id, attributes_out)]
        called = clock()
        task.end(data_out)
        done = clock()
        call_ns[2 * number + 1], event_ns[2 * number + 1] = done - called, done - at
        previous = [task_id]
    workflow.end()
    library.finish()
    return {
        "call_ns": call_ns,
        "event_ns": event_ns,
        "cpu_s": time.process_time() - cpu_s - asleep_s,
        "peak_rss_bytes": _peak_rss_bytes(),
    }


def _peak_rss_bytes() -> int:
    with open("/proc/self/status") as status:  # noqa: PTH123 (pathlib would be an import)
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise OSError("this kernel tells no VmHWM")

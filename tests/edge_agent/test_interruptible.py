"""A signal may come between any two instructions of a wait."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from edge_agent.interruptible import interruptible


class Signalled(BaseException):
    """As the handler of a signal raises it."""


def wait_interrupted_at(step: int) -> str | None:
    """Raise before one instruction of the standard library's code for waiting; says where, None if it has fewer."""
    condition, steps = threading.Condition(), 0
    where: str | None = None

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps, where
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_filename == threading.__file__:
            steps += 1
            if steps == step:
                where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                sys.settrace(None)
                raise Signalled
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with interruptible(), condition:
            condition.wait_for(lambda: False, 0.001)
    except Signalled:
        return where
    finally:
        sys.settrace(before)
    return None


def test_what_a_signal_raises_comes_out_wherever_a_wait_is() -> None:
    steps = 1
    while wait_interrupted_at(steps) is not None:
        steps += 1
    assert steps > 50


def test_other_errors_come_out_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="un-acquired"), interruptible():
        threading.Condition().notify_all()
    with pytest.raises(RuntimeError, match="wrong"), interruptible():
        try:
            raise ValueError
        except ValueError:
            raise RuntimeError("wrong")  # noqa: B904

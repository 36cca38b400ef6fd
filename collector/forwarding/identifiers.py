"""Ids for what the log tells of: the same whoever forwards it and however often, and the same that people see.

Tuples have ids of their own, such as `pump-7/readings@3:1842`. `epoch` is the number by which people know a start of an
agent."""

from __future__ import annotations

from urllib.parse import quote

from collector.names import DataName, Epoch, TaskName, WorkflowName


def task_id(agent: str, epoch: int, key: int) -> str:
    return str(TaskName(agent, Epoch(epoch), key))


def unknown_task_id(agent: str, epoch: int, name: str) -> str:
    """A task of which only the user's id is known."""
    return f"task:{agent}@{epoch}:?{quote(name, safe='')}"


def workflow_id(agent: str, epoch: int, key: int) -> str:
    return str(WorkflowName(agent, Epoch(epoch), key))


def named_workflow_id(agent: str, epoch: int, name: str) -> str:
    """All workflows of a start that the user gave one id: data says no more of where it belongs."""
    return f"workflow:{agent}@{epoch}:?{quote(name, safe='')}"


def data_id(agent: str, epoch: int, workflow_name: str, name: str) -> str:
    """Data as a start knows it, which has generated it or uses it."""
    return str(DataName(workflow_name, name, agent, Epoch(epoch)))


def general_data_id(workflow_name: str, name: str) -> str:
    """Data of that name, whosever it is."""
    return str(DataName(workflow_name, name))

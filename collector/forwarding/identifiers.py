"""Ids for what the log tells of: the same whoever forwards it and however often, and the same that people see.

Tuples have ids of their own, such as `pump-7/readings@3:1842`. `epoch` is the number by which people know a start of an
agent."""

from __future__ import annotations

from urllib.parse import quote

NAMESPACE = "urn:threadline:"
"""Followed by the local name of an id, it is a URI."""


def local_name(id: str) -> str:
    """An id as the local part of a qualified name: what cannot stand there is percent-encoded."""
    return quote(id, safe="/@:")


def task_id(agent: str, epoch: int, key: int) -> str:
    return f"task:{agent}@{epoch}:{key}"


def unknown_task_id(agent: str, epoch: int, name: str) -> str:
    """A task of which only the user's id is known."""
    return f"task:{agent}@{epoch}:?{quote(name, safe='')}"


def workflow_id(agent: str, epoch: int, key: int) -> str:
    return f"workflow:{agent}@{epoch}:{key}"


def named_workflow_id(agent: str, epoch: int, name: str) -> str:
    """All workflows of a start that the user gave one id: data says no more of where it belongs."""
    return f"workflow:{agent}@{epoch}:?{quote(name, safe='')}"


def data_id(agent: str, epoch: int, workflow_name: str, name: str) -> str:
    return f"data:{agent}@{epoch}:{quote(workflow_name, safe='')}/{quote(name, safe='')}"

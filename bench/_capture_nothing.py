"""A contender that captures nothing: what the workload and its clocks cost by themselves."""

from __future__ import annotations


def start(server: str) -> None:
    """There is nothing to connect."""


def finish() -> None:
    """There is nothing to wait for."""


class Workflow:
    def __init__(self, id: int) -> None:
        self.id = id

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass


class Data:
    def __init__(self, id: str, workflow_id: int, attributes: dict[str, object]) -> None:
        pass


class Task:
    def __init__(self, id: str, workflow: Workflow, transformation_id: int, dependencies: list[str]) -> None:
        pass

    def begin(self, data: list[Data]) -> None:
        pass

    def end(self, data: list[Data]) -> None:
        pass

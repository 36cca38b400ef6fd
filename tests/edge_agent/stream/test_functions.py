"""The names of user functions in plans and errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import pytest

from edge_agent.stream import Plan, Sum
from edge_agent.stream.functions import name_of

HERE = __name__


class Model:
    """An object to call, without a text of its own."""

    def __call__(self, value: int) -> int:
        return value


class Drawn(Model):
    def __repr__(self) -> str:
        return "Drawn\n|----|"


class Unshowable(Model):
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class Thresholds(Model):
    limits: list[int]

    def __call__(self, value: int) -> int:
        return value


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (len, "builtins:len"),
        (Model, f"{HERE}:Model"),
        (Model(), f"{HERE}:Model"),
        (Model().__call__, f"{HERE}:Model.__call__"),
        (Drawn(), f"{HERE}:Drawn"),
        (Thresholds([1, 2]), "Thresholds(limits=[1, 2])"),
        (Thresholds(list(range(400))), f"{HERE}:Thresholds"),
        (itemgetter(0), "operator.itemgetter(0)"),
        (partial(Model()), f"partial({HERE}:Model)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_name_is_short_and_the_same_in_every_run(function: object, name: str) -> None:
    assert name_of(function) == name


@pytest.mark.parametrize("function", [Model(), Drawn(), Unshowable(), Thresholds(list(range(400)))], ids=type)
def test_any_object_that_can_be_called_is_a_function(function: Model) -> None:
    plan = Plan("objects")
    plan.source("s").map(function).key_by(function).window(10).aggregate(Sum(function)).sink("out")
    assert plan.document().to_json()

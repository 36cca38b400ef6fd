"""Stores of captured events: told by hand, or as many programs on several devices might have told them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from collector import filters
from collector.store.captured import add_events
from collector.store.nonces import signed
from collector.store.schema import migrate
from protocol.events import UNKNOWN, DataItem, Dependency, Event, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded

Told = tuple[int, Event]
"""Which start has told what."""


def empty_store(starts: int = 3) -> sqlite3.Connection:
    """A store in memory, with starts 1 to n: of agents a and b in turn, the last of them without an epoch."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db, 0)
    filters.register(db)
    for number in range(1, starts + 1):
        epoch = None if number == starts else number // 2
        row = (number, "ba"[number % 2], signed(2**64 - number), epoch)
        db.execute("INSERT INTO starts (number, agent, nonce, epoch, last_seen_ms) VALUES (?,?,?,?,0)", row)
    return db


def tell(db: sqlite3.Connection, told: Iterable[Told]) -> None:
    """Keep events as the writer does."""
    for start, event in told:
        add_events(db, start, [event])


def workflow_begun(key: int, name: str, ts: int = 0, attributes: Any = None) -> WorkflowBegun:
    return WorkflowBegun(0, ts, key, name, attributes)


def workflow_ended(key: int, ts: int = 1, error: str = "") -> WorkflowEnded:
    return WorkflowEnded(0, ts, key, "failed" if error else "finished", error)


def begun(
    key: int,
    name: str,
    *used: DataItem,
    workflow: int = 0,
    ts: int = 0,
    transformation: str = "train",
    after: Iterable[Dependency] = (),
) -> TaskBegun:
    return TaskBegun(0, ts, key, workflow, name, transformation, tuple(after), used)


def ended(key: int, *generated: DataItem, ts: int = 1, error: str = "") -> TaskEnded:
    return TaskEnded(0, ts, key, "failed" if error else "finished", error, generated)


def data(name: str, attributes: Any = None, *derivations: str, workflow: str = "w") -> DataItem:
    return DataItem(name, workflow, derivations, attributes)


_WORKFLOWS = st.sampled_from(["v", "w"])
_ITEMS = st.lists(
    st.builds(
        DataItem,
        st.sampled_from("xyz"),
        _WORKFLOWS,
        st.lists(st.sampled_from("xyz"), max_size=2).map(tuple),
        st.just(None),
    ),
    max_size=2,
).map(tuple)
_DEPENDENCIES = st.lists(
    st.builds(Dependency, st.sampled_from(["t", "u"]), st.sampled_from([UNKNOWN, 1, 2, 3])), max_size=2
).map(tuple)


@st.composite
def captures(draw: st.DrawFn, starts: int = 3) -> list[Told]:
    """What some starts have told, in any order and with parts missing. Ids repeat, within a start and between them."""
    told: list[Told] = []
    for start in range(1, starts + 1):
        for key in draw(st.sets(st.integers(0, 1))):
            told.append((start, workflow_begun(key, draw(_WORKFLOWS))))
        for key in draw(st.sets(st.integers(1, 3))):
            halves = draw(st.sampled_from(["begun", "ended", "both"]))
            if halves != "ended":
                name, used, after = draw(st.sampled_from(["t", "u"])), draw(_ITEMS), draw(_DEPENDENCIES)
                told.append((start, begun(key, name, *used, workflow=draw(st.integers(0, 1)), after=after)))
            if halves != "begun":
                told.append((start, ended(key, *draw(_ITEMS))))
    return draw(st.permutations(told))

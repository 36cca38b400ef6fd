"""Which captured data and tasks came from which: the derivation graph of what programs have said, one level at a time.

Ids are the user's and repeat, when a program is run twice for example. So data belongs to the start of an agent that
has generated it. A start that uses data, or derives from data, that it has not generated itself is a guest of that
name: it means the data of this name of all who have generated it, and if nobody has, an input that all its guests
share. Who owns a name and who is its guest changes as events come, in whatever order; it is kept in a table of its own,
so that nobody has to look through all runs of a program to find one guest.

A derivation names ids only: it means data of the workflow that the derived data belongs to. Data that is derived from
data of its own name in its own start says nothing, and is no edge.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from collector.store.captured_rows import DataRow, data_at
from protocol.events import UNKNOWN, DataItem

TABLES = """
CREATE TABLE data_names (
    workflow_id TEXT NOT NULL, id TEXT NOT NULL, start INTEGER NOT NULL, generated INTEGER NOT NULL,
    PRIMARY KEY (workflow_id, id, start)
) WITHOUT ROWID;
CREATE INDEX data_owners ON data_names (workflow_id, id) WHERE generated;
CREATE INDEX data_guests ON data_names (workflow_id, id) WHERE NOT generated;
CREATE TABLE data_derivations (
    workflow_id TEXT NOT NULL, origin TEXT NOT NULL, start INTEGER NOT NULL, derived TEXT NOT NULL,
    PRIMARY KEY (workflow_id, origin, start, derived)
) WITHOUT ROWID;
CREATE INDEX data_derivations_by_derived ON data_derivations (workflow_id, derived, start);
CREATE INDEX dependencies_by_key ON dependencies (start, key);
CREATE INDEX dependencies_unknown ON dependencies (id) WHERE key = -1;
DROP INDEX data_by_id;
CREATE INDEX data_by_name ON data (id, workflow_id, start, generated);
"""
"""What the graph needs besides the captured rows."""
FILL = """
INSERT INTO data_names SELECT workflow_id, id, start, max(generated) FROM data GROUP BY workflow_id, id, start;
INSERT OR IGNORE INTO data_derivations
SELECT workflow_id, value, start, data.id FROM data, json_each(data.derivations);
INSERT OR IGNORE INTO data_names SELECT workflow_id, origin, start, 0 FROM data_derivations;
"""
"""What they hold of rows that were there before them."""


MOST_EDGES = 10_000


class TaskNode(NamedTuple):
    """A task."""

    start: int
    key: int


class DataNode(NamedTuple):
    """Data of the start that generated it; None if nobody did."""

    start: int | None
    workflow_id: str
    id: str


Node = TaskNode | DataNode
Relation = Literal["wasDerivedFrom", "used", "wasGeneratedBy", "wasInformedBy"]


class CapturedEdge(NamedTuple):
    """`derived` came from `origin`; the relation is read from `derived` to `origin`."""

    origin: Node
    derived: Node
    relation: Relation


class Unresolved(NamedTuple):
    """A task waited for one of which nothing is known but the id."""

    task: TaskNode
    id: str


class Level(NamedTuple):
    """Edges, each once. `is_cut`: there are more than were asked for."""

    edges: list[CapturedEdge]
    unresolved: list[Unresolved]
    is_cut: bool


def add_names(db: sqlite3.Connection, start: int, items: Sequence[DataItem], is_generated: bool) -> None:
    """Note who has data of which name. Told again, in any order, it stays the same."""
    db.executemany(_NAME, [(item.workflow_id, item.id, start, is_generated) for item in items])
    derived = [(item.workflow_id, origin, start, item.id) for item in items for origin in item.derivations]
    db.executemany("INSERT OR IGNORE INTO data_derivations VALUES (?,?,?,?)", derived)
    db.executemany("INSERT OR IGNORE INTO data_names VALUES (?,?,?,0)", [each[:3] for each in derived])


def exists(db: sqlite3.Connection, node: Node) -> bool:
    """Whether there is such a node."""
    if isinstance(node, TaskNode):
        return db.execute(_TASK, node).fetchone() is not None
    return next(_starts_that_mean(db, node), None) is not None


def origins_of(db: sqlite3.Connection, nodes: Iterable[Node], limit: int = MOST_EDGES) -> Level:
    """What these nodes came from directly."""
    return _level((each for node in nodes for each in _origins(db, node)), limit)


def derived_of(db: sqlite3.Connection, nodes: Iterable[Node], limit: int = MOST_EDGES) -> Level:
    """What came from these nodes directly."""
    return _level((each for node in nodes for each in _derived(db, node)), limit)


def meant_by(db: sqlite3.Connection, start: int, workflow_id: str, data_id: str) -> Iterator[DataNode]:
    """The data that a start means by a name."""
    name = (workflow_id, data_id)
    if db.execute(f"{_OWNERS} AND start=?", (*name, start)).fetchone():
        yield DataNode(start, *name)
        return
    is_input = True
    for (owner,) in db.execute(_OWNERS, name):
        is_input = False
        yield DataNode(owner, *name)
    if is_input:
        yield DataNode(None, *name)


def told_of(db: sqlite3.Connection, nodes: Iterable[DataNode]) -> dict[DataNode, DataRow]:
    """Data as it was told last: as its start generated it, or as somebody used it if nobody did. What was only named
    as an origin is not among it."""
    found: dict[tuple[int, int, int, int], DataNode] = {}
    for node in nodes:
        name = (node.id, node.workflow_id)
        if node.start is None:
            row = db.execute(f"{_OCCURRENCE} {_LAST}", name).fetchone()
        else:
            row = db.execute(f"{_OCCURRENCE} AND start=? AND generated=1 {_LAST}", (*name, node.start)).fetchone()
        if row is not None:
            found[row] = node
    return {found[row.start, row.task, int(row.is_generated), row.place]: row for row in data_at(db, found)}


_NAME = """INSERT INTO data_names VALUES (?,?,?,?) ON CONFLICT (workflow_id, id, start)
DO UPDATE SET generated=1 WHERE excluded.generated > generated"""
_OWNERS = "SELECT start FROM data_names WHERE workflow_id=? AND id=? AND generated"
_GUESTS = "SELECT start FROM data_names WHERE workflow_id=? AND id=? AND NOT generated"
_OCCURRENCE = "SELECT start, task, generated, place FROM data WHERE id=? AND workflow_id=?"
_LAST = "ORDER BY start DESC, generated DESC, task DESC, place DESC LIMIT 1"
_TASKS_WITH = "SELECT task FROM data WHERE id=? AND workflow_id=? AND start=? AND generated=?"
_TASK = "SELECT start, key FROM tasks WHERE start=? AND key=?"
_OF_SAME_NAME = """SELECT other.start, other.key FROM tasks asked
CROSS JOIN workflows own ON own.start = asked.start AND own.key = asked.workflow
CROSS JOIN tasks other ON other.id = ? AND other.start <> asked.start
CROSS JOIN workflows its ON its.start = other.start AND its.key = other.workflow AND its.id = own.id
WHERE asked.start = ? AND asked.key = ?"""
_WAITING_FOR_NAME = f"""SELECT other.start, other.key FROM tasks asked
CROSS JOIN workflows own ON own.start = asked.start AND own.key = asked.workflow
CROSS JOIN dependencies named ON named.id = asked.id AND named.key = {UNKNOWN} AND named.start <> asked.start
CROSS JOIN tasks other ON other.start = named.start AND other.key = named.task
CROSS JOIN workflows its ON its.start = other.start AND its.key = other.workflow AND its.id = own.id
WHERE asked.start = ? AND asked.key = ?"""


def _level(found: Iterator[CapturedEdge | Unresolved], limit: int) -> Level:
    """Each once, and no more than that are looked for."""
    edges: dict[CapturedEdge, None] = {}
    unresolved: dict[Unresolved, None] = {}
    for each in found:
        if isinstance(each, Unresolved):
            unresolved[each] = None
        elif each.origin != each.derived:
            edges[each] = None
        if len(edges) + len(unresolved) > limit:
            return Level(list(edges)[:limit], list(unresolved)[:limit], True)
    return Level(list(edges), list(unresolved), False)


def _origins(db: sqlite3.Connection, node: Node) -> Iterator[CapturedEdge | Unresolved]:
    if isinstance(node, TaskNode):
        query = "SELECT workflow_id, id FROM data WHERE start=? AND task=? AND generated=0"
        for name in db.execute(query, node):
            for origin in meant_by(db, node.start, *name):
                yield CapturedEdge(origin, node, "used")
        yield from _waited_for(db, node)
        return
    if node.start is not None:
        for (key,) in db.execute(_TASKS_WITH, (node.id, node.workflow_id, node.start, 1)):
            yield CapturedEdge(TaskNode(node.start, key), node, "wasGeneratedBy")
    query = "SELECT origin FROM data_derivations WHERE workflow_id=? AND derived=? AND start=?"
    for start in _starts_that_mean(db, node):
        for (name,) in db.execute(query, (node.workflow_id, node.id, start)):
            for origin in meant_by(db, start, node.workflow_id, name):
                yield CapturedEdge(origin, node, "wasDerivedFrom")


def _derived(db: sqlite3.Connection, node: Node) -> Iterator[CapturedEdge]:
    if isinstance(node, TaskNode):
        if not exists(db, node):
            return
        for name in db.execute("SELECT workflow_id, id FROM data WHERE start=? AND task=? AND generated=1", node):
            yield CapturedEdge(node, DataNode(node.start, *name), "wasGeneratedBy")
        for (key,) in db.execute("SELECT task FROM dependencies WHERE start=? AND key=?", node):
            yield CapturedEdge(node, TaskNode(node.start, key), "wasInformedBy")
        for found in db.execute(_WAITING_FOR_NAME, node):
            yield CapturedEdge(node, TaskNode(*found), "wasInformedBy")
        return
    query = "SELECT derived FROM data_derivations WHERE workflow_id=? AND origin=? AND start=?"
    for start in _starts_that_mean(db, node):
        for (key,) in db.execute(_TASKS_WITH, (node.id, node.workflow_id, start, 0)):
            yield CapturedEdge(node, TaskNode(start, key), "used")
        for (name,) in db.execute(query, (node.workflow_id, node.id, start)):
            for derived in meant_by(db, start, node.workflow_id, name):
                yield CapturedEdge(node, derived, "wasDerivedFrom")


def _waited_for(db: sqlite3.Connection, task: TaskNode) -> Iterator[CapturedEdge | Unresolved]:
    for name, key in db.execute("SELECT id, key FROM dependencies WHERE start=? AND task=?", task):
        is_resolved = False
        query, asked = (_OF_SAME_NAME, (name, *task)) if key == UNKNOWN else (_TASK, (task.start, key))
        for found in db.execute(query, asked):
            is_resolved = True
            yield CapturedEdge(TaskNode(*found), task, "wasInformedBy")
        if not is_resolved:
            yield Unresolved(task, name)


def _starts_that_mean(db: sqlite3.Connection, node: DataNode) -> Iterator[int]:
    """The start that has generated data, and all guests; none if there is no such node."""
    name = (node.workflow_id, node.id)
    if node.start is not None:
        if db.execute(f"{_OWNERS} AND start=?", (*name, node.start)).fetchone() is None:
            return
        yield node.start
    elif db.execute(_OWNERS, name).fetchone() is not None:
        return
    for (start,) in db.execute(_GUESTS, name):
        yield start

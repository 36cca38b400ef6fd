"""A table of rows with attributes that can be asked: filtered, ordered, the best of each group, by pages.

A question becomes one statement in three steps: the rows that the filters leave, with the values that the question is
about; the page of them, ordered; and only for that page all the rest. A value that is not there comes last in either
direction, behind numbers, texts and anything else, in this order: so the greatest accuracy is a number, also when some
are "nan".

A page is found again by the values of its last row, so rows that are added in the meantime move nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from collector.filters import (
    MOST_CONDITIONS,
    BadFilter,
    Bind,
    Bound,
    Comparable,
    Condition,
    Path,
    parse_path,
    path_text,
    restored,
)

MOST_ROWS = 1_000
MOST_FIELDS = 20
MOST_ORDERS = 3
_MOST_SORTED = 80  # characters of a text that count in an order: a cursor has them all

Cursor = tuple[Any, ...]
"""Behind which row a page begins: as JSON has it, it means the same."""
Row = TypeVar("Row")


class BadQuery(ValueError):
    """A question that means nothing; `field` says which part of it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Page(NamedTuple, Generic[Row]):
    """Rows, and where the next page begins; None if this was the last."""

    rows: list[Row]
    next: Cursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What can be asked of all of them. Fields are texts: a column, or a root and a path in its attributes.

    `order_by` has several, `-` in front for the greatest first. With `greatest` or `least` only one row is left for
    each combination of `group_by`: the one with the greatest or least value there, the last one if there are several.
    A row that has no such value is left out. `values` of a row are those of `group_by` and `select`.
    """

    agent: str | None = None
    epoch: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    where: tuple[Condition, ...] = ()
    order_by: tuple[str, ...] = ()
    group_by: tuple[str, ...] = ()
    greatest: str | None = None
    least: str | None = None
    select: tuple[str, ...] = ()
    limit: int = 100
    after: Cursor | None = None


class Column(NamedTuple):
    sql: str
    is_number: bool = False


Attribute = Callable[[Path, Bind], str]


class Table(NamedTuple, Generic[Row]):
    """What one of them is made of: its rows by their keys, and the fields that a question can name."""

    rows: str
    key: tuple[str, ...]
    begun: str
    columns: Mapping[str, Column]
    attributes: Mapping[str, Attribute]
    is_open: bool
    """A path that begins with no field is one of `attributes`."""
    told: str
    made: Callable[..., Row]


class Limit(NamedTuple):
    """A filter on a column; none if `value` is None."""

    part: str
    sql: str
    value: int | str | None


class _Value(NamedTuple):
    """A value that a question is about."""

    sql: str
    is_number: bool
    """It is nothing else, or not there."""
    is_attribute: bool


class _Order(NamedTuple):
    """An order by what is in a column: first by kind, then by value."""

    column: str
    is_number: bool
    is_descending: bool

    @property
    def rank(self) -> str:
        return f"CASE typeof({self.column}) WHEN 'text' THEN 1 WHEN 'blob' THEN 2 WHEN 'null' THEN 3 ELSE 0 END"

    def terms(self) -> list[str]:
        """For ORDER BY. An index may have the order of a column of numbers."""
        if self.is_number:
            return [f"{self.column} DESC" if self.is_descending else f"{self.column} ASC NULLS LAST"]
        return [self.rank, f"{self.column} DESC" if self.is_descending else self.column]

    def is_at(self, rank: int, value: Comparable | None, bind: Bind) -> str:
        """Whether a row has this place."""
        return f"({self.rank} = {bind(rank)} AND {self.column} IS {bind(value)})"

    def is_behind(self, rank: int, value: Comparable | None, bind: Bind) -> str:
        """Whether a row comes behind this place."""
        sign = "<" if self.is_descending else ">"
        is_greater = f"{self.rank} = {bind(rank)} AND {self.column} {sign} {bind(value)}"
        return f"({self.rank} > {bind(rank)} OR {is_greater})"


class _Question(Generic[Row]):
    """The values that a question filters, groups and orders by. Each has a name, and is looked up once."""

    def __init__(self, table: Table[Row]) -> None:
        self._table = table
        self._names: dict[Path, str] = {}
        self._values: dict[Path, _Value] = {}
        self.bind = Bound()
        self.sorts_attributes = False

    def found(self) -> list[str]:
        """The values by their names, for SELECT."""
        return [f"{self._values[path].sql} AS {name}" for path, name in self._names.items()]

    def value(self, path: Path, part: str) -> _Value:
        """What is at a path that a part of the question names."""
        table, root = self._table, path[0] if path else None
        if isinstance(root, str):
            if len(path) == 1 and root in table.columns:
                return _Value(table.columns[root].sql, table.columns[root].is_number, False)
            if root in table.attributes:
                return _Value(table.attributes[root](path[1:], self.bind), False, True)
        if not table.is_open:
            known = [*table.columns, *(f"{name}.PATH" for name in table.attributes)]
            raise BadQuery(part, f"there is no field {path_text(path)}: take one of {', '.join(known)}")
        return _Value(table.attributes["attributes"](path, self.bind), False, True)

    def name_of(self, path: Path, part: str, *, is_sorted: bool = True) -> str:
        """The name of what is at a path."""
        if path not in self._names:
            self._values[path] = self.value(path, part)
            self._names[path] = f"f{len(self._names)}"
        self.sorts_attributes |= is_sorted and self._values[path].is_attribute
        return self._names[path]

    def order(self, text: str, is_descending: bool, part: str) -> _Order:
        """By what is at a path."""
        path = _path(text, part)
        name = self.name_of(path, part)
        return _Order(name, self._values[path].is_number, is_descending)

    def best(self, query: Query) -> _Order | None:
        """By what the best row of a group is found."""
        if query.greatest is not None:
            return self.order(query.greatest, True, "greatest")
        if query.least is not None:
            return self.order(query.least, False, "least")
        return None


def find_page(db: sqlite3.Connection, table: Table[Row], query: Query, limits: Sequence[Limit]) -> Page[Row]:
    _check(query)
    question = _Question(table)
    bind = question.bind
    limits = [
        Limit("agent", "s.agent = {}", query.agent),
        Limit("epoch", "s.epoch = {}", query.epoch),
        Limit("from_ms", f"{table.begun} >= {{}}", query.from_ms),
        Limit("to_ms", f"{table.begun} <= {{}}", query.to_ms),
        *limits,
    ]
    left = [each.sql.format(bind(_bindable(each))) for each in limits if each.value is not None]
    conditions = [each.sql(f"+{question.name_of(each.path, 'where', is_sorted=False)}", bind) for each in query.where]
    groups = [question.name_of(_path(each, "group_by"), "group_by") for each in query.group_by]
    best = question.best(query)
    orders = [question.order(each.removeprefix("-"), each.startswith("-"), "order_by") for each in query.order_by]
    fields = dict.fromkeys((*query.group_by, *query.select))
    shown = [question.value(_path(each, "select"), "select").sql for each in fields]

    keys = [f"k{place}" for place in range(len(table.key))]
    by_key = [f"{column} AS {key}" for column, key in zip(table.key, keys, strict=True)]
    once = "MATERIALIZED" if question.sorts_attributes else "NOT MATERIALIZED"
    found = f"SELECT {_list(by_key, question.found())} FROM {table.rows}{_where(left)}"
    steps = [f"found AS {once} ({found})"]
    source = "found"
    if best is not None:
        over = f"PARTITION BY {_list(groups)} " if groups else ""
        over += f"ORDER BY {_list(best.terms(), [f'{key} DESC' for key in keys])}"
        ranked = f"SELECT *, row_number() OVER ({over}) AS number FROM found"
        steps.append(f"best AS ({ranked}{_where([*conditions, f'{best.column} IS NOT NULL'])})")
        source, conditions = "best", ["number = 1"]

    by_order = [f"{_cut(order)} AS o{place}" for place, order in enumerate(orders)]
    orders = [order._replace(column=f"o{place}") for place, order in enumerate(orders)]
    is_descending = bool(orders) and orders[-1].is_descending
    if query.after is not None:
        conditions = [*conditions, _is_behind(query.after, orders, keys, is_descending, bind)]
    terms = _list(*(order.terms() for order in orders), [f"{key} DESC" if is_descending else key for key in keys])
    page = f"SELECT {_list(keys, by_order)} FROM {source}{_where(conditions)} ORDER BY {terms}"
    steps.append(f"page AS MATERIALIZED ({page} LIMIT {bind(query.limit + 1)})")
    joined = [f"{column} = {key}" for column, key in zip(table.key, keys, strict=True)]
    place = _list([order.column for order in orders], keys)
    rows = db.execute(
        f"WITH {_list(steps)} SELECT {_list([place], shown, [table.told])} FROM page CROSS JOIN {table.rows}"
        f"{_where(joined)} ORDER BY {terms}",
        bind.values,
    ).fetchall()
    told = len(orders) + len(keys)
    made = []
    for row in rows[: query.limit]:
        values = zip(fields, row[told:], strict=False)
        made.append(
            table.made({name: restored(each) for name, each in values if each is not None}, *row[told + len(shown) :])
        )
    is_last = len(rows) <= query.limit
    return Page(made, None if is_last else _cursor(rows[query.limit - 1][:told], len(orders)))


def find_at(db: sqlite3.Connection, table: Table[Row], keys: Iterable[tuple[int, ...]]) -> list[Row]:
    joined = [f"{column} = json_extract(asked.value, '$[{place}]')" for place, column in enumerate(table.key)]
    rows = db.execute(
        f"SELECT {table.told} FROM json_each(?) asked CROSS JOIN {table.rows}{_where(joined)}",
        (json.dumps(list(keys)),),
    )
    return [table.made({}, *row) for row in rows]


def _check(query: Query) -> None:
    """What is wrong whatever the table."""
    if not 1 <= query.limit <= MOST_ROWS:
        raise BadQuery("limit", f"from 1 to {MOST_ROWS}, not {query.limit}")
    if len(query.where) > MOST_CONDITIONS:
        raise BadQuery("where", f"there are more than {MOST_CONDITIONS} conditions")
    for part, most in (("order_by", MOST_ORDERS), ("group_by", MOST_FIELDS), ("select", MOST_FIELDS)):
        if len(getattr(query, part)) > most:
            raise BadQuery(part, f"there are more than {most} fields")
    if query.greatest is not None and query.least is not None:
        raise BadQuery("least", "a group has one best row: by greatest or by least, not by both")
    if query.group_by and query.greatest is None and query.least is None:
        raise BadQuery("group_by", "say by greatest or least which row of each group is asked for")


def _path(text: str, part: str) -> Path:
    try:
        return parse_path(text)
    except BadFilter as error:
        raise BadQuery(part, str(error)) from error


def _bindable(limit: Limit) -> int | str | None:
    """What SQLite can take."""
    if isinstance(limit.value, int) and not -(1 << 63) <= limit.value < 1 << 63:
        raise BadQuery(limit.part, f"{limit.value} has more than 64 bits")
    if isinstance(limit.value, str) and _is_broken(limit.value):
        raise BadQuery(limit.part, "half of a character (a lone surrogate) occurs in it")
    return limit.value


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _cut(order: _Order) -> str:
    """A long text counts with its beginning."""
    name = order.column
    if order.is_number:
        return name
    return f"CASE WHEN typeof({name}) IN ('text', 'blob') THEN substr({name}, 1, {_MOST_SORTED}) ELSE {name} END"


def _is_behind(after: Cursor, orders: Sequence[_Order], keys: Sequence[str], is_descending: bool, bind: Bind) -> str:
    """Whether a row comes behind a cursor: it is behind in one place and the same in all before."""
    if not _is_cursor(after, len(orders), len(keys)):
        raise BadQuery("after", "this is no cursor of such a question: order_by has to be the same for all pages")
    same: list[str] = []
    found: list[str] = []
    for order, (rank, told) in zip(orders, after, strict=False):
        value = told.encode() if rank == _RANK_OF[bytes] else told
        found.append(" AND ".join([*same, order.is_behind(rank, value, bind)]))
        same.append(order.is_at(rank, value, bind))
    last = ", ".join(bind(value) for value in after[len(orders) :])
    found.append(" AND ".join([*same, f"({_list(keys)}) {'<' if is_descending else '>'} ({last})"]))
    return f"({' OR '.join(found)})"


_RANK_OF: dict[type, int] = {int: 0, float: 0, str: 1, bytes: 2, type(None): 3}


def _cursor(row: Sequence[Any], orders: int) -> Cursor:
    places = [(_RANK_OF[type(each)], each.decode() if isinstance(each, bytes) else each) for each in row[:orders]]
    return (*places, *row[orders:])


def _is_cursor(after: Any, orders: int, keys: int) -> bool:
    """Whether somebody has got it from here."""
    if not isinstance(after, (tuple, list)) or len(after) != orders + keys:
        return False
    for place in after[:orders]:
        if not isinstance(place, (tuple, list)) or len(place) != 2:
            return False
        rank, value = place
        is_text = isinstance(value, str) and not _is_broken(value)
        is_right = {0: _is_number(value), 1: is_text, 2: is_text, 3: value is None}
        if not _is_int(rank) or not is_right.get(rank):
            return False
    return all(map(_is_int, after[orders:]))


def _is_int(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is_number(value: Any) -> bool:
    return _is_int(value) or type(value) is float


def _list(*parts: Iterable[str]) -> str:
    return ", ".join(each for part in parts for each in part)


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""

"""Flipped bits in the statements of a database's tables and indexes, which SQLite keeps as text and goes by."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

from tests.faults.damage.harm import Harm, flip, put


def harmed_statements(path: Path, content: bytes, seed: int, count: int) -> Iterator[Harm]:
    """One bit of the name of each column, and `count` bits anywhere in the statements. `path` is used up."""
    chance = Random(seed)
    put(path, content)
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT name, sql FROM sqlite_master WHERE sql LIKE 'CREATE %'").fetchall()
        columns = {name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")] for name, _ in found}
    places: list[tuple[str, int]] = []
    for name, sql in found:
        for column in columns[name] if sql.startswith("CREATE TABLE") else ():
            word = re.compile(rf"\b{column}\b").search(sql, sql.index("("))
            assert word
            places.append((sql, chance.randrange(*word.span())))
    for sql in chance.choices([sql for _, sql in found], k=count):
        places.append((sql, chance.randrange(len(sql))))
    for sql, at in places:
        text = sql.encode()
        assert text in content
        harm = flip(text, at, chance.randrange(8))
        # Wherever the statement stands: what SQLite has moved is still there where it was.
        yield Harm(f"{harm.kind} in {sql[:at]}>{sql[at:]}", at, content.replace(text, harm.content))

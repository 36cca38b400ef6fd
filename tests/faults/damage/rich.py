"""A store with something of everything, and what it should answer, for tests that do harm to copies of its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from collector.store import StoreReader
from collector.store.captured_rows import DataQuery, TaskQuery, WorkflowQuery
from collector.store.check import check
from collector.store.feed import Cursor
from protocol.wire.sections import Kind
from tests.collector.api.rich_store import fill
from tests.collector.store.graphs import QuickWriter
from tests.support.whole_graph import every_sink, every_source

Question = Callable[[StoreReader], Any]


class Rich(NamedTuple):
    """A store with something of everything, as its file is when nobody has it open."""

    content: bytes
    questions: dict[str, Question]
    truth: dict[str, Any]


def rich_store(path: Path) -> Rich:
    """A new one."""
    with QuickWriter(path) as writer:
        fill(writer)
    with StoreReader(path) as reader:
        sinks = [sink.id for sink in every_sink(reader)]
        sources = [source.id for source in every_source(reader)]
        questions: dict[str, Question] = {
            "sinks": lambda reader: reader.sinks(limit=1_000),
            "figures": lambda reader: (reader.count_sinks(-(10**6), 10**9, 10**6, None), reader.times(None, None)),
            "tuples": lambda reader: reader.tuples([*sinks, *sources]),
            "backward": lambda reader: [reader.backward(each) for each in sinks],
            "forward": lambda reader: [reader.forward(each) for each in sources],
            "origins": lambda reader: reader.origins_of(sinks),
            "derived": lambda reader: reader.derived_of(sources),
            "payloads": lambda reader: reader.payloads([*sinks, *sources]),
            "late": lambda reader: [reader.late_of(each) for each in sinks],
            "lost": lambda reader: [reader.lost_of(each) for each in sinks],
            "changes": lambda reader: list(reader.changes(Cursor(), 100_000)),
            "streams": lambda reader: reader.streams(),
            "agents": lambda reader: reader.agents(),
            "plans": lambda reader: reader.plans(),
            "gaps": lambda reader: reader.gaps(),
            "refused": lambda reader: reader.refused(),
            "kept": lambda reader: reader.kept(Kind.LATE),
            "counters": lambda reader: reader.counters(),
            "tasks": lambda reader: reader.tasks(TaskQuery()),
            "data": lambda reader: reader.data(DataQuery()),
            "workflows": lambda reader: reader.workflows(WorkflowQuery()),
        }
        truth = {name: ask(reader) for name, ask in questions.items()}
    assert not list(check(path))
    return Rich(path.read_bytes(), questions, truth)

"""The store in the words of the API: ids as people write them, tuples with what they said and how they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import count
from typing import Any, NamedTuple

from collector.names import DataName, Epoch, StreamPattern, TaskName, TupleName, WorkflowName
from collector.plain import as_plain
from collector.store import StoreReader
from collector.store.captured_graph import DataNode, TaskNode
from collector.store.captured_rows import TaskRow, WorkflowRow
from collector.store.payloads import Payload
from collector.store.people import StreamName
from collector.store.vertices import Sent, Source, TupleFound
from protocol.chunks import SEQ_BITS
from protocol.records import BEGINNING, END_OF_TIME
from protocol.wire.sections import Kind

_SEQS = (1 << SEQ_BITS) - 1
Node = int | TaskNode | DataNode
"""A vertex: a tuple, a task or data."""
Shown = dict[str, Any]
"""Something as the API shows it: plain values, in the shape that one of `collector.api.models` says. Of vertices and
edges there are many in an answer, and checking each of them would take longer than finding it."""


class _Stream(NamedTuple):
    agent: str
    epoch: int | None
    stream: str
    prefix: str
    """What the ids of its tuples begin with."""
    name: StreamName


def time_or_none(ms: int | None) -> int | None:
    """A time, unless it is one of the two ends of time."""
    return None if ms is None or ms in (BEGINNING, END_OF_TIME) else ms


_SERIALS = count()


class View:
    """One reader, and the names that it has read last."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self.serial = next(_SERIALS)
        """No other view of this process has it."""
        self.version = -1
        """Another one whenever the store has changed, as far as this reader knows."""
        self._streams: dict[int, _Stream] = {}
        self._numbers: dict[StreamPattern, int] = {}
        self._labels: dict[int, Shown] = {}
        self._starts: dict[int, tuple[str, Epoch]] = {}
        self._results: tuple[int, list[int]] = (-1, [])

    def refresh(self) -> None:
        """Forget names that may have changed."""
        version = self.reader.data_version
        if version != self.version:
            self.version = version
            self._streams.clear()
            self._numbers.clear()
            self._labels.clear()
            self._starts.clear()
            self._results = (-1, [])

    # Names

    def stream_of(self, number: int) -> StreamName:
        """Whose stream has a number."""
        return self._stream(number).name

    def _stream(self, number: int) -> _Stream:
        found = self._streams.get(number)
        if found is None:
            name = self.reader.stream_names([number]).get(number, StreamName("?", number, None, "?"))
            epoch = Epoch(name.epoch, name.nonce if name.epoch is None else None)
            found = self._streams[number] = _Stream(
                name.agent, name.epoch, name.name, f"{name.agent}/{name.name}@{epoch}:", name
            )
        return found

    def name_of(self, tuple_id: int) -> str:
        """A tuple as people write it."""
        return f"{self._stream(tuple_id >> SEQ_BITS).prefix}{tuple_id & _SEQS}"

    def tuple_of(self, name: TupleName) -> int | None:
        """The id of a tuple, None if there is no such stream."""
        pattern = StreamPattern(name.stream, name.agent, name.epoch)
        number = self._numbers.get(pattern)
        if number is None:
            number = self._number_of(pattern)
            if number is None:
                return None
            self._numbers[pattern] = number
        return number << SEQ_BITS | name.seq

    def _number_of(self, pattern: StreamPattern) -> int | None:
        """The one stream that is meant by an agent, a name and an epoch. If others have counted the starts of the agent
        in another way, that of the agent itself."""
        found = self.stream_numbers(pattern)
        if len(found) < 2:
            return found[0] if found else None
        epochs = {start.nonce: start.epoch for start in self.reader.starts_of(str(pattern.agent))}
        own = [each for each in found if (of := self.stream_of(each)).epoch == epochs.get(of.nonce)]
        return (own or found)[-1]

    def stream_numbers(self, pattern: StreamPattern) -> list[int]:
        """The streams that a pattern means."""
        epoch = pattern.epoch.number if pattern.epoch else None
        found = self.reader.streams(agent=pattern.agent, name=pattern.stream, epoch=epoch)
        nonce = pattern.epoch.nonce if pattern.epoch and pattern.epoch.number is None else None
        return [each.number for each in found if nonce is None or each.nonce == nonce]

    def streams_meant(self, patterns: list[StreamPattern] | None, agent: str | None) -> list[int] | None:
        """The streams that filters mean, None if there is no filter."""
        if patterns is None:
            return None if agent is None else [each.number for each in self.reader.streams(agent=agent)]
        meant = [
            each._replace(agent=each.agent or agent)
            for each in patterns
            if agent is None or each.agent in (None, agent)
        ]
        return sorted({number for each in meant for number in self.stream_numbers(each)})

    def id_of(self, node: Node) -> str:
        """A vertex as people write it."""
        if isinstance(node, int):
            return self.name_of(node)
        if isinstance(node, TaskNode):
            return str(TaskName(*self._start(node.start), node.key))
        start = (None, None) if node.start is None else self._start(node.start)
        return str(DataName(node.workflow_id, node.id, *start))

    def _start(self, number: int) -> tuple[str, Epoch]:
        found = self._starts.get(number)
        if found is None:
            name, nonce, epoch = self.reader.start_named(number)
            found = self._starts[number] = name, Epoch(epoch, nonce if epoch is None else None)
        return found

    # Tuples

    def results_of(self, source: int) -> list[int]:
        """The results of a reading, by id; those of the last one are remembered, as they are asked for twice."""
        if self._results[0] != source:
            self._results = source, self.reader.forward(source)
        return self._results[1]

    def is_known(self, tuple_id: int) -> bool:
        """Whether anything is known of a tuple, be it that another one came from it."""
        reader = self.reader
        return bool(reader.tuples([tuple_id]) or reader.payloads([tuple_id]) or reader.derived_of([tuple_id]))

    def tuples(
        self, ids: Collection[int], with_payloads: bool = True, likely_sinks: Iterable[int] = ()
    ) -> dict[int, Shown]:
        """These tuples, without those of which nothing is known."""
        found = self.reader.tuples(ids, likely_sinks)
        unknown = [each for each in ids if each not in found]
        said = self.reader.payloads(ids if with_payloads else unknown) if with_payloads or unknown else {}
        heard = said if with_payloads else {}
        made = {each: self._tuple(what, heard.get(each)) for each, what in found.items()}
        for each in unknown:
            if each in said:  # it has contributed to nothing so far
                kind = "sink" if said[each].kind is Kind.DELIVERY else "source"
                made[each] = self._shown(each, kind, said[each].ts, heard.get(each))
        return made

    def tuple_list(
        self, ids: Iterable[int], with_payloads: bool = True, likely_sinks: Iterable[int] = ()
    ) -> list[Shown]:
        """These tuples in this order; of one that others have named, and that never came itself, its name."""
        wanted = list(ids)
        found = self.tuples(wanted, with_payloads, likely_sinks)
        return [found.get(each) or self._shown(each, "intermediate", None, None) for each in wanted]

    def _tuple(self, found: TupleFound, said: Payload | None) -> Shown:
        if isinstance(found, Source):
            tuple_id, ts, _, label_stamp, is_sent = found
            state = "alive" if label_stamp is None else "expired"
            return self._shown(tuple_id, "intermediate" if is_sent else "source", ts, said, state, label_stamp)
        if isinstance(found, Sent):
            return self._shown(found.id, "intermediate", found.ts, said)
        tuple_id, ts, _, label_stamp, flags, origins = found
        state = "open"
        if label_stamp is not None:
            state = "incomplete" if flags else "complete"
        return self._shown(tuple_id, "sink", ts, said, state, label_stamp, origins)

    def _shown(
        self,
        tuple_id: int,
        kind: str,
        ts: int | None,
        said: Payload | None,
        state: str | None = None,
        label_stamp: int | None = None,
        origins: int | None = None,
    ) -> Shown:
        number, seq = tuple_id >> SEQ_BITS, tuple_id & _SEQS
        of = self._streams.get(number) or self._stream(number)
        return {
            "id": f"{of.prefix}{seq}",
            "kind": kind,
            "agent": of.agent,
            "epoch": of.epoch,
            "stream": of.stream,
            "seq": seq,
            "ts": ts,
            "state": state,
            "since": None if label_stamp is None else self._label(label_stamp),
            "origins": origins,
            "payload": None if said is None else as_plain(said.value),
        }

    def _label(self, stamp: int) -> Shown:
        found = self._labels.get(stamp)
        if found is None:
            found = {"stamp": time_or_none(stamp), "written_ms": self.reader.told_at(stamp)}
            self._labels[stamp] = found
        return found

    # Captured runs

    def start_of(self, agent: str, epoch: Epoch) -> int | None:
        """The number of a start of an agent."""
        return self.reader.start_number(agent, epoch.number, epoch.nonce)

    def task_of(self, name: TaskName) -> TaskNode | None:
        """A task by its name."""
        start = self.start_of(name.agent, name.epoch)
        node = None if start is None else TaskNode(start, name.key)
        return node if node and self.reader.has_captured(node) else None

    def data_of(self, name: DataName) -> Iterator[DataNode]:
        """Data by its name: that of an agent, or all of that name."""
        if name.agent is not None and name.epoch is not None:
            start = self.start_of(name.agent, name.epoch)
            node = None if start is None else DataNode(start, name.workflow, name.name)
            if node and self.reader.has_captured(node):
                yield node
        else:
            yield from self.reader.data_named(name.workflow, name.name)

    def workflow(self, name: WorkflowName) -> Shown | None:
        """A run of a workflow by its name."""
        start = self.start_of(name.agent, name.epoch)
        found = {} if start is None else self.reader.workflows_at([(start, name.key)])
        return next((self.workflow_fields(row) for row in found.values()), None)

    def captured(
        self, nodes: Collection[TaskNode | DataNode], with_attributes: bool = True
    ) -> dict[TaskNode | DataNode, Shown]:
        """These tasks and data."""
        tasks = self.reader.tasks_at([each for each in nodes if isinstance(each, TaskNode)])
        data = [each for each in nodes if isinstance(each, DataNode)]
        attributes = self.reader.attributes_of(data) if with_attributes else {}
        made: dict[TaskNode | DataNode, Shown] = {}
        for key, row in tasks.items():
            made[TaskNode(*key)] = self.task_fields(row)
        for node in data:
            agent, epoch = (None, None) if node.start is None else self._start(node.start)
            made[node] = {
                "id": self.id_of(node),
                "kind": "data",
                "agent": agent,
                "epoch": epoch.number if epoch else None,
                "name": node.id,
                "workflow_name": node.workflow_id,
                "attributes": attributes.get(node),
            }
        return made

    def task_fields(self, row: TaskRow) -> Shown:
        """What the API tells of a task."""
        workflow = None
        if row.workflow is not None:
            workflow = str(WorkflowName(*self._start(row.start), row.workflow))
        return {
            "id": self.id_of(TaskNode(row.start, row.key)),
            "kind": "task",
            "agent": row.agent,
            "epoch": row.epoch,
            "name": row.name,
            "transformation": row.transformation,
            "workflow": workflow,
            "workflow_name": row.workflow_name,
            "begun_ms": row.begun_ms,
            "ended_ms": row.ended_ms,
            "elapsed_ms": row.elapsed_ms,
            "status": row.status,
            "error": row.error,
        }

    def workflow_fields(self, row: WorkflowRow) -> Shown:
        """What the API tells of a run of a workflow."""
        return {
            "id": str(WorkflowName(*self._start(row.start), row.key)),
            "kind": "workflow",
            "agent": row.agent,
            "epoch": row.epoch,
            "name": row.name,
            "begun_ms": row.begun_ms,
            "ended_ms": row.ended_ms,
            "elapsed_ms": row.elapsed_ms,
            "status": row.status,
            "error": row.error,
            "attributes": row.attributes,
        }

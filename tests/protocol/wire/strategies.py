"""Records of every kind, and how the capture API hands over its events."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from protocol.events import STATUSES, DataItem, Dependency, Event, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded
from protocol.ids import StreamId
from protocol.records import (
    Assertion,
    Declared,
    Delivery,
    End,
    Gap,
    Late,
    Lost,
    Origin,
    OriginKind,
    Progress,
    Received,
    Sketch,
    Skipped,
    SourcePayload,
    Status,
)
from protocol.wire.crossing import Crossing, encode_crossing, packed
from protocol.wire.packer import Packer
from protocol.wire.sections import EventKind, Kind, Pending, pending

AGENT, EPOCH, NONCE = "car-7", 3, 0xFEDC_BA98_7654_3210
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)
COUNT = st.integers(0, 2**40)
SEQ = st.integers(0, 2**36 - 1) | st.integers(0, 50)
NAME = st.text(max_size=12)
TS = st.integers(1_760_000_000_000, 1_760_000_010_000) | INT64
STREAM = st.sampled_from(["reports", "stopped", "", "größe"]).map(lambda name: StreamId(AGENT, EPOCH, name, NONCE))
FOREIGN = st.builds(StreamId, st.sampled_from(["meter-1", AGENT]), st.integers(0, 9), NAME, st.integers(0, 3))
# What comes back exactly as it went in: such values as JSON has, and bytes.
PAYLOAD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | NAME
    | st.binary(max_size=9),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(NAME, parts, max_size=4),
    max_leaves=6,
)
ORIGIN = st.builds(Origin, st.sampled_from(OriginKind), STREAM | FOREIGN, SEQ, TS)
RANGE = st.none() | st.tuples(COUNT, COUNT)
RECORD: st.SearchStrategy[Any] = st.one_of(
    st.builds(Delivery, STREAM, SEQ, TS, PAYLOAD, st.lists(ORIGIN, max_size=5).map(tuple)),
    st.builds(SourcePayload, STREAM, SEQ, TS, PAYLOAD),
    st.builds(Progress, STREAM | FOREIGN, TS, TS),
    st.builds(Assertion, STREAM, SEQ, TS, INT64, PAYLOAD),
    st.builds(Late, STREAM, TS, PAYLOAD, TS),
    st.builds(Skipped, NAME, NAME, st.none() | TS, PAYLOAD, NAME),
    st.builds(Declared, st.text()),
    st.builds(
        Gap,
        NAME,
        COUNT,
        UINT64,
        RANGE,
        st.lists(st.builds(Lost, NAME, COUNT, COUNT), max_size=3).map(tuple),
        RANGE,
        st.lists(st.tuples(NAME, TS, TS), max_size=3).map(tuple),
        st.lists(st.tuples(NAME, SEQ), max_size=3).map(tuple),
        st.none() | COUNT,
    ),
    st.builds(End, TS),
    st.builds(Received, NAME, NAME, UINT64, COUNT, UINT64),
    st.builds(
        Status,
        *[COUNT] * 6,
        st.dictionaries(NAME, st.none() | COUNT | NAME, max_size=3),
        st.dictionaries(NAME, st.tuples(COUNT, COUNT, COUNT, COUNT), max_size=3),
    ),
    st.builds(Sketch, NAME, COUNT, COUNT, st.binary(max_size=30)),
)
ITEM = st.builds(DataItem, NAME, NAME, st.lists(NAME, max_size=3).map(tuple), PAYLOAD)
ITEMS = st.lists(ITEM, max_size=3).map(tuple)
STATUS = st.sampled_from(STATUSES)
DEPENDENCIES = st.lists(st.builds(Dependency, NAME, st.integers(-1, 99)), max_size=3).map(tuple)
EVENT: st.SearchStrategy[Any] = st.one_of(
    st.builds(WorkflowBegun, st.just(0), TS, COUNT, NAME, PAYLOAD),
    st.builds(WorkflowEnded, st.just(0), TS, COUNT, STATUS, NAME),
    st.builds(TaskBegun, st.just(0), TS, COUNT, COUNT, NAME, NAME, DEPENDENCIES, ITEMS),
    st.builds(TaskEnded, st.just(0), TS, COUNT, STATUS, NAME, ITEMS),
)
EVENTS = (WorkflowBegun, WorkflowEnded, TaskBegun, TaskEnded)


def encoded_crossing(crossing: Crossing, packer: Packer) -> bytes:
    """A crossing as it is published."""
    return encode_crossing(crossing, packed(crossing.tuples, packer))


def row_of(record: Any, packer: Packer) -> Pending:
    """A record or an event on its way into a batch."""
    return event_row(record, packer) if isinstance(record, EVENTS) else pending(record, packer)


def event_row(event: Event, packer: Packer) -> Pending:
    """An event as the capture API makes it; its number is given later."""
    if isinstance(event, WorkflowBegun):
        told: tuple[Any, ...] = (
            EventKind.WORKFLOW_BEGUN,
            event.ts,
            event.key,
            event.id,
            *packer.pack(event.attributes),
        )
    elif isinstance(event, WorkflowEnded):
        told = (EventKind.WORKFLOW_ENDED, event.ts, event.key, STATUSES.index(event.status), event.error)
    elif isinstance(event, TaskBegun):
        waits = tuple((each.id, each.key) for each in event.dependencies)
        task = (event.workflow, event.id, event.transformation, waits, _items(event.used, packer))
        told = (EventKind.TASK_BEGUN, event.ts, event.key, *task)
    else:
        status = STATUSES.index(event.status)
        told = (EventKind.TASK_ENDED, event.ts, event.key, status, event.error, _items(event.generated, packer))
    return (Kind.EVENT, *told)


def _items(items: tuple[DataItem, ...], packer: Packer) -> tuple[Any, ...]:
    return tuple((each.id, each.workflow_id, each.derivations, *packer.pack(each.attributes)) for each in items)


def facts(record: Any) -> Any:
    """All that a record says, to compare: payloads included, which are no part of a tuple's identity."""
    if isinstance(record, SourcePayload):
        return ("source", record.stream, record.seq, record.ts, record.payload)
    if isinstance(record, EVENTS):
        return (type(record), *(getattr(record, name) for name in record.__match_args__ if name != "number"))
    return record

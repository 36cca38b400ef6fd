from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from protocol.chunks import (
    SEQ_BITS,
    cloud_ids,
    is_last_part,
    last_event,
    pack,
    pack_deliveries,
    pack_payloads,
    pack_progress,
    pack_sources,
    payload_ids,
    payload_section,
    promises_in,
    read_deliveries,
    read_progress,
    read_sources,
    read_tuples,
    unpack,
)
from protocol.ids import StreamId
from protocol.records import BEGINNING, END_OF_TIME, Assertion, Delivery, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from protocol.wire.sections import EventKind, Kind, decode_section, encode_section, in_parts, pending

OWN = StreamId("car-7", 3, "", 7)
REPORTS, ALERTS = OWN._replace(name="reports"), OWN._replace(name="alerts")
FAR = StreamId("hub-1", 9, "sent", 2**63)
MOST_NUMBER, MOST_SEQ = (1 << 27) - 1, (1 << SEQ_BITS) - 1
NUMBERS = {REPORTS: 5, ALERTS: MOST_NUMBER, FAR: 77}

seqs = st.integers(0, MOST_SEQ)
times = st.integers(-(2**62), 2**62)


def section_of(kind: Kind, *records: Any) -> tuple[Any, np.ndarray[Any, Any], bytes]:
    """A section as the cloud gets it, the numbers of the streams that it names, and its bytes."""
    data = bytes(encode_section(kind, [pending(each, Packer()) for each in records], OWN.agent, OWN.nonce, 0))
    section: Any = decode_section(kind, data, OWN)
    return section, np.array([NUMBERS[stream] for stream in section.streams], "<i8"), data


def cloud_id(stream: StreamId, seq: int) -> int:
    return NUMBERS[stream] << SEQ_BITS | seq


columns = st.sampled_from(["<i8", "<i4", "|u1"]).flatmap(lambda kind: arrays.arrays(kind, st.integers(0, 20)))


@given(st.lists(columns, max_size=6))
def test_columns_come_back_as_they_were(made: list[Any]) -> None:
    data = pack(made)
    assert len(data) % 8 == 0
    found = unpack(data)
    assert [column.dtype for column in found] == [column.dtype for column in made]
    assert [column.tolist() for column in found] == [column.tolist() for column in made]


def test_ids_are_positive_up_to_the_last_number() -> None:
    ids = cloud_ids(np.array([1, MOST_NUMBER], "<i8"), [0, 1, 1], [0, 0, MOST_SEQ])
    assert ids.tolist() == [1 << SEQ_BITS, MOST_NUMBER << SEQ_BITS, 2**63 - 1]
    assert (ids >> SEQ_BITS).tolist() == [1, MOST_NUMBER, MOST_NUMBER], "a stream's tuples stand together, in order"


@given(st.lists(st.tuples(st.sampled_from([REPORTS, ALERTS]), seqs, times), min_size=1, max_size=20))
def test_sources(tuples: list[tuple[StreamId, int, int]]) -> None:
    section, numbers, data = section_of(Kind.SOURCE, *[SourcePayload(*each, {"seq": each[1]}) for each in tuples])
    chunk = read_sources(pack_sources(section, numbers))
    ids = [cloud_id(stream, seq) for stream, seq, _ in tuples]
    assert chunk.id.tolist() == ids
    assert chunk.ts.tolist() == [ts for *_, ts in tuples]
    payloads = pack_payloads(Kind.SOURCE, numbers, data)
    found, said = read_tuples(payloads)
    assert found.tolist() == ids
    assert [said.payloads[place] for place in range(len(tuples))] == [{"seq": seq} for _, seq, _ in tuples]
    assert payload_ids(payloads).tolist() == ids
    assert payload_section(payloads) == (Kind.SOURCE, data)


origins = st.builds(Origin, st.sampled_from(OriginKind), st.sampled_from([REPORTS, FAR]), seqs, times)


@given(st.lists(st.tuples(seqs, times, st.lists(origins, max_size=5)), min_size=1, max_size=10))
def test_deliveries_and_their_origins(tuples: list[tuple[int, int, list[Origin]]]) -> None:
    records = [Delivery(ALERTS, seq, ts, "alert", tuple(of)) for seq, ts, of in tuples]
    section, numbers, _ = section_of(Kind.DELIVERY, *records)
    chunk = read_deliveries(pack_deliveries(section, numbers))
    assert chunk.id.tolist() == [cloud_id(ALERTS, seq) for seq, _, _ in tuples]
    assert chunk.ts.tolist() == [ts for _, ts, _ in tuples]
    assert chunk.count.tolist() == [len(of) for _, _, of in tuples]
    every = [origin for _, _, of in tuples for origin in of]
    assert chunk.origin_id.tolist() == [cloud_id(origin.stream, origin.seq) for origin in every]
    assert chunk.origin_ts.tolist() == [origin.ts for origin in every]
    assert chunk.remote.tolist() == [int(origin.kind is OriginKind.REMOTE) for origin in every]


def test_a_delivery_that_is_told_in_parts() -> None:
    origins = tuple(Origin(OriginKind.SOURCE, ALERTS, seq, seq) for seq in range(5))
    rows = in_parts(pending(Delivery(ALERTS, 1, 2, "alert", origins), Packer()), 2)
    data = bytes(encode_section(Kind.DELIVERY, rows, OWN.agent, OWN.nonce, 0))
    section: Any = decode_section(Kind.DELIVERY, data, OWN)
    chunk = read_deliveries(pack_deliveries(section, np.array([4], "<i8")))
    assert chunk.count.tolist() == [2, 2, 1]
    assert chunk.part.tolist() == [0x002, 0x102, 0x202], "the place of each, and how many others there are"
    assert is_last_part(chunk.part).tolist() == [False, False, True]
    assert is_last_part(np.array([0])).tolist() == [True]


def test_promises_reach_from_the_beginning_to_the_end_of_time() -> None:
    section, numbers, _ = section_of(
        Kind.PROGRESS, Progress(ALERTS, BEGINNING, END_OF_TIME), Progress(REPORTS, END_OF_TIME, BEGINNING)
    )
    chunk = read_progress(pack_progress(section, numbers))
    assert chunk.stream.tolist() == [NUMBERS[ALERTS], NUMBERS[REPORTS]]
    assert chunk.watermark.tolist() == [BEGINNING, END_OF_TIME]
    assert chunk.hold.tolist() == [END_OF_TIME, BEGINNING]


def test_assertions_have_payloads() -> None:
    _, numbers, data = section_of(Kind.ASSERTION, Assertion(REPORTS, 3, 1, 2, [1.5]), Assertion(REPORTS, 4, 1, 2))
    payloads = pack_payloads(Kind.ASSERTION, numbers, data)
    ids, said = read_tuples(payloads)
    assert ids.tolist() == [cloud_id(REPORTS, 3), cloud_id(REPORTS, 4)]
    assert [said.payloads[place] for place in range(2)] == [[1.5], None]


def test_promises_have_no_payloads() -> None:
    _, numbers, data = section_of(Kind.PROGRESS, Progress(ALERTS, 1, 1))
    with pytest.raises(MalformedBatch, match="no payloads"):
        payload_ids(pack_payloads(Kind.PROGRESS, numbers, data))


@given(st.integers(0, 2**40), st.integers(1, 300))
def test_the_number_of_the_last_event(first: int, count: int) -> None:
    rows: list[Any] = [(Kind.EVENT, EventKind.TASK_ENDED, 0, key, 0, "", []) for key in range(count)]
    data = bytes(encode_section(Kind.EVENT, rows, OWN.agent, OWN.nonce, first))
    assert last_event(data) == first + count - 1
    events: Any = decode_section(Kind.EVENT, data, OWN)
    assert events[-1].number == last_event(data)


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3), max_size=5))
def test_promises_one_by_one_are_those_of_the_columns(promises: list[tuple[int, int, int]]) -> None:
    columns = [np.array([each[place] for each in promises], "<i8") for place in range(3)]
    assert list(promises_in(pack(columns))) == promises


@pytest.mark.parametrize("columns", [[[1]], [[1, 2], [3], [4]], [[1]] * 4, []])
def test_what_are_no_promises_is_refused(columns: list[list[int]]) -> None:
    with pytest.raises(MalformedBatch, match="no columns of promises"):
        list(promises_in(pack([np.array(column, "<i8") for column in columns])))

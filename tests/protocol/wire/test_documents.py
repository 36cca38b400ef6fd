"""Documents: whole records, fields of the right types, and payloads that stand in nobody's way."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from protocol import records
from protocol.ids import StreamId
from protocol.records import Declared, End, Gap, Late, Lost, Sketch, Skipped, Status
from protocol.wire.documents import _FIELDS, MOST_DOCUMENT_BYTES, encode_document, read_document
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer, Unserialisable
from protocol.wire.sections import _DOCUMENTS
from protocol.wire.values import PLACEHOLDER

STREAM = StreamId("car-7", 3, "reports", 2**64 - 1)


@dataclass
class Report:
    car: int
    lock: Any = None


class Point(NamedTuple):
    x: int
    y: int


def arrived(record: Any, packer: Packer | None = None) -> Any:
    return read_document(type(record), encode_document(record, packer or Packer()))


def test_every_field_of_every_document_has_a_check() -> None:
    assert set(_FIELDS) == set(_DOCUMENTS.values())
    kind: Any
    for kind, checks in _FIELDS.items():
        assert tuple(checks) == kind.__match_args__


def test_tuples_stay_tuples() -> None:
    gap = Gap("crash", 3, 2**64 - 1, (1, 2), (Lost("a", 1, 2),), None, (("a", -(2**63), 2**63 - 1),), (("a", 7),), 9)
    assert arrived(gap) == gap
    status = Status(1, 2, 3, 4, 5, 6, {"state": "active"}, {"per car": (1, 2, 3, 4)})
    assert arrived(status) == status


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (Report(7), {"car": 7, "lock": None}),
        (Point(1, 2), {"x": 1, "y": 2}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        (Report(7, threading.Lock()), {"car": 7, "lock": {PLACEHOLDER: "_thread.lock"}}),  # which cannot be copied
        (b"\xc1", b"\xc1"),
    ],
)
def test_payloads_are_like_those_of_other_records(payload: Any, shown: Any) -> None:
    assert arrived(Late(STREAM, 5, payload, 6)) == Late(STREAM, 5, shown, 6)
    assert arrived(Skipped("map", "app:f", None, payload, "no")) == Skipped("map", "app:f", None, shown, "no")


def test_a_payload_that_is_too_large_does_not_take_its_record_with_it() -> None:
    packer = Packer()
    late = arrived(Late(STREAM, 5, {"frame": b"x" * 100_000}, 6), packer)
    assert (late.stream, late.ts, packer.replaced) == (STREAM, 5, 1)


def test_plans_and_sketches_may_be_larger_than_values() -> None:
    for record in (Declared("p" * 100_000), Sketch("edges", 7, 1000, bytes(100_000))):
        assert arrived(record) == record
    with pytest.raises(Unserialisable, match="may be captured"):
        encode_document(Declared("p" * MOST_DOCUMENT_BYTES), Packer())


def test_texts_that_are_none() -> None:
    assert arrived(Skipped("map", "app:f", 1, None, "\ud800")).error == "\\ud800"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (End, None),
        (End, []),
        (End, {}),
        (End, {"ts": "now"}),
        (End, {"ts": True}),
        (End, {"ts": 2**64}),
        (End, {"ts": 1, "more": 2}),
        (End, {1: 2}),
        (Declared, {"plan": b"{}"}),
        (Gap, {"reason": "x", "epoch": 1}),
        (Gap, {"reason": "x", "epoch": 1, "nonce": 2, "batches": [1, 2, 3]}),
        (Gap, {"reason": "x", "epoch": 1, "nonce": 2, "batches": 7}),
        (Gap, {"reason": "x", "epoch": 1, "nonce": 2, "tuples": [["a", 1]]}),
        (Gap, {"reason": "x", "epoch": 1, "nonce": 2, "progress": [["a", 1, None]]}),
        (Gap, {"reason": "x", "epoch": 1, "nonce": 2, "next_seqs": {"a": 1}}),
        (Gap, {"reason": 1, "epoch": 1, "nonce": 2}),
        (Late, {"stream": ["a", 1, "b"], "ts": 1, "payload": b"\xc0", "watermark": 2}),
        (Late, {"stream": ["a", "1", "b", 2], "ts": 1, "payload": b"\xc0", "watermark": 2}),
        (Late, {"stream": ["a", 1, "b", 2], "ts": 1, "payload": b"\xc1", "watermark": 2}),
        (Late, {"stream": ["a", 1, "b", 2], "ts": 1, "payload": None, "watermark": 2}),
        (Sketch, {"of": "edges", "hashes": 1, "entries": 1, "bits": "text"}),
        (Status, {"clock_ms": 1}),
    ],
)
def test_fields_of_another_type_are_refused(kind: type, fields: Any) -> None:
    with pytest.raises(MalformedBatch):
        read_document(kind, Packer().encode(fields))


@pytest.mark.parametrize("operators", [[], {"a": [1, 2, 3]}, {"a": [1, 2, 3, "4"]}, {1: [1, 2, 3, 4]}])
def test_a_status_that_counts_wrong(operators: Any) -> None:
    fields = dict.fromkeys(_FIELDS[Status], 1) | {"link": {}, "operators": operators}
    with pytest.raises(MalformedBatch, match="no Status"):
        read_document(Status, Packer().encode(fields))


def test_the_names_are_those_of_the_records() -> None:
    assert all(kind.__module__ == records.__name__ for kind in _FIELDS)

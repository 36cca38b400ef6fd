"""Documents of other streaming systems: what they become, and what is said of those that are wrong."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example as with_example
from hypothesis import given
from hypothesis import strategies as st

from collector.ingest import MOST_DOCUMENT_BYTES, BadDocument, Document, TooLarge, nonce_of, read_json, read_msgpack
from protocol.plan import PlanDocument, delays
from protocol.records import Declared
from protocol.wire.batch import MOST_BATCH_BYTES, decode_batch, frame, read_header
from protocol.wire.sections import DeliveryColumns, Kind
from tests.collector.ingest_documents import EXAMPLE, JSON_VALUES, PLAN, documents, example, records_of, seen


def as_json(document: Any) -> Document:
    return read_json(json.dumps(document).encode())


def as_msgpack(document: Any) -> Document:
    return read_msgpack(msgspec.msgpack.encode(document))


def told(document: Document) -> list[Any]:
    return list(decode_batch(document.data, document.agent).records())


def refusal(document: Any) -> tuple[str, str]:
    with pytest.raises(BadDocument) as found:
        as_json(document)
    assert str(found.value) == f"{found.value.field}: {found.value.reason}" or not found.value.field
    return found.value.field, found.value.reason


def record(**of: Any) -> dict[str, Any]:
    return example(records=[of])


def delivery(*origins: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"delivery": {"stream": "alerts", "seq": 0, "ts": 2_000, "origins": list(origins), **changes}}


# What it becomes


@pytest.mark.parametrize("read", [as_json, as_msgpack])
def test_a_document_becomes_a_batch_with_its_plan_first_and_its_progress_behind_its_tuples(read: Any) -> None:
    document = read(EXAMPLE)
    assert (document.agent, document.epoch, document.batch, document.records) == ("flink-1", 1, 0, 5)
    header, _ = read_header(document.data)
    assert (header.epoch, header.seq, header.covers, header.nonce) == (1, 0, 1, document.nonce)
    batch = decode_batch(document.data, "flink-1")
    kinds = [kind for kind, _, _ in batch.sections]
    assert kinds == [Kind.PLAN, Kind.SOURCE, Kind.DELIVERY, Kind.PROGRESS, Kind.GAP, Kind.END]
    plan, *records = told(document)
    assert isinstance(plan, Declared)
    assert seen(records) == seen(records_of(EXAMPLE))


def test_a_run_is_known_by_a_part_of_its_hash() -> None:
    """Written down in docs/ingest.md: it must stay so for ever."""
    assert nonce_of("flink-1", "2026-10-17 08:00") == 0x9978BCB2E69BEEB5
    assert as_json(EXAMPLE).nonce == nonce_of("flink-1", EXAMPLE["run"])
    assert len({nonce_of("a", "b"), nonce_of("a", "c"), nonce_of("b", "b")}) == 3


@given(documents())
def test_whatever_is_valid_is_read_back_as_it_was_said(document: dict[str, Any]) -> None:
    expected, made = seen(records_of(document)), as_json(document)
    assert seen(told(made)) == expected
    assert as_json(document) == made, "the same document is the same batch"
    try:
        packed = msgspec.msgpack.encode(document)
    except OverflowError:  # MessagePack has no numbers of more than 64 bits
        return
    assert seen(told(read_msgpack(packed))) == expected
    assert read_msgpack(wide(document)) == made


@given(JSON_VALUES)
@with_example(None)
@with_example([])
@with_example({"agent": "a", "run": "b", "epoch": 1, "batch": 0, "plan": {"nodes": []}})
def test_any_json_is_a_document_or_is_refused_with_a_reason(value: Any) -> None:
    with pytest.raises(BadDocument, match=r"\w"):
        as_json(value)


@given(documents(), st.data())
def test_a_document_with_anything_in_any_place_is_refused_or_is_read_back(document: Any, data: st.DataObject) -> None:
    """Some part of it is replaced by something else."""
    around, key = data.draw(st.sampled_from(list(_places({"": document}))))
    around[key] = data.draw(JSON_VALUES)
    for read in (as_json, as_msgpack):
        try:
            taken = read(document)
        except (BadDocument, TooLarge, OverflowError):
            continue
        assert seen(told(taken)) == seen(records_of(document))


def _places(part: Any) -> Any:
    """Everything in a document, as what it is in and where."""
    for key in part if isinstance(part, dict) else range(len(part)):
        if key:
            yield part, key
        if isinstance(part[key], (dict, list)):
            yield from _places(part[key])


@given(st.binary(max_size=64))
@with_example(b"\x91" * 5_000)
@with_example(b"[" * 5_000)
@with_example(b'{"agent": "\\ud800"}')
@with_example(b'{"a": NaN}')
@with_example(b"1" * 5_000)
def test_bytes_that_are_nothing_are_refused(data: bytes) -> None:
    for read in (read_json, read_msgpack):
        with pytest.raises(BadDocument):
            read(data)


@given(st.binary(max_size=8), st.integers(0, 500))
def test_damaged_messagepack_is_refused_or_taken_but_never_breaks_anything(damage: bytes, at: int) -> None:
    data = msgspec.msgpack.encode(EXAMPLE)
    at %= len(data)
    try:
        told(read_msgpack(data[:at] + damage + data[at + len(damage) :]))
    except (BadDocument, TooLarge):
        pass


# What is wrong with it

_ORIGIN: dict[str, Any] = {"stream": "reports", "seq": 0, "ts": 1_000}
_REMOTE: dict[str, Any] = {"agent": "car-7", "nonce": 7, "epoch": 3, **_ORIGIN, "stream": "stopped", "remote": True}


def without(part: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != key}


@pytest.mark.parametrize(
    ("document", "field", "reason"),
    [
        (without(EXAMPLE, "agent"), "agent", "is missing"),
        (example(agent="Flink"), "agent", "no name of an agent"),
        (example(run=""), "run", "is empty"),
        (example(run="x" * 201), "run", "more than 200"),
        (example(run="ü" * 200, epoch=-1), "epoch", "-1 is not between 0 and"),
        (example(batch=True), "batch", "a whole number is expected, not true"),
        (example(batch=1.0), "batch", "a whole number is expected, not 1.0"),
        (example(recods=[]), "recods", "'recods' is unknown here: there are agent, run, epoch, batch, plan, records"),
        (without(EXAMPLE, "plan"), "plan", "is missing: batch 0 tells the plan"),
        (example(batch=1, plan=None, records=[]), "records", "is empty"),
        (example(records={}), "records", "a list is expected, not an object"),
        (example(records=[7]), "records[0]", "an object is expected, not 7"),
        (record(), "records[0]", "exactly one of source, delivery, progress, gap, end is expected, not 0"),
        (example(records=[{"source": {}, "end": {}}]), "records[0]", "exactly one of"),
        (record(delivry={}), "records[0].delivry", "is unknown here"),
        (record(source=without(_ORIGIN, "seq")), "records[0].source.seq", "is missing"),
        (record(source={**_ORIGIN, "seq": 2**36}), "records[0].source.seq", "is not between 0 and 68719476735"),
        (record(source={**_ORIGIN, "ts": 2**62}), "records[0].source.ts", "is not between"),
        (record(source={**_ORIGIN, "stream": "a\nb"}), "records[0].source.stream", "cannot be printed"),
        (record(source={**_ORIGIN, "stream": "alerts"}), "records[0].source.stream", "the plan has no source 'alerts'"),
        (record(source={**_ORIGIN, "payload": "x" * 20_000}), "records[0].source.payload", "16384 may be captured"),
        (record(source={**_ORIGIN, "payload": {"n": 10**3000}}), "records[0].source.payload", "too many digits"),
        (example(records=[{"source": _ORIGIN}, {"source": _ORIGIN}]), "records[1].source.seq", "told twice"),
        (
            example(records=[{"source": _ORIGIN}, delivery({**_ORIGIN, "ts": 999})]),
            "records[1].delivery.origins[0].ts",
            "999, and elsewhere in this document the same tuple has 1000",
        ),
        (example(records=[delivery(), delivery()]), "records[1].delivery.seq", "told twice"),
        (example(records=[delivery(stream="reports")]), "records[0].delivery.stream", "no sink and no send 'reports'"),
        (example(records=[delivery(part=0)]), "records[0].delivery.parts", "is missing"),
        (example(records=[delivery(part=2, parts=2)]), "records[0].delivery.part", "2 is not between 0 and 1"),
        (example(records=[delivery(parts=257, part=0)]), "records[0].delivery.parts", "not between 1 and 256"),
        (
            example(records=[delivery(parts=2, part=0), delivery(parts=3, part=1)]),
            "records[1].delivery.parts",
            "other parts of this tuple say another number",
        ),
        (example(records=[delivery(origins={})]), "records[0].delivery.origins", "a list is expected"),
        (
            example(records=[delivery(_ORIGIN, {**_ORIGIN, "seq": "1"})]),
            "records[0].delivery.origins[1].seq",
            "a whole number is expected, not '1'",
        ),
        (
            example(records=[delivery({**_ORIGIN, "remote": True})]),
            "records[0].delivery.origins[0].remote",
            "one that another agent has sent",
        ),
        (
            example(records=[delivery({**_ORIGIN, "stream": "weather"})]),
            "records[0].delivery.origins[0].stream",
            "the plan has no way from 'weather' to 'alerts'",
        ),
        (
            example(records=[delivery({**_ORIGIN, "ts": -58_001})]),
            "records[0].delivery.origins[0].ts",
            "60001 ms before its result, and the windows of the plan hold 60000 ms",
        ),
        (
            example(records=[delivery({**_REMOTE, "stream": "x"})]),
            "records[0].delivery.origins[0].stream",
            "does not receive 'x' from car-7",
        ),
        (
            example(records=[delivery({**_REMOTE, "ts": -58_001})]),
            "records[0].delivery.origins[0].ts",
            "60001 ms before its result",
        ),
        (
            example(records=[delivery(_REMOTE, without(_REMOTE, "remote"))]),
            "records[0].delivery.origins[1].remote",
            "the same tuple is among the origins",
        ),
        (
            example(records=[delivery(_ORIGIN, {**_ORIGIN, "seq": 1}, _ORIGIN)]),
            "records[0].delivery.origins[2].seq",
            "0 of 'reports' is among the origins already",
        ),
        (
            example(records=[delivery(_ORIGIN, {**_ORIGIN, "run": EXAMPLE["run"], "epoch": 1})]),
            "records[0].delivery.origins[1].seq",
            "each once",
        ),
        (
            example(records=[delivery(without(_REMOTE, "nonce"))]),
            "records[0].delivery.origins[0].run",
            "which start of car-7 is it",
        ),
        (
            example(records=[delivery(without(_REMOTE, "epoch"))]),
            "records[0].delivery.origins[0].epoch",
            "is missing",
        ),
        (
            example(records=[delivery({**_REMOTE, "run": "x"})]),
            "records[0].delivery.origins[0].nonce",
            "the run says it already",
        ),
        (
            example(records=[delivery({**_REMOTE, "nonce": 2**64})]),
            "records[0].delivery.origins[0].nonce",
            "is not between",
        ),
        (
            example(records=[delivery({**_ORIGIN, "run": EXAMPLE["run"], "epoch": 2})]),
            "records[0].delivery.origins[0].epoch",
            "this run has the number 1",
        ),
        (record(progress={"stream": "reports", "watermark": 0}), "records[0].progress.stream", "no sink and no send"),
        (
            record(progress={"stream": "alerts", "watermark": None}),
            "records[0].progress.watermark",
            "a whole number is expected, not null",
        ),
        (
            example(
                records=[{"progress": {"stream": "alerts", "watermark": ts}} for ts in (5, 4)],
            ),
            "records[1].progress.watermark",
            "goes back from 5",
        ),
        (record(gap={"reason": "x", "tuples": []}), "records[0].gap.tuples", "is empty"),
        (
            record(gap={"reason": "x", "tuples": [{"stream": "jams", "first": 3, "last": 2}]}),
            "records[0].gap.tuples[0].last",
            "2 is not between 3 and",
        ),
        (example(records=[{"end": {"ts": 1}}, {"end": {"ts": 1}}]), "records[1]", "stands behind the end"),
    ],
)
def test_what_is_wrong_is_told_with_the_field_and_the_reason(document: Any, field: str, reason: str) -> None:
    found = refusal(document)
    assert found[0] == field
    assert reason in found[1]


@pytest.mark.parametrize(
    ("plan", "field", "reason"),
    [
        ([], "plan", "an object is expected"),
        ({**PLAN, "sink": {}}, "plan.sink", "is unknown here"),
        ({**PLAN, "sources": "reports"}, "plan.sources", "a list is expected"),
        ({**PLAN, "sources": ["reports", 1]}, "plan.sources[1]", "a text is expected, not 1"),
        ({**PLAN, "sources": ["reports"]}, "plan.sinks.storms.from[0]", "'weather' is neither a source nor a receive"),
        ({**PLAN, "sinks": []}, "plan.sinks", "an object is expected"),
        ({**PLAN, "sinks": {"alerts": {"from": ["reports"]}}}, "plan.sinks.alerts.window_ms", "is missing"),
        ({**PLAN, "sinks": {"alerts": {"from": [], "window_ms": 1}}}, "plan.sinks.alerts.from", "is empty"),
        (
            {**PLAN, "sinks": {"alerts": {"from": ["reports"], "window_ms": -1}}},
            "plan.sinks.alerts.window_ms",
            "-1 is not between 0 and",
        ),
        ({**PLAN, "sinks": {"x": {"from": ["reports"], "window_ms": 1, "to": []}}}, "plan.sinks.x.to", "is unknown"),
        ({**PLAN, "sends": {"jams": {"from": ["reports"], "window_ms": 1}}}, "plan.sends.jams.to", "is missing"),
        (
            {**PLAN, "sends": {"jams": {"from": ["reports"], "window_ms": 1, "to": ["A"]}}},
            "plan.sends.jams.to[0]",
            "no name of an agent",
        ),
        ({**PLAN, "receives": {"cars": {"agent": "car-7"}}}, "plan.receives.cars.stream", "is missing"),
        ({**PLAN, "sinks": {"reports": {"from": ["reports"], "window_ms": 1}}}, "plan", "two operators have this name"),
        ({"sources": ["a"]}, "plan", "nothing consumes its stream"),
        ({}, "plan", "needs a source or a receive"),
        ({"nodes": 1}, "plan", "'version' is missing"),
    ],
)
def test_what_is_wrong_with_a_plan_is_told_too(plan: Any, field: str, reason: str) -> None:
    found = refusal(example(plan=plan, records=[]))
    assert found[0] == field
    assert reason in found[1]


def test_a_later_batch_is_held_against_the_plan_if_it_repeats_it_and_does_not_send_it_again() -> None:
    records = [delivery({**_ORIGIN, "ts": -100_000})]
    later = as_json(example(batch=1, plan=None, records=records))
    assert [type(each).__name__ for each in told(later)] == ["Delivery"]
    assert refusal(example(batch=1, records=records))[0] == "records[0].delivery.origins[0].ts"
    repeated = as_json(example(batch=1, records=[delivery(_ORIGIN)]))
    assert [type(each).__name__ for each in told(repeated)] == ["Delivery"]


def test_origins_of_an_earlier_run_need_not_be_in_the_plan_of_this_one() -> None:
    gone = {**_ORIGIN, "stream": "gone", "run": "before", "epoch": 0}
    [_, made] = told(as_json(example(records=[delivery(gone)])))
    assert str(made.origins[0].id) == "flink-1/gone@0:0"


# Keys that are given twice


class Doubled(dict[str, Any]):
    """An object that gives its first key twice."""

    @property
    def written(self) -> list[tuple[str, Any]]:
        return [(next(iter(self)), 0), *self.items()]


def pairs_of(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return value.written if isinstance(value, Doubled) else list(value.items())


def json_text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {json_text(each)}' for key, each in pairs_of(value))}}}"
    return f"[{', '.join(map(json_text, value))}]" if isinstance(value, list) else json.dumps(value)


def narrow(value: Any) -> bytes:
    """MessagePack as short as can be."""
    if isinstance(value, dict):
        pairs = pairs_of(value)
        return bytes([0x80 | len(pairs)]) + b"".join(narrow(each) for pair in pairs for each in pair)
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(narrow, value))
    return msgspec.msgpack.encode(value)


def wide(value: Any) -> bytes:
    """MessagePack that takes more room than it has to, as some libraries write it."""
    if isinstance(value, dict):
        pairs = pairs_of(value)
        return b"\xdf" + len(pairs).to_bytes(4, "big") + b"".join(wide(each) for pair in pairs for each in pair)
    if isinstance(value, list):
        return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(wide, value))
    if isinstance(value, str):
        return b"\xdb" + len(value.encode()).to_bytes(4, "big") + value.encode()
    if type(value) is int and -(2**63) <= value < 2**63:
        return b"\xd3" + value.to_bytes(8, "big", signed=True)
    return msgspec.msgpack.encode(value)


def refusals(document: Any) -> set[tuple[str, str]]:
    """What is said of a document, however it is written."""
    found = set()
    for read, data in (
        (read_json, json_text(document).encode()),
        (read_msgpack, narrow(document)),
        (read_msgpack, wide(document)),
    ):
        with pytest.raises(BadDocument) as refused:
            read(data)
        found.add((refused.value.field, refused.value.reason))
    return found


def test_a_key_that_is_given_twice_is_refused_with_its_place() -> None:
    assert refusals(Doubled(EXAMPLE)) == {("agent", "is given twice")}
    source, *others = EXAMPLE["records"]
    twice = {"source": Doubled(source["source"])}
    assert refusals(example(records=[*others, twice])) == {("records[4].source.stream", "is given twice")}
    said = {"source": {**source["source"], "payload": [1, {"car": Doubled(a=1)}]}}
    assert refusals(example(records=[said])) == {("records[0].source.payload[1].car.a", "is given twice")}
    plan = {**PLAN, "sinks": Doubled(PLAN["sinks"])}
    assert refusals(example(plan=plan)) == {("plan.sinks.alerts", "is given twice")}


def test_keys_that_are_no_texts_are_told_apart_as_well() -> None:
    around = [msgspec.msgpack.encode(example(records=[{"source": {**_ORIGIN, "payload": "?"}}]))]
    before, after = around[0].split(b"\xa1?")
    for keys in ((b"\x01", b"\x02"), (b"\xc0", b"\x01"), (b"\x91\x01", b"\x91\x02"), (b"\xc4\x01a", b"\xa1a")):
        payload = b"\xde\x00\x02" + b"\x00".join([*keys, b""])
        read_msgpack(before + payload + after)
        for key in keys:
            payload = b"\x82" + b"\x00".join([key, key, b""])
            with pytest.raises(BadDocument, match="is given twice"):
                read_msgpack(before + payload + after)


# Plans


def plan_of(plan: dict[str, Any]) -> PlanDocument:
    [declared] = told(as_json(example(plan=plan, records=[])))
    return PlanDocument.from_json(declared.plan)


def test_a_plan_in_short_says_how_long_a_tuple_may_contribute() -> None:
    assert delays(plan_of(PLAN)) == {
        "reports": {"alerts": 60_000, "jams": 1_000},
        "weather": {"storms": 0},
        "cars": {"alerts": 60_000},
    }
    assert plan_of(PLAN).name == "flink-1"
    assert plan_of({**PLAN, "name": "traffic"}).name == "traffic"


def test_operators_that_a_short_plan_makes_have_names_that_nobody_else_has() -> None:
    awkward = {
        "sources": ["alerts window", "a", "alerts union"],
        "sinks": {
            "alerts": {"from": ["alerts window", "a", "a", "alerts union"], "window_ms": 5},
            "alerts window 2": {"from": ["a"], "window_ms": 5},
        },
        "sends": {"x" * 200: {"from": ["a"], "window_ms": 1, "to": ["b"]}},
    }
    assert delays(plan_of(awkward))["a"] == {"alerts": 5, "alerts window 2": 5, "x" * 200: 1}


def test_a_plan_document_of_ours_is_taken_as_it_is() -> None:
    ours = plan_of(PLAN)
    assert plan_of(json.loads(ours.to_json())) == ours


def test_length_windows_hold_tuples_of_any_age() -> None:
    whole = json.loads(plan_of(PLAN).to_json())
    for node in whole["nodes"]:
        if node["operator"] == "aggregate":
            node["parameters"]["window"] = {"kind": "length", "count": 3}
    as_json(example(plan=whole, records=[delivery({**_ORIGIN, "ts": -(10**9)})]))


# What is too large


def many(count: int, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Records that do not compress well."""
    chance = random.Random(seed)
    records = [
        {"source": {"stream": "reports", "seq": seq, "ts": seq, "payload": chance.randbytes(40).hex()}}
        for seq in range(count)
    ]
    return example(records=records, **changes)


def test_a_document_that_is_too_large_says_how_to_divide_it_and_that_helps() -> None:
    document = many(2_000)
    with pytest.raises(TooLarge, match="bytes after compression, and a batch has at most 61440") as found:
        as_json(document)
    size = int(str(found.value).partition("batches of at most ")[2].split()[0])
    parts = [document["records"][at : at + size] for at in range(0, 2_000, size)]
    made = [as_json(example(batch=number, records=part)) for number, part in enumerate(parts)]
    assert sum(len(told(each)) for each in made) == 2_000 + 1
    assert all(len(frame(each.data, "flink-1", oldest=True)) <= MOST_BATCH_BYTES for each in made)


def test_a_delivery_with_too_many_origins_can_be_divided_into_parts() -> None:
    chance = random.Random(1)
    origins = [{**_ORIGIN, "seq": chance.randrange(2**36), "ts": chance.randrange(60_000)} for _ in range(12_000)]
    with pytest.raises(TooLarge, match="divide its origins over several parts"):
        as_json(example(records=[delivery(*origins, ts=60_000)]))
    for number in range(3):
        part = delivery(*origins[number * 4_000 :][:4_000], ts=60_000, part=number, parts=3)
        made = as_json(example(batch=number, records=[part]))
        sections = [section for _, section, _ in decode_batch(made.data, "flink-1").sections]
        [columns] = [each for each in sections if isinstance(each, DeliveryColumns)]
        assert list(columns.part) == [number << 8 | 2]
        assert list(columns.counts) == [4_000]


def sources(count: int, payload: Callable[[int], Any] = lambda _: None) -> list[dict[str, Any]]:
    return [{"source": {"stream": "reports", "seq": at, "ts": at, "payload": payload(at)}} for at in range(count)]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (sources(10_001), "10001 records, and 10000 are allowed"),
        (
            [delivery(*[{**_ORIGIN, "seq": at} for at in range(50_001)], seq=number) for number in range(2)],
            "more than 100000 origins",
        ),
        (sources(200, lambda at: "x" * 4_000 + str(at)), "bytes before compression"),
        (
            sources(2_200, lambda at: dict.fromkeys(map(str, range(250)), at)),
            "too much for one batch (more than 524288 numbers)",
        ),
    ],
)
def test_other_bounds_are_told_too(records: Any, reason: str) -> None:
    with pytest.raises(TooLarge) as found:
        as_msgpack(example(records=records))
    assert reason in str(found.value)


def test_a_document_of_too_many_bytes_is_not_even_read() -> None:
    with pytest.raises(TooLarge, match=f"and {MOST_DOCUMENT_BYTES} are allowed"):
        read_json(b" " * (MOST_DOCUMENT_BYTES + 1))


def test_a_document_names_no_more_streams_than_a_translator_takes() -> None:
    records = [{"source": {"stream": f"s{at}", "seq": 0, "ts": 0}} for at in range(1_001)]
    assert refusal(example(batch=1, plan=None, records=records))[0] == "records[1000].source.stream"


# The page


def test_the_documents_in_the_page_are_taken() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text()
    documents = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    made = [read_json(each.encode()) for each in documents]
    assert [each.records for each in made] == [4, 0]
    [run] = re.findall(r"printf 'flink-1/(.*?)' \| sha256sum", page)
    assert nonce_of("flink-1", run) == made[0].nonce

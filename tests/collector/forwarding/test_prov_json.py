"""PROV-JSON: what the documents tell, read by another library, is what the records tell."""

from __future__ import annotations

import json
import warnings
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from collector.export import export
from collector.forwarding.prov_json import ProvJson
from collector.log_view import Entry
from collector.names import DataName, Epoch, parse_name
from protocol.events import STATUSES, DataItem, Dependency, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded
from protocol.ids import StreamId
from protocol.records import Delivery, End, Origin, OriginKind, SourcePayload
from protocol.wire.sections import Kind
from tests.collector.export.graphs import reading, showing
from tests.collector.export.test_prov_document import SCHEMA
from tests.collector.forwarding.graphs import expected, told

URL = "http://127.0.0.1:9/documents"
TIMES = st.integers(0, 2**45) | st.sampled_from([-(2**63), 2**63 - 1])
NAMES = st.sampled_from(["a", "b", "1", "a b", "c/d", "x@1:2", "%41", "é", "", "?", "a'b(c)", "-", "\n"])
LITERALS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    LITERALS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(), inner, max_size=3)
)
ITEMS = st.builds(DataItem, NAMES, NAMES, st.lists(NAMES, max_size=2).map(tuple), VALUES)
DATA = st.lists(ITEMS, max_size=3).map(tuple)
KEYS = st.integers(0, 3)
STREAMS = st.builds(StreamId, st.sampled_from(["pump-7", "pi-1"]), st.integers(0, 2), NAMES, st.just(1))
ORIGINS = st.builds(Origin, st.sampled_from(OriginKind), STREAMS, KEYS, TIMES)


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """What two agents may have said: each key begins once and ends once, in any order."""
    records: list[tuple[Kind, Any]] = []
    for key in range(draw(st.integers(0, 3))):
        records.append((Kind.EVENT, draw(st.builds(WorkflowBegun, KEYS, TIMES, st.just(key), NAMES, VALUES))))
        status = st.sampled_from(STATUSES)
        records.append((Kind.EVENT, draw(st.builds(WorkflowEnded, KEYS, TIMES, st.just(key), status, st.text()))))
        dependencies = st.lists(st.builds(Dependency, NAMES, st.integers(-1, 3)), max_size=2).map(tuple)
        begun = st.builds(TaskBegun, KEYS, TIMES, st.just(key), KEYS, NAMES, NAMES, dependencies, DATA)
        ended = st.builds(TaskEnded, KEYS, TIMES, st.just(key), status, st.text(), DATA)
        records += [(Kind.EVENT, draw(begun)), (Kind.EVENT, draw(ended))]
    for seq in range(draw(st.integers(0, 3))):
        records.append((Kind.SOURCE, draw(st.builds(SourcePayload, STREAMS, st.just(seq), TIMES, VALUES))))
        origins = st.lists(ORIGINS, max_size=4).map(tuple)
        records.append((Kind.DELIVERY, draw(st.builds(Delivery, STREAMS, st.just(seq + 4), TIMES, VALUES, origins))))
    agents = st.sampled_from([("pump-7", 1), ("pi-1", 2)])
    one = draw(agents)
    return [
        Entry(kind, one[0], 5, seq, record, one[1]) for seq, (kind, record) in enumerate(draw(st.permutations(records)))
    ]


@settings(max_examples=40)
@given(histories(), st.integers(1, 40))
def test_documents_tell_what_the_records_tell_wherever_they_are_cut(entries: list[Entry], most: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of names and values that other readers would refuse
        requests = list(ProvJson(URL, most).requests(entries))
        found = told(each.body for each in requests)
    wanted = expected(entries)
    assert found.relations == wanted.relations
    assert found.elements == wanted.elements
    assert {each.url for each in requests} <= {URL}


@settings(max_examples=15)
@given(histories())
def test_what_is_told_twice_is_as_if_told_once(entries: list[Entry]) -> None:
    once = {id for each in ProvJson(URL).requests(entries) for id in relation_ids(each.body)}
    again = {id for each in ProvJson(URL, 3).requests([*entries, *entries]) for id in relation_ids(each.body)}
    assert once == again


def relation_ids(document: bytes) -> list[str]:
    """By their ends where PROV has no ids: others write those of this one document instead."""
    content = json.loads(document)
    kinds = content.keys() - {"prefix", "entity", "activity", "agent"}
    told = [(id, relation) for kind in kinds for id, relation in content[kind].items()]
    found = [json.dumps(relation) if id.startswith("_:") else id for id, relation in told]
    assert len(set(found)) == len(found), "each once in a document"
    return found


@settings(max_examples=15)
@given(histories())
def test_documents_are_what_the_schema_of_prov_json_asks_for(entries: list[Entry]) -> None:
    for each in ProvJson(URL).requests(entries):
        SCHEMA.validate(json.loads(each.body))


def test_what_one_agent_has_generated_and_others_use_meets_in_the_data_of_that_name() -> None:
    """A model of a server that devices train, told by each without knowing of the others, in any order."""
    server = TaskEnded(0, 2, 0, "finished", "", (DataItem("round-1", "fl", (), {"loss": 1}),))
    device = TaskBegun(0, 3, 0, 0, "local", "train", (), (DataItem("round-1", "fl", ("round-0",), None),))
    entries = [Entry(Kind.EVENT, f"device-{n}", n, 0, device, 1) for n in (1, 2)]
    entries.insert(1, Entry(Kind.EVENT, "fl-server", 9, 0, server, 1))
    relations = told(each.body for entry in entries for each in ProvJson(URL).requests([entry])).relations
    general = {specific: it for kind, specific, it in relations if kind == "Specialization"}
    generated = {general[data]: task for kind, data, task in relations if kind == "Generation"}
    used = {task: generated[general[data]] for kind, task, data in relations if kind == "Usage"}
    tl = "urn:threadline:"
    assert used == {f"{tl}task:device-{n}@1:0": f"{tl}task:fl-server@1:0" for n in (1, 2)}
    assert {general[origin] for kind, _, origin in relations if kind == "Derivation"} == {f"{tl}data:fl/round-0"}


def test_the_general_entity_has_the_id_by_which_people_ask_for_data_of_that_name() -> None:
    entry = Entry(Kind.EVENT, "pi-1", 5, 0, TaskEnded(0, 2, 0, "finished", "", (DataItem("a/b", "f l", (), None),)), 3)
    (request,) = ProvJson(URL).requests([entry])
    ids = {each["tl:id"] for each in json.loads(request.body)["entity"].values()}
    assert {str(parse_name(id)) for id in ids} == ids
    assert {parse_name(id) for id in ids} == {DataName("f l", "a/b"), DataName("f l", "a/b", "pi-1", Epoch(3))}


def test_values_are_told_as_the_export_tells_them() -> None:
    """What a document of either has of a tuple, the other has, too."""
    payload = {"n": 1, "raw": b"\x01", "nan": float("nan"), "none": None, "list": [1, b"\x02"], "a b": True}
    record = SourcePayload(StreamId("car-7", 3, "reports", 1), 1842, 279_000, payload)
    (request,) = ProvJson(URL).requests([Entry(Kind.SOURCE, "car-7", 1, 0, record, 3)])
    (forwarded,) = json.loads(request.body)["entity"].values()
    (exported,) = json.loads(export(showing(reading(payload=payload, seq=1842, ts=279_000)), "prov-json"))[
        "entity"
    ].values()
    assert forwarded.items() <= exported.items()


def test_records_that_prov_has_no_words_for_are_counted() -> None:
    system = ProvJson(URL)
    assert list(system.requests([Entry(Kind.END, "pi-1", 5, 0, End(1), 1)])) == []
    assert system.skipped == {"end": 1}

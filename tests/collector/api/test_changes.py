"""The live graph as server-sent events, from a real server process: everything once and in order, however often a
consumer goes and comes back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx
import pytest

from collector.store import StoreReader, StoreWriter
from collector.store.feed import Cursor
from protocol.graph import Reason
from protocol.records import END_OF_TIME
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id
from tests.collector.store.rows import register_row
from threadline.lab import ApiService

CLIENT = httpx.Client(timeout=30)  # a new one would read all certificates of the machine first
STREAMS = {1: "readings", 2: "alerts", 3: "other"}


class Event(NamedTuple):
    id: str
    kind: str
    data: Any


def events_of(response: httpx.Response) -> Iterator[Event]:
    """What comes, event by event."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif not line and "event" in fields:
            yield Event(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}


def written(writer: StoreWriter, number: int, chance: Random) -> None:
    """One micro-batch: some results, their readings, edges and labels, and something late."""
    sinks = {tuple_id(2, 100 * number + place): number for place in range(chance.randint(1, 20))}
    sources = {tuple_id(1, 100 * number + place): number for place in range(chance.randint(1, 20))}
    edges = [(sink, source) for sink in sinks for source in chance.sample(sorted(sources), 1)]
    late = [(min(sinks), tuple_id(3, number), number, Reason.AFTER_LABEL)]
    labels = list(sources) if number % 3 else []
    writer.write(
        graph_batch(
            "q",
            number,
            stamp=number,
            sinks=sinks,
            sources=sources,
            edges=edges,
            late=late,
            sink_labels=sinks,
            source_labels=labels,
        )
    )


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiService]:
    folder = tmp_path_factory.mktemp("changes")
    with ApiService(folder, None, f"sqlite:///{folder / 'graph.db'}") as service:
        yield service


@pytest.fixture
def writer(api: ApiService) -> Iterator[StoreWriter]:
    """A new store behind the API, with the names of its streams."""
    path = api.log.parent / "graph.db"
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with QuickWriter(path) as made:
        made.write(graph_batch("q", 0, rows=[register_row(number, name) for number, name in STREAMS.items()]))
        yield made


def told(path: Path) -> list[str]:
    """The ids of all events that must come, in order."""
    with closing(StoreReader(path)) as reader:
        return [f"{row}-{items}" for (row, items), *_ in reader.changes(Cursor(), 1_000_000)]


def test_a_consumer_that_comes_back_a_hundred_times_sees_everything_once_and_in_order(
    api: ApiService, writer: StoreWriter
) -> None:
    is_enough = threading.Event()

    def write() -> None:
        chance, number = Random(7), 0
        while not is_enough.wait(0.02):
            number += 1
            written(writer, number, chance)

    writing = threading.Thread(target=write)
    writing.start()
    seen: list[Event] = []
    last: str | None = None
    dice = Random(8)
    try:
        for _ in range(100):
            last = _follow(api, last, seen, dice.choice([0, 1, 2, 3, 40, 150]))
    finally:
        is_enough.set()
        writing.join()
    while last != _last(api):
        last = _follow(api, last, seen, 10_000)
    assert [event.id for event in seen] == told(api.log.parent / "graph.db")
    kinds = {event.kind for event in seen}
    assert kinds == {"sink", "source", "edge", "sink-label", "source-label", "late"}
    edges = [event.data for event in seen if event.kind == "edge"]
    assert all(edge["origin"].startswith("pump-7/readings@3:") for edge in edges)


def _follow(api: ApiService, last: str | None, seen: list[Event], most: int) -> str:
    """Take some events behind the last one, or as many as there are; returns the id of the last one then."""
    headers = {} if last is None else {"Last-Event-ID": last}
    parameters = {"since": "start"}
    with CLIENT.stream("GET", f"{api.url}/v1/graph/stream", params=parameters, headers=headers) as response:
        assert response.status_code == 200
        for count, event in enumerate(events_of(response)):
            last = event.id
            if event.kind != "place":
                seen.append(event)
            if count >= most or (most == 10_000 and last == _last(api)):
                break
    assert last is not None
    return last


def _last(api: ApiService) -> str:
    with closing(StoreReader(api.log.parent / "graph.db")) as reader:
        return "{}-{}".format(*reader.feed_end())


def ask(api: ApiService, **parameters: Any) -> httpx.Response:
    """An answer that ends at once: a problem."""
    return CLIENT.get(f"{api.url}/v1/graph/stream", params=parameters)


def test_a_new_consumer_hears_of_what_comes_and_knows_where_it_began(api: ApiService, writer: StoreWriter) -> None:
    written(writer, 1, Random(1))
    with CLIENT.stream("GET", f"{api.url}/v1/graph/stream") as response:
        events = events_of(response)
        place = next(events)
        assert (place.kind, place.id) == ("place", _last(api))
        written(writer, 2, Random(2))
        first = next(events)
        assert (first.kind, first.data["id"]) == ("sink", "pump-7/alerts@3:200")
        assert first.data["stamp"] == 2


def test_only_what_is_asked_for_comes(api: ApiService, writer: StoreWriter) -> None:
    for number in range(1, 4):
        written(writer, number, Random(number))
    asked: list[tuple[dict[str, Any], set[str]]] = [
        ({"kind": "source"}, {"source"}),
        ({"kind": ["edge", "late"]}, {"edge", "late"}),
        ({"stream": "other"}, {"late"}),
        ({"stream": "pump-7/readings", "kind": "source-label"}, {"source-label"}),
        ({"agent": "pump-7", "stream": "readings"}, {"source", "edge", "source-label"}),
    ]
    for parameters, kinds in asked:
        with CLIENT.stream("GET", f"{api.url}/v1/graph/stream", params={"since": "start", **parameters}) as response:
            found: set[str] = set()
            for event in events_of(response):
                if event.kind == "place" and event.id == _last(api):
                    break
                found.add(event.kind)
                if event.id == _last(api):
                    break
            assert found - {"place"} == kinds, parameters


def test_a_place_that_is_none_or_gone_is_a_problem(api: ApiService, writer: StoreWriter) -> None:
    written(writer, 1, Random(1))
    for place in ("x", "1", "-1-0", "1-", f"{10**30}-1"):
        response = ask(api, since=place)
        assert (response.status_code, response.json()["errors"][0]["field"]) == (422, "since"), place
    assert ask(api, since="999-1").status_code == 410
    writer.retain(END_OF_TIME)
    response = CLIENT.get(f"{api.url}/v1/graph/stream", headers={"Last-Event-ID": "1-1"})
    assert (response.status_code, response.headers["content-type"]) == (410, "application/problem+json")
    assert "begin anew" in response.json()["detail"]


def test_streams_end_when_the_server_stops(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "graph.db"):
        pass
    service = ApiService(tmp_path, None, f"sqlite:///{tmp_path / 'graph.db'}").start()
    with CLIENT.stream("GET", f"{service.url}/v1/graph/stream") as response:
        events = events_of(response)
        assert next(events).kind == "place"
        assert service.stop() == 0
        assert list(events) == []

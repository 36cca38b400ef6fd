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

from collector.api.routes import changes
from collector.api.view import View
from collector.names import parse_stream
from collector.store import Change, ChangeKind, StoreReader, StoreWriter
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
        return [f"{row}-{items}-{reader.identity}" for (row, items), *_ in reader.changes(Cursor(), 1_000_000)]


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
        return "{}-{}-{}".format(*reader.feed_end(), reader.identity)


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
    row, items, store = _last(api).split("-")
    for place in (
        "x",
        "1",
        "-1-0",
        "1-",
        f"{10**30}-1",
        "1-1",
        f"-1-1-{store}",
        f"{10**30}-1-{store}",
        f"1-1-{store}0",
    ):
        response = ask(api, since=place)
        assert (response.status_code, response.json()["errors"][0]["field"]) == (422, "since"), place
    for place in (f"999-1-{store}", f"1-99999-{store}", f"{row}-{int(items) + 1}-{store}", "1-1-00000000"):
        assert ask(api, since=place).status_code == 410, place
    writer.retain(END_OF_TIME)
    response = CLIENT.get(f"{api.url}/v1/graph/stream", headers={"Last-Event-ID": f"1-1-{store}"})
    assert (response.status_code, response.headers["content-type"]) == (410, "application/problem+json")
    assert "begin anew" in response.json()["detail"]


def test_another_store_in_the_place_of_one_is_told_and_nobody_goes_on_in_its_history(
    api: ApiService, writer: StoreWriter, tmp_path: Path
) -> None:
    written(writer, 1, Random(1))
    with QuickWriter(tmp_path / "graph.db") as other:
        for number in range(1, 9):
            written(other, number, Random(number))
    with CLIENT.stream("GET", f"{api.url}/v1/graph/stream") as response:
        lines = response.iter_lines()
        place = next(line for line in lines if line.startswith("id: "))
        writer.close()
        for suffix in ("-wal", "-shm"):
            api.log.with_name(f"graph.db{suffix}").unlink(missing_ok=True)
        (tmp_path / "graph.db").rename(api.log.with_name("graph.db"))
        assert "event: trouble" in lines
    response = CLIENT.get(f"{api.url}/v1/graph/stream", headers={"Last-Event-ID": place.removeprefix("id: ")})
    assert response.status_code == 410
    assert "of another store than this one: begin anew" in response.json()["detail"]


def test_a_stream_whose_epoch_is_told_later_is_meant_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    change = Change(Cursor(1, 1), ChangeKind.SINK, 0, (tuple_id(2, 0), 5))
    wanted = changes._Filter({ChangeKind.SINK}, None, [parse_stream("pump-7/alerts@3")])
    with QuickWriter(path) as writer, closing(StoreReader(path)) as reader:
        writer.write(graph_batch("q", 0, rows=[register_row(2, "alerts", epoch=2)]))
        view = View(reader)
        assert not wanted.lets_pass(view, change)
        writer.write(graph_batch("q", 1, rows=[register_row(2, "alerts", epoch=3)]))
        view.refresh()
        assert wanted.lets_pass(view, change)


def test_streams_end_when_the_server_stops(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "graph.db"):
        pass
    service = ApiService(tmp_path, None, f"sqlite:///{tmp_path / 'graph.db'}").start()
    with CLIENT.stream("GET", f"{service.url}/v1/graph/stream") as response:
        events = events_of(response)
        assert next(events).kind == "place"
        assert service.stop() == 0
        assert list(events) == []

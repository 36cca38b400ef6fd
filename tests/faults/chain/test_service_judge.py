"""The judge of the services finds what is wrong: each of these says what it should but for one thing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from collector.log_view import Entry
from collector.store import open_store
from protocol.chunks import SEQ_BITS
from protocol.events import TaskBegun, TaskEnded
from protocol.wire.sections import Kind
from tests.faults.chain import service_judge
from tests.faults.chain.graph_judge import read_graph
from tests.support.pipeline import Pipeline
from tests.support.told_log import Log
from tests.system.graph.city import City

EPOCH = 4
API, SPARK, TRANSLATOR, GATEWAY = range(1, 5)
"""Where each would serve its counters."""


class Services:
    """What all of them say of a city, which the store holds as the log tells it."""

    def __init__(self, folder: Path) -> None:
        rounds = itertools.count()
        store, self.told, pipeline = f"sqlite:///{folder / 'graph.db'}", Log(2), Pipeline(2, 4)
        with open_store(store).writer() as writer:
            for rows in City(3).rounds(lambda: next(rounds) == 2):
                self.told.add(rows)
                writer.write(pipeline.run(rows))
        self.graph = read_graph(store, self.told)
        with open_store(store).reader() as reader:
            counters = reader.counters()
        sent = [each for each in self.told.core_rows if each.kind < Kind.SNAPSHOT]
        batches = {(each.agent, each.nonce, each.seq) for each in sent}
        self.counts: dict[int, dict[str, float]] = {
            API: {f"threadline_store_{name}": value for name, value in counters.items()},
            SPARK: {"threadline_spark_edges_total": self.graph.edges},
            TRANSLATOR: {
                "threadline_translator_batches_total": len(batches),
                "threadline_translator_gaps_total": sum(each.kind == Kind.GAP for each in sent),
                "threadline_translator_quarantined_total": 0,
                "threadline_translator_refused_agents_total": 0,
                "threadline_translator_unknown_codec_total": 0,
                "threadline_translator_unreadable_plans_total": 0,
                "threadline_translator_duplicate_agents_total": 0,
                "threadline_translator_retired_total": 0,
                "threadline_translator_reflashed_total": 1,
            },
            GATEWAY: {"threadline_gateway_datagrams_received_total": 100},
        }
        self.backward = {
            self._name(each.id): [self._name(each.id), *map(self._name, each.sources)] for each in self.graph.results
        }
        self.tasks = {"task:cam@4:1": "finished", "task:cam@4:2": "failed", "task:cam@4:3": "running"}
        link = SimpleNamespace(up=SimpleNamespace(forwarded=100))
        self.stage: Any = SimpleNamespace(
            schedule=SimpleNamespace(seed=1),
            api=SimpleNamespace(url="http://api", port=API),
            spark=SimpleNamespace(store=store, metrics_port=SPARK),
            translator=SimpleNamespace(log_folder=folder),
            translator_metrics=TRANSLATOR,
            gateway=SimpleNamespace(metrics_port=GATEWAY),
            links={"car": link},
            wiped={"car": [1]},
            relaunched=set(),
            is_spark_hurt=False,
        )

    def _name(self, number: int) -> str:
        agent, _, stream = self.told.streams[number >> SEQ_BITS]
        return f"{agent}/{stream}@{EPOCH}:{number & (1 << SEQ_BITS) - 1}"

    def answer(self, request: httpx.Request) -> httpx.Response:
        """What the API says; of tasks, two at a time."""
        if request.url.path == "/v1/tasks":
            at = int(request.url.params.get("cursor", "0"))
            items = [{"id": name, "status": status} for name, status in self.tasks.items()]
            following = str(at + 2) if at + 2 < len(items) else None
            return httpx.Response(200, json={"items": items[at : at + 2], "next": following})
        name = request.url.path.removeprefix("/v1/vertices/").removesuffix("/backward")
        if name not in self.backward:
            return httpx.Response(404, text="no such vertex")
        return httpx.Response(200, json={"vertices": [{"id": each} for each in self.backward[name]]})

    def findings(self) -> list[str]:
        return list(service_judge.findings(self.stage, self.graph, self.told))


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Services:
    made = Services(tmp_path)
    starts = {(agent, nonce) for agent, nonce, _ in made.told.streams.values()}
    log = [Entry(Kind.PLAN, agent, nonce, 0, None, EPOCH) for agent, nonce in starts]
    client = partial(httpx.Client, transport=httpx.MockTransport(made.answer))
    monkeypatch.setattr(service_judge, "entries", lambda _: log)
    monkeypatch.setattr(service_judge, "_scrape", lambda port: made.counts[port])
    monkeypatch.setattr(service_judge, "httpx", SimpleNamespace(Client=client))
    return made


def forgets(services: Services) -> None:
    services.backward.clear()


def leaves_out_an_origin(services: Services) -> None:
    for found in services.backward.values():
        found.pop()


def says_it_twice(services: Services) -> None:
    for found in services.backward.values():
        found.append(found[-1])


def loses_a_result(services: Services) -> None:
    services.graph.results.pop()


def wrong_by(port: int, name: str, difference: int) -> Callable[[Services], None]:
    def miscount(services: Services) -> None:
        services.counts[port][f"threadline_{name}"] += difference

    return miscount


def test_what_they_say_is_right(services: Services) -> None:
    assert services.findings() == []


@pytest.mark.parametrize(
    ("defect", "told"),
    [
        (forgets, "the API does not know"),
        (leaves_out_an_origin, "the API says that"),
        (says_it_twice, "the API says that"),
        (loses_a_result, "the store counts"),
        (wrong_by(API, "store_edges", 1), "the API counts"),
        (wrong_by(SPARK, "spark_edges_total", 1), "Spark counts"),
        (wrong_by(SPARK, "spark_edges_total", -1), "Spark counts"),
        (wrong_by(TRANSLATOR, "translator_batches_total", -1), "the translator counts"),
        (wrong_by(TRANSLATOR, "translator_gaps_total", 1), "the translator counts"),
        (wrong_by(TRANSLATOR, "translator_quarantined_total", 1), "the translator counts"),
        (wrong_by(TRANSLATOR, "translator_refused_agents_total", 1), "the translator counts"),
        (wrong_by(TRANSLATOR, "translator_unknown_codec_total", 1), "the translator counts"),
        (wrong_by(TRANSLATOR, "translator_unreadable_plans_total", 1), "the translator counts"),
        (wrong_by(TRANSLATOR, "translator_retired_total", -1), "retired agents"),
        (wrong_by(TRANSLATOR, "translator_reflashed_total", 1), "of 1 wiped cards"),
        (wrong_by(TRANSLATOR, "translator_duplicate_agents_total", 2), "of 1 wiped cards"),
        (wrong_by(GATEWAY, "gateway_datagrams_received_total", 1), "the gateway counts"),
        (wrong_by(GATEWAY, "gateway_datagrams_received_total", -100), "the gateway counts"),
    ],
)
def test_something_is_wrong(services: Services, defect: Callable[[Services], None], told: str) -> None:
    defect(services)
    assert told in services.findings()[0]


def test_a_translator_that_was_started_anew_has_not_counted_everything(services: Services) -> None:
    wrong_by(TRANSLATOR, "translator_batches_total", -1)(services)
    services.stage.relaunched = {"spark"}
    assert services.findings() != []
    services.stage.relaunched = {"translator"}
    assert services.findings() == []


@pytest.mark.parametrize(("relaunched", "is_hurt"), [({"spark"}, False), ({"translator"}, True)])
def test_a_spark_job_that_was_hurt_may_not_have_counted_every_edge(
    services: Services, relaunched: set[str], is_hurt: bool
) -> None:
    services.counts[SPARK]["threadline_spark_edges_total"] = 0
    services.stage.relaunched = {"translator"}
    assert services.findings() == [f"Spark counts 0 edges of {services.graph.edges}"]
    services.stage.relaunched, services.stage.is_spark_hurt = relaunched, is_hurt
    assert services.findings() == []
    services.counts[SPARK]["threadline_spark_edges_total"] = services.graph.edges + 1
    assert services.findings() != []


def test_tasks(services: Services) -> None:
    begun = [TaskBegun(number, number, 1 + number, 0, "t", "f", (), ()) for number in range(3)]
    ended = [TaskEnded(3, 3, 1, "finished", "", ()), TaskEnded(4, 4, 2, "failed", "", ())]
    events = [Entry(Kind.EVENT, "cam", 1, 0, event, EPOCH) for event in (*begun, *ended)]
    assert list(service_judge.tasks(services.stage, events)) == []
    right = services.tasks
    for wrong in (
        {**right, "task:cam@4:3": "finished"},
        {**right, "task:cam@4:4": "running"},
        {name: status for name, status in right.items() if status != "failed"},
    ):
        services.tasks = wrong
        [finding] = service_judge.tasks(services.stage, events)
        assert "1 are not the same" in finding

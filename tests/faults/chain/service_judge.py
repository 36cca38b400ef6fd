"""What the services say of a run when it is over: the API answers what the store holds, and what was dropped, late,
doubled or refused is counted by somebody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from collector.log_view import Entry, entries
from collector.store import open_store
from protocol.chunks import SEQ_BITS
from protocol.events import TaskBegun, TaskEnded
from protocol.row import Row
from protocol.wire.sections import Kind
from tests.faults.chain.graph_judge import Graph
from tests.faults.chain.stage import Stage
from tests.support.told_log import Log

ASKED = 12


def findings(stage: Stage, graph: Graph, told: Log) -> Iterator[str]:
    """What is wrong with what the services say."""
    log = list(entries(stage.translator.log_folder))
    yield from _answers(stage, graph, told, {(each.agent, each.nonce): each.epoch for each in log})
    yield from _count_of_the_store(stage, graph)
    yield from _count_of_spark(stage, graph)
    if "translator" not in stage.relaunched:
        yield from _count_of_the_translator(stage, told.core_rows)
    yield from _count_of_the_gateway(stage)


def _answers(stage: Stage, graph: Graph, told: Log, epochs: Mapping[tuple[str, int], int | None]) -> Iterator[str]:
    """Some results, traced back by the API."""

    def named(number: int) -> str:
        agent, nonce, stream = told.streams[number >> SEQ_BITS]
        return f"{agent}/{stream}@{epochs[agent, nonce]}:{number & (1 << SEQ_BITS) - 1}"

    with httpx.Client(base_url=stage.api.url, timeout=30.0, trust_env=False) as client:
        for result in Random(stage.schedule.seed).sample(graph.results, min(ASKED, len(graph.results))):
            name, sources = named(result.id), {named(each) for each in result.sources}
            answer = client.get(f"/v1/vertices/{name}/backward", params={"limit": 1_000})
            if answer.status_code != 200:
                yield f"the API does not know {name}: {answer.text}"
                continue
            found = [each["id"] for each in answer.json()["vertices"]]
            if len(found) != len(set(found)) or set(found) != {name, *sources}:
                yield f"the API says that {name} comes from {found}, and the store {sources}"


def tasks(stage: Stage, events: Iterable[Entry]) -> Iterator[str]:
    """How the tasks that the API knows are not those that were captured."""
    told: dict[str, str] = {}
    for each in events:
        if isinstance(each.record, (TaskBegun, TaskEnded)):
            name = f"task:{each.agent}@{each.epoch}:{each.record.key}"
            told[name] = each.record.status if isinstance(each.record, TaskEnded) else told.get(name, "running")
    found: dict[str, str] = {}
    with httpx.Client(base_url=stage.api.url, timeout=30.0, trust_env=False) as client:
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            page = client.get(
                "/v1/tasks", params={"limit": 1_000, **({"cursor": page["next"]} if found else {})}
            ).json()
            found |= {each["id"]: each["status"] for each in page["items"]}
    if found != told:
        wrong = sorted(name for name in told.keys() | found.keys() if told.get(name) != found.get(name))
        some = {name: (told.get(name), found.get(name)) for name in wrong[:3]}
        yield f"the API knows {len(found)} tasks, the log {len(told)}; {len(wrong)} are not the same, such as {some}"


def _count_of_the_store(stage: Stage, graph: Graph) -> Iterator[str]:
    """The API serves the counters of the store, and they are those of the graph."""
    counters, served = _counters(stage)
    for name, value in counters.items():
        if served.get(f"threadline_store_{name}") != value:
            yield f"the API counts {served.get(f'threadline_store_{name}')} {name}, and the store {value}"
    counted = {"sinks": len(graph.results), "sources": len(graph.agent_of), "edges": graph.edges, "late": graph.late}
    counted["lost"] = sum(len(each.lost) for each in graph.results)
    for name, value in counted.items():
        if counters.get(name, 0) != value:
            yield f"the store counts {counters.get(name)} {name}, and there are {value}"


def _count_of_spark(stage: Stage, graph: Graph) -> Iterator[str]:
    """Every edge, unless it was hurt; and it counts from its last start."""
    told = _scrape(stage.spark.metrics_port)["threadline_spark_edges_total"]
    is_exact = not stage.is_spark_hurt and "spark" not in stage.relaunched
    if told > graph.edges or (is_exact and told != graph.edges):
        yield f"Spark counts {told} edges of {graph.edges}"


def _counters(stage: Stage) -> tuple[dict[str, int], dict[str, float]]:
    """Of the store, and as the API serves them, at a moment at which nothing was written."""
    with open_store(stage.spark.store).reader() as reader:
        while True:
            before, served = reader.counters(), _scrape(stage.api.port)
            if reader.counters() == before:
                return before, served


def _count_of_the_translator(stage: Stage, log: Sequence[Row]) -> Iterator[str]:
    """It was there all the time: what the log has is what it has counted."""
    told = _scrape(stage.translator_metrics)
    sent = [each for each in log if each.kind < Kind.SNAPSHOT]
    counted = {
        "batches": len({(each.agent, each.nonce, each.seq) for each in sent}),
        "gaps": sum(each.kind == Kind.GAP for each in sent),
        "quarantined": 0,
        "refused_agents": 0,
        "unknown_codec": 0,
        "unreadable_plans": 0,
    }
    for name, value in counted.items():
        if told[f"threadline_translator_{name}_total"] != value:
            yield f"the translator counts {told[f'threadline_translator_{name}_total']} {name}, the log has {value}"
    retired = sum(each.kind == Kind.RETIRE for each in log)
    if told["threadline_translator_retired_total"] < retired:  # more may be by now
        yield f"the translator counts {told['threadline_translator_retired_total']} retired agents, the log {retired}"
    wiped = sum(len(each) for each in stage.wiped.values())
    for name in ("reflashed", "duplicate_agents"):  # what had left a card may come when the next one has spoken
        if told[f"threadline_translator_{name}_total"] > wiped:
            yield f"the translator counts {told[f'threadline_translator_{name}_total']} {name}, of {wiped} wiped cards"


def _count_of_the_gateway(stage: Stage) -> Iterator[str]:
    """No more comes in than the links have forwarded."""
    told = _scrape(stage.gateway.metrics_port)
    received, forwarded = (
        told["threadline_gateway_datagrams_received_total"],
        sum(link.up.forwarded for link in stage.links.values()),
    )
    if not 0 < received <= forwarded:
        yield f"the gateway counts {received} datagrams of {forwarded}"


def _scrape(port: int) -> dict[str, float]:
    """Counters by name; those that have labels are added up."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10.0, trust_env=False).text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found

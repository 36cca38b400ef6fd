"""Every endpoint, asked over HTTP about what devices, Spark and all between them have just done.

The chain takes its time to start, so it is started once: this is one test, made of checks that have names. All of them
are made, and those that fail are told.
"""

from __future__ import annotations

import csv
import io
import json
import re
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import httpx
import msgspec
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from edge_agent import stream
from edge_agent.queries import linear_road, linear_road_accidents
from tests.support.waiting import wait_until
from tests.system.api.chain import CENTER, LATE_MS, LIVE, LONGEST_S, ROADSIDE, Chain, Json

ALERTS = f"{CENTER}/accidents"
GUIDE = Path(__file__).parents[3] / "docs" / "api.md"
CHECKS: list[Callable[[Chain], None]] = []
Check = Callable[[Chain], None]


def check(function: Check) -> Check:
    """One of the checks, in the order in which they stand here."""
    CHECKS.append(function)
    return function


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("mosquitto_installed")
def test_what_happened_can_be_asked_for(tmp_path: Path) -> None:
    failed: list[str] = []
    with Chain(tmp_path) as chain:
        for each in CHECKS:
            try:
                each(chain)
            except Exception:
                failed.append(f"{each.__name__}\n{traceback.format_exc()}")
        assert not failed, "\n\n".join([*failed, chain.api.tail()])
        check_it_stops_and_cuts_nobody_off(chain)


def ids(vertices: list[Json]) -> list[str]:
    return [each["id"] for each in vertices]


def alerts(chain: Chain) -> list[Json]:
    """The accidents, oldest first."""
    found: list[Json] = chain.every("/v1/sinks", "vertices", stream=ALERTS, order="oldest", limit=5)
    return found


def causes(chain: Chain, vertex: str) -> list[Json]:
    found: list[Json] = chain.get(f"/v1/vertices/{vertex}/backward", payload=True)["vertices"][1:]
    return found


# For those who run it


@check
def check_it_is_alive_and_ready(chain: Chain) -> None:
    assert chain.get("/healthz") == {"status": "ok"}
    ready = chain.get("/readyz")
    assert ready["ready"] is True
    assert [(each["name"], each["ready"]) for each in ready["checks"]] == [("store", True), ("mqtt", True)]


@check
def check_figures_for_prometheus(chain: Chain) -> None:
    response = chain.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    figures = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    assert float(figures["threadline_store_up"]) == 1
    assert float(figures["threadline_store_tasks_failed"]) == 1
    assert any(name.startswith("threadline_api_requests_total") for name in figures)
    assert any(name.startswith("threadline_api_request_seconds_bucket") for name in figures)


@check
def check_it_describes_itself(chain: Chain) -> None:
    told = chain.get("/openapi.json")
    assert len(told["paths"]) >= 25
    asked = {route for route in told["paths"] if route.startswith("/v1/")}
    assert asked == {f"/v1/{name}" for name in ENDPOINTS}, "an endpoint without a check"
    assert chain.client.get("/docs").status_code == 200


ENDPOINTS = [
    *("vertices/{id}", "vertices/{id}/backward", "vertices/{id}/forward", "vertices/{id}/lineage"),
    *("sinks", "paths", "impact", "graph/stream", "tasks", "data", "workflows", "workflows/compare", "agents"),
    *("agents/{name}", "streams", "plans", "plans/{agent}/{epoch}", "gaps", "late", "late/tuples", "refused"),
    *("statistics", "ingest"),
]


# The graph


@check
def check_all_accidents_are_found(chain: Chain) -> None:
    expected = stream.run(linear_road_accidents.build()).of("accidents")
    found = alerts(chain)
    assert len(found) == 22
    assert ids(found) == [f"{ALERTS}@1:{number}" for number in range(22)]
    assert [(each["ts"], each["payload"]) for each in found] == [(each.ts, asdict(each.payload)) for each in expected]
    assert {(each["state"], each["origins"], each["kind"]) for each in found} == {("complete", 8, "sink")}
    assert ids(chain.every("/v1/sinks", "vertices", agent=CENTER, limit=7)) == ids(found)[::-1]


@check
def check_accidents_that_are_asked_for(chain: Chain) -> None:
    every = alerts(chain)
    segment = every[0]["payload"]["segment"]
    where = ids(chain.get("/v1/sinks", where=[f"segment={segment}", "cars>=2"], order="oldest")["vertices"])
    assert where == [each["id"] for each in every if each["payload"]["segment"] == segment]
    times = {"from": every[3]["ts"], "to": every[9]["ts"]}
    found = chain.client.get("/v1/sinks", params={"stream": ALERTS, **times}).json()["vertices"]
    assert sorted(ids(found)) == sorted(each["id"] for each in every if times["from"] <= each["ts"] <= times["to"])
    assert chain.get("/v1/sinks", state="open")["vertices"] == []
    table = chain.client.get("/v1/sinks", params={"stream": ALERTS, "format": "csv", "order": "oldest"})
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [row["id"] for row in rows] == ids(every)
    assert [int(row["payload.segment"]) for row in rows] == [each["payload"]["segment"] for each in every]


@check
def check_each_comes_from_eight_readings_of_the_other_device(chain: Chain) -> None:
    expected = stream.run(linear_road_accidents.build()).of("accidents")
    planted = {(stop.vid, stop.place) for stop in linear_road.stops()}
    for alert, told in zip(alerts(chain), expected, strict=True):
        readings = causes(chain, alert["id"])
        assert len(readings) == 8
        assert {(each["agent"], each["stream"], each["kind"]) for each in readings} == {(ROADSIDE, "reports", "source")}
        assert sorted(each["ts"] for each in readings) == sorted(origin.ts for origin in told.origins)
        said = [linear_road.Report(**each["payload"]) for each in readings]
        assert planted.issuperset((each.vid, linear_road.place_of_report(each)) for each in said)
        assert list(Counter(each.vid for each in said).values()) == [4, 4]


@check
def check_backward_and_forward_are_each_other_backwards(chain: Chain) -> None:
    touched: dict[str, set[str]] = {}
    for alert in ids(alerts(chain)):
        for reading in ids(causes(chain, alert)):
            touched.setdefault(reading, set()).add(alert)
    assert len(touched) == 68
    assert max(map(len, touched.values())) == 4
    for reading, results in touched.items():
        found = chain.get(f"/v1/vertices/{reading}/forward")
        assert set(ids(found["vertices"][1:])) == results
        assert {(each["origin"], each["derived"]) for each in found["edges"]} == {(reading, each) for each in results}
        assert found["may_touch_more"] is False, "both devices have ended"


@check
def check_one_vertex_of_each_kind(chain: Chain) -> None:
    alert = chain.get(f"/v1/vertices/{ALERTS}@1:0")
    assert alert == alerts(chain)[0]
    reading = chain.get(f"/v1/vertices/{causes(chain, alert['id'])[0]['id']}")
    assert (reading["kind"], reading["state"]) == ("source", "expired")
    assert reading["payload"]["speed"] == 0 and reading["since"]["written_ms"] > 0
    sent = chain.get(f"/v1/vertices/{ROADSIDE}/stopped-cars@1:0")
    assert (sent["kind"], sent["payload"]["reports"]) == ("intermediate", 4)
    task = chain.get("/v1/vertices/task:pi-1@1:5")
    assert (task["name"], task["status"], task["error"]) == ("check", "failed", "ValueError: accuracy is 0.41")
    data = chain.get("/v1/vertices/data:pi-1@1:training/model-2")
    assert data["attributes"] == {"epoch": 2, "loss": 0.8 / 3}
    run = chain.get("/v1/vertices/workflow:pi-1@1:0")
    assert (run["status"], run["attributes"]) == ("failed", {"model": "m/1", "rate": 0.1})
    assert chain.get("/v1/vertices/nobody/x@1:1", 404)["errors"][0]["field"] == "id"


@check
def check_lineage_shows_what_crossed_between_the_devices(chain: Chain) -> None:
    alert = f"{ALERTS}@1:0"
    one = chain.get(f"/v1/vertices/{alert}/lineage")
    assert set(one["levels"].values()) == {0, 1}
    cars = [each for each in one["vertices"] if each["id"] != alert]
    assert [each["kind"] for each in cars] == ["intermediate"] * 2
    assert all(each["id"].startswith(f"{ROADSIDE}/stopped-cars@1:") for each in cars)
    two = chain.get(f"/v1/vertices/{alert}/lineage", levels=2)
    assert {each for each, level in two["levels"].items() if level == 2} == set(ids(causes(chain, alert)))
    assert len(two["edges"]) == 10
    down = chain.get(f"/v1/vertices/{cars[0]['id']}/lineage", direction="both")
    assert alert in down["levels"] and len(down["levels"]) > 5
    prov = chain.get(f"/v1/vertices/{alert}/lineage", levels=2, format="prov-json")
    assert (len(prov["entity"]), len(prov["wasDerivedFrom"])) == (11, 10)


@check
def check_paths_lead_over_the_other_device(chain: Chain) -> None:
    alert = f"{ALERTS}@1:0"
    reading = causes(chain, alert)[0]["id"]
    found = chain.get("/v1/paths", from_=reading, to=alert)
    (path,) = found["paths"]
    assert (path[0], path[2]) == (reading, alert)
    assert path[1].startswith(f"{ROADSIDE}/stopped-cars@1:")
    every = chain.every("/v1/paths", "paths", from_=f"~{ROADSIDE}/reports", to=f"~{CENTER}/.*", via=".*cars", limit=50)
    assert len(every) == 22 * 8
    assert chain.get("/v1/paths", from_=f"~{LIVE}/.*", to=alert)["paths"] == []


@check
def check_impact_of_readings(chain: Chain) -> None:
    readings = sorted({each for alert in ids(alerts(chain)) for each in ids(causes(chain, alert))})
    found = chain.get("/v1/impact", source=readings[:3], edges=True)
    assert (found["sources"], found["alive"], found["expired"], found["still_reached"]) == (3, 0, 3, [])
    assert found["results"] == len({each["derived"] for each in found["edges"]})
    posted = chain.client.post("/v1/impact", json={"sources": readings}, params={"limit": 1_000}).json()
    assert (posted["sources"], posted["results"], len(posted["vertices"])) == (68, 22, 22)
    of_stream = chain.get("/v1/impact", stream=f"{ROADSIDE}/reports", limit=1_000)
    assert ids(of_stream["vertices"]) == ids(posted["vertices"])
    assert of_stream["still_reached"] == [], "nothing more will come of it"


@check
def check_readings_that_can_still_touch_more(chain: Chain) -> None:
    due = chain.due()
    found = chain.every("/v1/sinks", "vertices", stream=f"{LIVE}/stopped", order="oldest", limit=10)
    assert [(each["ts"], each["payload"]) for each in found] == [(each.ts, asdict(each.payload)) for each in due]
    told = chain.get("/v1/impact", stream=f"{LIVE}/reports")
    assert told["alive"] > 0 and told["alive"] + told["expired"] == told["sources"]
    (reach,) = told["still_reached"]
    oldest_ms = chain.pause_ms - 120_000
    assert reach == {"source": f"{LIVE}/reports", "sink": f"{LIVE}/stopped", "from_ms": oldest_ms}
    states: Counter[bool] = Counter()
    for alert in ids(found):
        for reading in causes(chain, alert):
            assert (reading["state"] == "alive") == (reading["ts"] >= oldest_ms), reading
            states[reading["state"] == "alive"] += 1
    assert states[True] and states[False]
    one = next(each for each in causes(chain, found[-1]["id"]) if each["state"] == "alive")
    assert chain.get(f"/v1/vertices/{one['id']}/forward")["may_touch_more"] is True


# Captured runs


@check
def check_tasks_of_the_training(chain: Chain) -> None:
    tasks = chain.every("/v1/tasks", "items", workflow="workflow:pi-1@1:0", limit=2)
    assert [(each["name"], each["transformation"], each["status"]) for each in tasks] == [
        ("load", "load", "finished"),
        *((f"epoch-{epoch}", "train", "finished") for epoch in range(3)),
        ("check", "check", "failed"),
    ]
    assert all(each["begun_ms"] <= each["ended_ms"] for each in tasks)
    best = chain.get("/v1/tasks", order_by="generated.loss", limit=1, select="used.rate,used.batch,generated.loss")
    assert [each["values"] for each in best["items"]] == [
        {"used.rate": 0.1, "used.batch": 16, "generated.loss": 0.8 / 3}
    ]
    latest = chain.get(
        "/v1/tasks",
        transformation="train",
        group_by="used.rate",
        latest="generated.epoch",
        select="elapsed_ms,generated.loss",
    )
    assert ids(latest["items"]) == ["task:pi-1@1:4"]
    assert ids(chain.get("/v1/tasks", status="failed", where="error~accuracy")["items"]) == ["task:pi-1@1:5"]
    running = chain.get("/v1/tasks", status="running")["items"]
    assert ids(running) == ["task:pi-2@1:1"], "it was killed, and nobody has said that it ended"


@check
def check_data_and_where_it_came_from(chain: Chain) -> None:
    made = chain.get("/v1/data", role="generated", workflow="workflow:pi-1@1:0")["items"]
    assert [each["name"] for each in made] == ["clean/1", "model-0", "model-1", "model-2"]
    assert made[0]["id"] == "data:pi-1@1:training/clean%2F1"
    assert made[0]["derivations"] == ["raw"]
    one = chain.client.get(f"/v1/vertices/{quote(made[0]['id'])}").json()
    assert one["attributes"] == {"rows": 480}, "what was said of it where it was made"
    before = chain.get("/v1/vertices/data:pi-1@1:training/model-0/backward")
    assert set(ids(before["vertices"])) == {
        *("data:pi-1@1:training/model-0", "task:pi-1@1:2", "data:pi-1@1:training/clean%2F1", "task:pi-1@1:1"),
        "data:training/raw",
    }
    behind = chain.get("/v1/vertices/data:training/raw/forward")
    assert {each["id"] for each in behind["vertices"] if each["kind"] == "task"} == {
        f"task:pi-1@1:{key}" for key in range(1, 6)
    }
    ways = chain.get("/v1/paths", from_="data:training/raw", to="~pi-1/check")
    assert ways["paths"] and {way[-1] for way in ways["paths"]} == {"task:pi-1@1:5"}
    depends = chain.get("/v1/vertices/task:pi-1@1:5/lineage")["edges"]
    assert ("task:pi-1@1:4", "wasInformedBy") in {(each["origin"], each["relation"]) for each in depends}


@check
def check_runs_of_workflows(chain: Chain) -> None:
    runs = chain.every("/v1/workflows", "items", limit=1)
    assert sorted((each["id"], each["status"]) for each in runs) == [
        ("workflow:pi-1@1:0", "failed"),
        ("workflow:pi-2@1:0", "running"),
        ("workflow:pi-2@2:0", "finished"),
    ]
    compared = chain.get("/v1/workflows/compare", run=["training", "night"])
    assert [each["workflow"]["name"] for each in compared["runs"]] == ["training", "night", "night"]
    (train,) = [each for each in compared["runs"][0]["transformations"] if each["name"] == "train"]
    assert train["finished"] == 3
    assert next(each for each in train["measures"] if each["path"] == "loss")["least"] == 0.8 / 3


# The fleet


@check
def check_agents_and_whether_they_are_there(chain: Chain) -> None:
    def states() -> dict[str, str]:
        return {each["name"]: each["presence"]["state"] for each in chain.every("/v1/agents", "items", limit=2)}

    expected = {CENTER: "offline", ROADSIDE: "offline", "pi-1": "offline", "pi-2": "asleep", LIVE: "online"}
    wait_until(lambda: states() == expected, "the gateway has told of all", every_s=0.1)
    (live,) = chain.get("/v1/agents", agent=LIVE)["items"]
    assert (live["state"], live["epoch"]) == ("running", 1)
    assert chain.get("/v1/agents", stream="accidents")["items"][0]["name"] == CENTER
    assert chain.get("/v1/agents/accidents-center")["state"] == "ended"
    killed, again = chain.get("/v1/agents/pi-2")["starts"]
    assert [(each["epoch"], each["state"]) for each in (killed, again)] == [(1, "running"), (2, "ended")]


@check
def check_streams_and_what_they_have_promised(chain: Chain) -> None:
    found = {f"{each['agent']}/{each['stream']}": each for each in chain.every("/v1/streams", "items", limit=2)}
    assert set(found) == {
        *(ALERTS, f"{ROADSIDE}/reports", f"{ROADSIDE}/stopped-cars", f"{LIVE}/reports", f"{LIVE}/stopped"),
    }
    assert found[ALERTS]["has_ended"] is True
    assert (found[f"{LIVE}/stopped"]["has_ended"], found[f"{LIVE}/stopped"]["watermark"]) == (False, chain.pause_ms)
    assert len(chain.get("/v1/streams", agent=LIVE)["items"]) == 2


@check
def check_plans_as_data_and_as_pictures(chain: Chain) -> None:
    plans = {each["agent"]: each for each in chain.every("/v1/plans", "items", limit=1)}
    assert set(plans) == {CENTER, ROADSIDE, LIVE}
    names = [each["name"] for each in plans[CENTER]["nodes"]]
    assert names == ["accidents-roadside/stopped-cars", "per place", "several cars", "accidents"]
    assert chain.get(f"/v1/plans/{CENTER}/1") == plans[CENTER]
    drawn = chain.client.get(f"/v1/plans/{CENTER}/1", params={"format": "svg"})
    assert drawn.headers["content-type"] == "image/svg+xml"
    text = "".join(ElementTree.fromstring(drawn.text).itertext())
    assert all(name in text for name in names)
    assert chain.client.get(f"/v1/plans/{CENTER}/1", params={"format": "dot"}).text.startswith("digraph")
    assert chain.get("/v1/plans/pi-1/1", 404)["errors"][0]["field"] == "epoch"


@check
def check_what_went_wrong(chain: Chain) -> None:
    (gap,) = chain.get("/v1/gaps")["items"]
    assert (gap["agent"], gap["epoch"], gap["detail"]["next_event"]) == ("pi-2", 1, 2)
    assert gap["reason"].startswith("crash")
    assert chain.get("/v1/gaps", agent="pi-1")["items"] == []
    (late,) = chain.get("/v1/late/tuples")["items"]
    assert (late["agent"], late["stream"], late["ts"]) == (LIVE, "reports", LATE_MS)
    assert late["watermark"] > LATE_MS and "vid" in late["payload"]
    assert chain.get("/v1/late")["items"] == []
    assert chain.get("/v1/refused")["items"] == []


@check
def check_figures_over_time(chain: Chain) -> None:
    found = chain.get("/v1/statistics", slots=7)
    series = {each["stream"]: each for each in found["streams"]}
    assert set(series) == {ALERTS, f"{LIVE}/stopped"}
    assert (sum(series[ALERTS]["results"]), sum(series[ALERTS]["origins"])) == (22, 22 * 8)
    assert sum(series[f"{LIVE}/stopped"]["results"]) == len(chain.due())
    expected = Counter((each["ts"] - found["from_ms"]) // found["width_ms"] for each in alerts(chain))
    assert series[ALERTS]["results"] == [expected[slot] for slot in range(7)]
    times = [each["begun_ms"] for each in chain.get("/v1/tasks")["items"]]
    tasks = chain.get("/v1/statistics", slots=3, from_=min(times), to=max(times))
    assert (sum(tasks["tasks_begun"]), sum(tasks["tasks_failed"])) == (7, 1)
    assert found["totals"]["sinks"] == 22 + len(chain.due())


# HTTP


@check
def check_answers_that_are_known(chain: Chain) -> None:
    def is_known() -> bool:
        tag = chain.client.get("/v1/sinks").headers["etag"]
        again = chain.client.get("/v1/sinks", headers={"if-none-match": tag})
        assert (again.status_code == 304) == (again.headers["etag"] == tag)
        return again.status_code == 304

    # stops-live is at work: what it says of itself every 10 s may come between the two questions.
    wait_until(is_known, "nothing has changed between two questions", 10.0)


@check
def check_bad_requests_over_http(chain: Chain) -> None:
    assert chain.get("/v1/nothing", 404)["title"] == "Not Found"
    assert chain.get("/v1/sinks", 422, limit=0)["errors"][0]["field"] == "limit"
    assert chain.get("/v1/sinks", 400, cursor="x")["errors"][0]["field"] == "cursor"
    assert chain.client.put("/v1/sinks").status_code == 405
    assert chain.client.get("/v1/sinks", params={"agent": "x" * 60_000}).status_code in (400, 414, 422, 431)
    body = b" " * (9 << 20)
    response = chain.client.post("/v1/impact", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert chain.get("/healthz") == {"status": "ok"}


@check
def check_the_guide_asks_what_can_be_answered(chain: Chain) -> None:
    asked = re.findall(r"^curl .*'http://127\.0\.0\.1:8080(/[^']+)'$", GUIDE.read_text(), re.MULTILINE)
    assert len(asked) >= len(ENDPOINTS)
    for path in asked:
        is_federated = any(name in path for name in ("federated-learning", "fl-server", "device-"))
        if "graph/stream" not in path and not is_federated:  # tests/examples asks for those
            status = chain.client.get(path).status_code
            assert status == (422 if "limit=0" in path else 200), path


# As it happens


def events(chain: Chain, last: str | None = None, **asked: Any) -> Generator[tuple[str, str, Json], None, None]:
    """Ids, kinds and data of events, for as long as the caller takes them."""
    headers = {} if last is None else {"last-event-id": last}
    with httpx.stream("GET", f"{chain.api.url}/v1/graph/stream", params=asked, headers=headers, timeout=60.0) as got:
        assert got.status_code == 200
        assert got.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in got.iter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
                fields = {}


@check
def check_all_of_the_graph_as_events(chain: Chain) -> None:
    totals = chain.get("/v1/statistics")["totals"]
    names = {"sink": "sinks", "source": "sources", "edge": "edges", "sink-label": "sink_labels"}
    names["source-label"] = "source_labels"
    count = sum(totals[name] for name in names.values())
    told: list[tuple[str, str, Json]] = []
    for event in events(chain, since="start"):
        told.append(event)
        if len(told) > count:
            break
    first, *rest = told
    assert first[1] == "place"
    assert Counter(kind for _, kind, _ in rest) == {kind: totals[name] for kind, name in names.items()}
    known: set[str] = set()
    for _, kind, said in rest:
        if kind in ("sink", "source"):
            known.add(said["id"])
        elif kind == "edge":
            assert {said["origin"], said["derived"]} <= known, "an edge comes behind its ends"
    middle = rest[len(rest) // 2]
    again = events(chain, middle[0])
    assert next(again)[1] == "place"
    assert next(again) == rest[len(rest) // 2 + 1], "it goes on behind the last event that was seen"
    again.close()
    some = events(chain, since="start", kind="sink", stream=ALERTS)
    found = [next(some) for _ in range(23)][1:]
    some.close()
    assert sorted(said["id"] for _, _, said in found) == sorted(ids(alerts(chain)))


def document(batch: int, *records: Json) -> Json:
    made: Json = {"agent": "flink-1", "run": "monday", "epoch": 1, "batch": batch, "records": list(records)}
    plan = {"sources": ["reports"], "sinks": {"alerts": {"from": ["reports"], "window_ms": 60_000}}}
    return made if batch else {**made, "plan": plan}


def delivery(seq: int, ts: int, *origins: tuple[int, int]) -> Json:
    came = [{"stream": "reports", "seq": number, "ts": at} for number, at in origins]
    return {"delivery": {"stream": "alerts", "seq": seq, "ts": ts, "payload": {"of": len(came)}, "origins": came}}


@check
def check_what_others_ingest_is_in_the_graph_soon(chain: Chain) -> None:
    live = events(chain, since="end", agent="flink-1")
    assert next(live)[1] == "place"
    readings = [
        {"source": {"stream": "reports", "seq": seq, "ts": 1_000 * seq, "payload": {"speed": seq}}} for seq in range(2)
    ]
    first = document(
        0, *readings, delivery(0, 5_000, (0, 0), (1, 1_000)), {"progress": {"stream": "alerts", "watermark": 5_000}}
    )
    for device in (CENTER, LIVE):
        response = chain.client.post("/v1/ingest", json={**first, "agent": device})
        assert (response.status_code, response.json()["errors"][0]["field"]) == (409, "agent"), response.text
    response = chain.client.post("/v1/ingest", json=first)
    assert (response.status_code, response.json()) == (200, {"next_batch": 1, "duplicate_agent": False})
    assert chain.client.post("/v1/ingest", json=first).json()["next_batch"] == 1, "it is taken once"
    told = [next(live) for _ in range(5)]
    assert Counter(kind for _, kind, _ in told) == {"sink": 1, "source": 2, "edge": 2}
    live.close()
    found = chain.get("/v1/vertices/flink-1/alerts@1:0/backward", payload=True)
    assert [each["payload"] for each in found["vertices"]] == [{"of": 2}, {"speed": 0}, {"speed": 1}]
    assert {each["state"] for each in found["vertices"][1:]} == {"alive"}
    (agent,) = chain.get("/v1/agents", agent="flink-1")["items"]
    assert (agent["presence"]["state"], agent["state"]) == ("unknown", "running")
    # The window is over, and then somebody says that it was not.
    later = document(1, {"progress": {"stream": "alerts", "watermark": 100_000}})
    body = msgspec.msgpack.encode(later)
    assert chain.client.post("/v1/ingest", content=body, headers={"content-type": "application/msgpack"}).is_success
    _wait_for(chain, "flink-1/reports@1:0", "expired")
    assert chain.client.post("/v1/ingest", json=document(2, delivery(1, 100_000, (0, 0)))).is_success
    (late,) = wait_until(lambda: chain.get("/v1/late")["items"], "a late edge", LONGEST_S, every_s=0.1)
    assert (late["sink"], late["origin"]) == ("flink-1/alerts@1:1", "flink-1/reports@1:0")
    assert late["reason"] == "after_label"
    _, forward = chain.get("/v1/vertices/flink-1/reports@1:0/forward")["edges"]
    assert (forward["derived"], forward["flags"]) == ("flink-1/alerts@1:1", ["late"])


def _wait_for(chain: Chain, vertex: str, state: str) -> None:
    wait_until(lambda: chain.get(f"/v1/vertices/{vertex}")["state"] == state, state, LONGEST_S, every_s=0.1)


@check
def check_what_cannot_be_ingested(chain: Chain) -> None:
    def refused(status: int, field: str, body: object) -> None:
        response = chain.client.post("/v1/ingest", json=body)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["errors"][0]["field"] == field

    refused(409, "batch", document(77, delivery(77, 200_000)))
    refused(422, "records", document(3))
    refused(422, "records[0].delivery.seq", document(3, delivery(-1, 0)))
    refused(422, "agent", {**document(3), "agent": "No Name"})
    refused(422, "sources", {**document(3), "sources": []})
    response = chain.client.post("/v1/ingest", content=b"{", headers={"content-type": "application/json"})
    assert response.status_code == 422
    response = chain.client.post("/v1/ingest", content=b"x" * (5 << 20), headers={"content-type": "application/json"})
    assert response.status_code == 413
    response = chain.client.post("/v1/ingest", content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415


@check
def check_ingest_keeps_to_its_description(chain: Chain) -> None:
    told = chain.get("/openapi.json")
    ingest = told["paths"]["/v1/ingest"]
    ingest["post"]["requestBody"]["content"].pop("application/msgpack")  # schemathesis cannot make any
    described = schemathesis.openapi.from_dict({**told, "paths": {"/v1/ingest": ingest}})
    described.config.update(base_url=chain.api.url)
    (found,) = described.get_all_operations()
    assert isinstance(found, Ok)
    operation = found.ok()
    config = described.config.generation_for(operation=operation)
    statuses: Counter[int] = Counter()
    modes = list(GenerationMode)
    for case in described.iter_coverage_cases(operation, generation_modes=modes, generation_config=config):
        response = case.call()
        statuses[response.status_code] += 1
        case.validate_response(response, excluded_checks=[positive_data_acceptance])
    assert statuses[200] and statuses[422]


def check_it_stops_and_cuts_nobody_off(chain: Chain) -> None:
    """The last one: a stream of events ends when the server does."""
    live = events(chain, since="end")
    assert next(live)[1] == "place"
    assert chain.api.process is not None
    chain.api.process.terminate()
    assert [kind for _, kind, _ in live if kind not in ("place", "sink", "source", "edge")] == []
    assert chain.api.process.wait(chain.api.stop_s) == 0

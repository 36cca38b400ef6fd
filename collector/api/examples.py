"""Examples for the description of the API: for every operation an answer, and questions that have one.

They are of the accident query of the demo (`threadline demo`), of the federated learning in docs/federated.md and, of
what went wrong, as it would be there.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from collector.api.problems import MEDIA_TYPE

Example = dict[str, Any]

_WRITTEN_MS = 1_794_921_135_931
_RUN = "run-3f9c51"
_MODEL = f"{_RUN}-quadratic-0.3-10-round-5"


def _tuple(kind: str, agent: str, stream: str, seq: int, ts: int, **more: Any) -> Example:
    return {
        "id": f"{agent}/{stream}@1:{seq}",
        "kind": kind,
        "agent": agent,
        "epoch": 1,
        "stream": stream,
        "seq": seq,
        "ts": ts,
        "state": None,
        "since": None,
        "origins": None,
        "payload": None,
        **more,
    }


def _edge(origin: Example, derived: Example) -> Example:
    return {"origin": origin["id"], "derived": derived["id"], "relation": "wasDerivedFrom", "flags": []}


def _graph(*vertices: Example, edges: list[Example] | None = None, **more: Any) -> Example:
    return {"vertices": list(vertices), "edges": edges or [], "next": None, "truncated": False, **more}


_SINCE = {"stamp": 1_440_000, "written_ms": _WRITTEN_MS}
_PLACE = {"xway": 1, "lane": 1, "direction": 0, "segment": 68, "position": 361_153}
_ACCIDENT = _tuple("sink", "accidents-center", "accidents", 0, 420_000, state="complete", since=_SINCE, origins=8)
_NEXT_ACCIDENT = _tuple("sink", "accidents-center", "accidents", 1, 450_000, state="complete", since=_SINCE, origins=8)
_STOPPED = _tuple("intermediate", "accidents-roadside", "stopped-cars", 11, 390_000)
_READING = _tuple("source", "accidents-roadside", "reports", 21, 279_000, state="expired", since=_SINCE)
_LAST_READING = _tuple("source", "accidents-roadside", "reports", 30, 377_000, state="expired", since=_SINCE)
_SAID_ACCIDENT = {**_ACCIDENT, "payload": {**_PLACE, "cars": 2}}
_SAID_READING = {**_READING, "payload": {"type": 0, "vid": 159, "speed": 0, **_PLACE}}
_STOP = _tuple("sink", "stops-live", "stopped", 15, 420_000, state="complete", since=_SINCE, origins=4)


def _impact(*vertices: Example, sources: int, alive: int, results: int, **more: Any) -> Example:
    figures = {"sources": sources, "alive": alive, "expired": sources - alive, "results": results}
    return _graph(*vertices, **{"unknown": [], "unknown_count": 0, **figures, "still_reached": [], **more})


_TASK = {
    "id": "task:fl-server@1:49",
    "kind": "task",
    "agent": "fl-server",
    "epoch": 1,
    "name": f"{_MODEL}-evaluation",
    "transformation": "evaluate",
    "workflow": "workflow:fl-server@1:0",
    "workflow_name": "federated-learning",
    "begun_ms": 1_794_921_359_502,
    "ended_ms": 1_794_921_359_505,
    "elapsed_ms": 3,
    "status": "finished",
    "error": None,
    "values": {"used.rate": 0.3, "used.batch": 10, "generated.accuracy": 0.9065},
}
_DATA = {
    "id": f"data:fl-server@1:federated-learning/{_MODEL}-score",
    "name": f"{_MODEL}-score",
    "workflow_name": "federated-learning",
    "agent": "fl-server",
    "epoch": 1,
    "role": "generated",
    "task": _TASK["id"],
    "task_name": _TASK["name"],
    "transformation": "evaluate",
    "begun_ms": _TASK["begun_ms"],
    "ended_ms": _TASK["ended_ms"],
    "derivations": [_MODEL],
    "attributes": {"loss": 0.2209, "accuracy": 0.9065},
    "values": {"accuracy": 0.9065},
}


def _workflow(agent: str, begun_ms: int) -> Example:
    ended_ms = 1_794_921_359_648
    return {
        "id": f"workflow:{agent}@1:0",
        "kind": "workflow",
        "agent": agent,
        "epoch": 1,
        "name": "federated-learning",
        "begun_ms": begun_ms,
        "ended_ms": ended_ms,
        "elapsed_ms": ended_ms - begun_ms,
        "status": "finished",
        "error": None,
        "attributes": {"run": _RUN, "seed": 1, "local_epochs": 2},
        "values": {},
    }


def _compared(agent: str, begun_ms: int, total_ms: int, last: float, least: float, greatest: float) -> Example:
    trained = {
        "name": "train",
        "running": 0,
        "finished": 80,
        "failed": 0,
        "total_ms": total_ms,
        "mean_ms": total_ms / 80,
        "least_ms": 0,
        "greatest_ms": 13,
        "measures": [{"path": "loss", "values": 80, "last": last, "least": least, "greatest": greatest}],
    }
    return {"workflow": _workflow(agent, begun_ms), "transformations": [trained]}


def _parameter(of: str, transformation: str | None, path: str, *values: Any) -> Example:
    told = [{"state": "value", "value": each} for each in values]
    return {"of": of, "transformation": transformation, "path": path, "values": told}


_AGENT = {
    "name": "stops-live",
    "presence": {"state": "online", "since_ms": 1_794_921_114_519, "reason": None},
    "epoch": 1,
    "state": "running",
    "last_seen_ms": _WRITTEN_MS,
    "clock_ahead_ms": -15_441,
    "spool_batches": 0,
    "spool_bytes": 43_043,
    "unacknowledged": 0,
    "dropped": 0,
    "replaced": 0,
    "link": {
        "state": "connected",
        "round_trip_s": 0.006,
        "sent": 6,
        "resent": 0,
        "duplicates": 0,
        "reconnects": 0,
        "congestion": 0,
    },
    "operators": {"reports": [3_977, 3_976, 1, 0], "standing": [3_976, 212, 0, 0]},
}
_STREAM = {
    "agent": "stops-live",
    "epoch": 1,
    "stream": "stopped",
    "watermark": 588_000,
    "has_ended": False,
    "hold": None,
    "last_seen_ms": _WRITTEN_MS,
}
_START = {
    "epoch": 1,
    "nonce": "5ef1fd116ae5fb7a",
    "state": "running",
    "last_seen_ms": _WRITTEN_MS,
    "batches": 6,
    "end_ts": None,
}
_WINDOW = {"kind": "time", "size_ms": 30_000, "advance_ms": 30_000, "offset_ms": 0}
_PLAN = {
    "agent": "accidents-center",
    "epoch": 1,
    "seen_ms": _WRITTEN_MS,
    "name": "accidents-center",
    "provenance": "segments",
    "nodes": [
        {
            "name": "accidents-roadside/stopped-cars",
            "operator": "receive",
            "parameters": {"sender": "accidents-roadside", "stream": "stopped-cars"},
        },
        {
            "name": "per place",
            "operator": "aggregate",
            "inputs": ["accidents-roadside/stopped-cars"],
            "parameters": {"aggregators": ["Distinct(field:vid)"], "window": _WINDOW},
        },
        {"name": "accidents", "operator": "sink", "inputs": ["per place"]},
    ],
    "trouble": None,
}


def _page(*rows: Example) -> Example:
    return {"items": list(rows), "next": None}


ANSWERS: dict[str, Any] = {
    "GET /v1/vertices/{id}": _SAID_ACCIDENT,
    "GET /v1/vertices/{id}/backward": _graph(
        _SAID_ACCIDENT,
        _SAID_READING,
        edges=[_edge(_READING, _ACCIDENT)],
        next="5hR9DFsiYmFja3dhcmQiLDY4NzE5NDc2NzU3XQ",
        lost=[],
    ),
    "GET /v1/vertices/{id}/forward": _graph(
        _LAST_READING,
        _ACCIDENT,
        _NEXT_ACCIDENT,
        edges=[_edge(_LAST_READING, _ACCIDENT), _edge(_LAST_READING, _NEXT_ACCIDENT)],
        may_touch_more=False,
    ),
    "GET /v1/vertices/{id}/lineage": _graph(
        _ACCIDENT,
        _STOPPED,
        _READING,
        edges=[_edge(_STOPPED, _ACCIDENT), _edge(_READING, _STOPPED)],
        truncated=True,
        levels={_ACCIDENT["id"]: 0, _STOPPED["id"]: 1, _READING["id"]: 2},
        unresolved=[],
    ),
    "GET /v1/sinks": _graph(_SAID_ACCIDENT, next="x90eglsic2lua3MiLDQyMDAwMCwyMDYxNTg0MzAyMDhd", examined=1),
    "GET /v1/paths": _graph(
        _READING,
        _STOPPED,
        _ACCIDENT,
        edges=[_edge(_READING, _STOPPED), _edge(_STOPPED, _ACCIDENT)],
        paths=[[_READING["id"], _STOPPED["id"], _ACCIDENT["id"]]],
    ),
    "GET /v1/impact": _impact(
        _STOP,
        next="vdY-TlsiaW1wYWN0IiwxMzc0Mzg5NTM0ODdd",
        sources=38,
        alive=25,
        results=25,
        still_reached=[{"source": "stops-live/reports", "sink": "stops-live/stopped", "from_ms": 468_000}],
    ),
    "POST /v1/impact": _impact(_ACCIDENT, _NEXT_ACCIDENT, sources=1, alive=0, results=2),
    "GET /v1/tasks": {**_page(_TASK), "next": "CsDuPVsidGFza3MiLFswLDAuODk5NV0sNCwzNV0"},
    "GET /v1/data": _page(_DATA),
    "GET /v1/workflows": _page(_workflow("fl-server", 1_794_921_358_263)),
    "GET /v1/workflows/compare": {
        "runs": [
            _compared("device-1", 1_794_921_358_709, 126, 0.258, 0.209, 0.685),
            _compared("device-2", 1_794_921_358_698, 224, 0.220, 0.162, 0.680),
        ],
        "differing": [_parameter("used", "train", "readings", 250, 400)],
        "same": [_parameter("workflow", None, "local_epochs", 2, 2)],
        "truncated": False,
    },
    "GET /v1/agents": _page(_AGENT),
    "GET /v1/agents/{name}": {**_AGENT, "starts": [_START], "streams": [_STREAM]},
    "GET /v1/streams": _page(_STREAM),
    "GET /v1/plans": _page(_PLAN),
    "GET /v1/plans/{agent}/{epoch}": _PLAN,
    "GET /v1/gaps": _page(
        {
            "agent": "pi-1",
            "epoch": 1,
            "batch": 0,
            "reason": "crash: what was not on disk yet is lost, and so are open windows",
            "detail": {
                "epoch": 1,
                "batches": None,
                "tuples": [],
                "events": None,
                "progress": [],
                "next_seqs": [],
                "next_event": 202,
            },
            "seen_ms": _WRITTEN_MS,
        }
    ),
    "GET /v1/late": _page(
        {
            "sink": _NEXT_ACCIDENT["id"],
            "origin": _READING["id"],
            "origin_ts": _READING["ts"],
            "reason": "after_label",
            "via": None,
        }
    ),
    "GET /v1/late/tuples": _page(
        {
            "agent": "stops-live",
            "epoch": 1,
            "stream": "reports",
            "ts": 500,
            "watermark": 588_000,
            "payload": _SAID_READING["payload"],
            "seen_ms": _WRITTEN_MS,
        }
    ),
    "GET /v1/refused": _page(
        {
            "agent": "pi-1",
            "nonce": "12153336739c1313",
            "batch": 2,
            "kind": "plan",
            "reason": "MalformedBatch: the section ends in the middle of a value",
            "seen_ms": _WRITTEN_MS,
        }
    ),
    "GET /v1/statistics": {
        "from_ms": 210_000,
        "to_ms": 1_440_000,
        "width_ms": 410_001,
        "starts_ms": [210_000, 620_001, 1_030_002],
        "streams": [
            {
                "stream": "accidents-center/accidents",
                "results": [9, 7, 6],
                "origins": [72, 56, 48],
                "open": [0, 0, 0],
                "incomplete": [0, 0, 0],
            }
        ],
        "truncated": False,
        "tasks_begun": [0, 0, 0],
        "tasks_failed": [0, 0, 0],
        "totals": {"edges": 352, "sinks": 66, "sources": 151, "tasks_begun": 100},
    },
    "POST /v1/ingest": {"next_batch": 1, "duplicate_agent": False},
    "GET /healthz": {"status": "ok"},
    "GET /readyz": {
        "ready": True,
        "checks": [
            {"name": "store", "ready": True, "detail": f"last written at {_WRITTEN_MS} ms"},
            {"name": "mqtt", "ready": True, "detail": "connected"},
        ],
    },
    "GET /metrics": "# HELP threadline_api_requests_total requests\n"
    "# TYPE threadline_api_requests_total counter\n"
    'threadline_api_requests_total{method="GET",route="/v1/sinks",status="200"} 203.0\n',
}
"""What each operation answers, by method and path; a text is no JSON. Events say by themselves what they are."""

NOT_READY = {"ready": False, "checks": [{"name": "store", "ready": False, "detail": "there is no store yet"}]}

_CLOCK = {"from": "2026-11-17T08:00:00Z", "to": "2026-11-17T18:00:00Z"}
_EVENT_TIME = {"from": 400_000, "to": 600_000}
_OF_CENTER = {"agent": "accidents-center", "stream": "accidents-center/accidents"}
_OF_LIVE = {"agent": "stops-live", "stream": "stops-live/reports", **_CLOCK}
_CAPTURED = {
    "agent": "fl-server",
    "epoch": 1,
    **_CLOCK,
    "group_by": "used.rate,used.batch",
    "latest": "generated.epoch",
    "least": "generated.loss",
    "order_by": "-generated.accuracy",
    "select": "used.rate,used.batch,generated.accuracy",
}
_OF_ATTRIBUTES = {"group_by": "agent", "latest": "begun_ms", "least": "elapsed_ms", "order_by": "-begun_ms"}
PARAMETERS: dict[str, Example] = {
    "/v1/vertices/{id}": {"id": _ACCIDENT["id"]},
    "/v1/vertices/{id}/backward": {"id": _ACCIDENT["id"]},
    "/v1/vertices/{id}/forward": {"id": _LAST_READING["id"]},
    "/v1/vertices/{id}/lineage": {"id": _ACCIDENT["id"]},
    "/v1/sinks": {**_OF_CENTER, **_EVENT_TIME, "where": "segment=68"},
    "/v1/paths": {
        "from": _READING["id"],
        "to": "~accidents-center/.*",
        "via": "accidents-roadside/stopped-.*",
        "since": 400_000,
        "until": 600_000,
    },
    "/v1/impact": {"source": _LAST_READING["id"], "stream": "stops-live/reports", "agent": "stops-live", **_EVENT_TIME},
    "/v1/graph/stream": {**_OF_CENTER, "since": "end", "kind": "sink", "last-event-id": "12-1-5f0c27ab"},
    "/v1/tasks": {
        **_CAPTURED,
        "where": "used.model=quadratic",
        "workflow": _TASK["workflow"],
        "workflow_name": "federated-learning",
        "transformation": "evaluate",
        "name": _TASK["name"],
    },
    "/v1/data": {
        **_CAPTURED,
        **_OF_ATTRIBUTES,
        "least": "loss",
        "where": "accuracy>0.9",
        "select": "accuracy",
        "name": _DATA["name"],
        "workflow": _TASK["workflow"],
        "workflow_name": "federated-learning",
        "task": _TASK["id"],
    },
    "/v1/workflows": {
        **_CAPTURED,
        **_OF_ATTRIBUTES,
        "where": f"run={_RUN}",
        "select": "run",
        "name": "federated-learning",
    },
    "/v1/workflows/compare": {"run": "workflow:device-1@1:0"},
    "/v1/agents": _OF_LIVE,
    "/v1/agents/{name}": {"name": "stops-live"},
    "/v1/streams": {**_OF_LIVE, "epoch": 1},
    "/v1/plans": {**_OF_CENTER, **_CLOCK, "epoch": 1},
    "/v1/plans/{agent}/{epoch}": {"agent": "accidents-center", "epoch": 1},
    "/v1/gaps": _OF_LIVE,
    "/v1/late": {**_OF_CENTER, **_EVENT_TIME},
    "/v1/late/tuples": _OF_LIVE,
    "/v1/refused": {"agent": "pi-1", **_CLOCK},
    "/v1/statistics": {**_OF_CENTER, **_EVENT_TIME},
}
"""By path: what a parameter may be; of one that may be repeated, once. Those that have a default, or a few values to
choose from, speak for themselves, and a cursor comes from the page before."""


def _problem(status: int, detail: str, instance: str, field: str | None = None) -> Example:
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
        "errors": [{"field": field, "reason": detail.removeprefix(f"{field}: ")}] if field else [],
    }


PROBLEMS: dict[int, Example] = {
    each["status"]: each
    for each in (
        _problem(
            400,
            "this is no cursor of sinks: take `next` of the page before, with the same filters",
            "/v1/sinks",
            "cursor",
        ),
        _problem(404, "there is no pi-9/out@1:0", "/v1/vertices/pi-9/out@1:0", "id"),
        _problem(409, "batch 7 came too soon: 5 is the next one that is expected", "/v1/ingest", "batch"),
        _problem(
            410,
            "row 12 of the feed was removed before it was read: begin anew with since=start",
            "/v1/graph/stream",
            "Last-Event-ID",
        ),
        _problem(413, "a body has at most 8388608 bytes", "/v1/impact", "body"),
        _problem(415, "content-type is text/plain, and application/json is needed", "/v1/impact", "content-type"),
        _problem(422, "limit: Input should be less than or equal to 1000", "/v1/sinks", "limit"),
        _problem(503, "graph.db is not there yet: start `threadline spark`, or wait for it", "/v1/sinks"),
        _problem(504, "no translator has answered within 10 s: send the same batch again", "/v1/ingest"),
    )
}
"""By status."""


def add_examples(told: dict[str, Any]) -> None:
    """Put all of them into a description."""
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                example = PARAMETERS.get(path, {}).get(parameter["name"])
                if example is not None:
                    parameter["schema"].setdefault("examples", [example])
            for status, response in operation["responses"].items():
                if MEDIA_TYPE in response["content"]:
                    response["content"][MEDIA_TYPE]["example"] = PROBLEMS[int(status)]
            answer = ANSWERS.get(f"{method.upper()} {path}")
            if answer is not None:
                kind = "text/plain" if isinstance(answer, str) else "application/json"
                operation["responses"]["200"]["content"][kind]["example"] = answer
    told["paths"]["/readyz"]["get"]["responses"]["503"]["content"]["application/json"]["example"] = NOT_READY

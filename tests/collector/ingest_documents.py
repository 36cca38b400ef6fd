"""Documents for ingest, valid ones and the records that must come of them."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

from collector.ingest import nonce_of
from protocol.ids import StreamId
from protocol.records import END_OF_TIME, Delivery, End, Gap, Lost, Origin, OriginKind, Progress, SourcePayload

PLAN: dict[str, Any] = {
    "sources": ["reports", "weather"],
    "receives": {"cars": {"agent": "car-7", "stream": "stopped"}},
    "sinks": {
        "alerts": {"from": ["reports", "cars"], "window_ms": 60_000},
        "storms": {"from": ["weather"], "window_ms": 0},
    },
    "sends": {"jams": {"from": ["reports"], "window_ms": 1_000, "to": ["center"]}},
}
EXAMPLE: dict[str, Any] = {
    "agent": "flink-1",
    "run": "2026-10-17 08:00",
    "epoch": 1,
    "batch": 0,
    "plan": PLAN,
    "records": [
        {"source": {"stream": "reports", "seq": 0, "ts": 1_000, "payload": {"car": 159, "speed": 0.5}}},
        {
            "delivery": {
                "stream": "alerts",
                "seq": 0,
                "ts": 2_000,
                "payload": {"place": "xway 1"},
                "origins": [
                    {"stream": "reports", "seq": 0, "ts": 1_000},
                    {
                        "agent": "car-7",
                        "nonce": 7,
                        "epoch": 3,
                        "stream": "stopped",
                        "seq": 5,
                        "ts": 900,
                        "remote": True,
                    },
                ],
            }
        },
        {"progress": {"stream": "alerts", "watermark": 2_000, "hold": None}},
        {"gap": {"reason": "a task was lost", "tuples": [{"stream": "jams", "first": 3, "last": 4}]}},
        {"end": {"ts": 9_000}},
    ],
}


def example(**changes: Any) -> dict[str, Any]:
    """The example with other values at the top."""
    return {**copy.deepcopy(EXAMPLE), **changes}


def records_of(document: dict[str, Any]) -> list[Any]:
    """The records that a batch of a valid document holds, by definition: each kind in its order, progress last."""
    agent, epoch = document["agent"], document["epoch"]
    nonce = nonce_of(agent, document["run"])
    found: dict[str, list[Any]] = {"source": [], "delivery": [], "progress": [], "gap": [], "end": []}
    promises: dict[str, Progress] = {}
    for record in document.get("records", []):
        [(kind, of)] = record.items()
        if kind == "end":
            found[kind].append(End(of["ts"]))
        elif kind == "gap":
            start = (of["epoch"], nonce_of(agent, of["run"])) if "run" in of else (epoch, nonce)
            lost = tuple(Lost(each["stream"], each["first"], each["last"]) for each in of["tuples"])
            found[kind].append(Gap(of["reason"], *start, tuples=lost))
        elif kind == "progress":
            ends = {None: END_OF_TIME, "end": END_OF_TIME}
            watermark, hold = (ends.get(of.get(key), of.get(key)) for key in ("watermark", "hold"))
            promises[of["stream"]] = Progress(StreamId(agent, epoch, of["stream"], nonce), watermark, hold)
        else:
            tuple_of = StreamId(agent, epoch, of["stream"], nonce), of["seq"], of["ts"], of.get("payload")
            if kind == "source":
                found[kind].append(SourcePayload(*tuple_of))
            else:
                origins = {(each.stream, each.seq): each for each in (_origin(document, one) for one in of["origins"])}
                found[kind].append(Delivery(*tuple_of, tuple(sorted(origins.values(), key=lambda each: each.ts))))
    found["progress"] = list(promises.values())
    return [record for of_kind in found.values() for record in of_kind]


def _origin(document: dict[str, Any], of: dict[str, Any]) -> Origin:
    agent = of.get("agent", document["agent"])
    run = of.get("run", document["run"])
    nonce = int(of["nonce"]) if "nonce" in of else nonce_of(agent, run)
    stream = StreamId(agent, of.get("epoch", document["epoch"]), of["stream"], nonce)
    return Origin(OriginKind.REMOTE if of.get("remote") else OriginKind.SOURCE, stream, of["seq"], of["ts"])


def seen(records: list[Any]) -> list[Any]:
    """Records with what they say, which two sources may differ in and still be equal."""
    return [(type(each).__name__, getattr(each, "payload", None), each) for each in records]


# Hypothesis

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(str.isprintable)
NUMBERS = st.integers(-(2**70), 2**70)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
_TIMES = st.integers(-(2**62) + 1, 2**62 - 1) | st.integers(-100, 100)
_SEQS = st.integers(0, 2**36 - 1) | st.integers(0, 5)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Valid documents without a plan (batch 1 and later), of all that records may say."""
    times: dict[Any, int] = {}
    told: set[Any] = set()

    def at(*tuple_id: Any) -> dict[str, Any]:
        """The number and time of a tuple, the same time wherever it is named."""
        seq = draw(_SEQS)
        return {"seq": seq, "ts": times.setdefault((*tuple_id, seq), draw(_TIMES))}

    def origin() -> dict[str, Any]:
        stream = draw(st.sampled_from(["reports", "weather", "ünïcode"]))
        match draw(st.sampled_from(["own", "earlier run", "remote", "passed on"])):
            case "own":
                return {"stream": stream, **at("own", stream)}
            case "earlier run":
                return {"stream": stream, "run": "before", "epoch": 0, **at("before", stream)}
            case "remote":
                start = {"agent": "car-7", "nonce": draw(st.sampled_from([2**64 - 1, "12"])), "epoch": 3}
                return {"stream": stream, **start, "remote": True, **at("remote", start["nonce"], stream)}
            case _:
                return {"stream": stream, "agent": "car-8", "run": "x", "epoch": 2, **at("other", stream)}

    records: list[dict[str, Any]] = []
    for kind in draw(st.lists(st.sampled_from(["source", "delivery", "progress", "gap"]), min_size=1, max_size=8)):
        if kind in ("source", "delivery"):
            stream = draw(st.sampled_from(["reports", "weather"] if kind == "source" else ["alerts", "jams"]))
            of = {"stream": stream, **at("own", stream), "payload": draw(JSON_VALUES)}
            if (stream, of["seq"]) in told:
                continue
            told.add((stream, of["seq"]))
            if kind == "delivery":
                named = [origin() for _ in range(draw(st.integers(0, 4)))]
                of["origins"] = list({repr({**each, "ts": None}): each for each in named}.values())
        elif kind == "progress":
            hold = draw(st.none() | _TIMES | st.sampled_from([-(2**63), 2**63 - 1, "end"]))
            of = {"stream": draw(NAMES), "watermark": draw(_TIMES | st.just(2**63 - 1)), "hold": hold}
        else:
            of = {
                "reason": draw(NAMES),
                "tuples": [{"stream": draw(NAMES), "first": 1, "last": draw(st.integers(1, 9))}],
            }
            of |= draw(st.sampled_from([{}, {"run": "before", "epoch": 0}]))
        records.append({kind: of})
    watermarks: dict[str, int] = {}
    for of in [record["progress"] for record in records if "progress" in record]:
        of["watermark"] = watermarks[of["stream"]] = max(of["watermark"], watermarks.get(of["stream"], -(2**63)))
    if draw(st.booleans()) or not records:
        records.append({"end": {"ts": draw(_TIMES)}})
    run, epoch = draw(NAMES.filter(lambda name: name != "before")), draw(st.integers(1, 2**53 - 1))
    return {
        "agent": "flink-1",
        "run": run,
        "epoch": epoch,
        "batch": draw(st.integers(1, 2**53 - 1)),
        "records": records,
    }

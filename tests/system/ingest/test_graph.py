"""From documents of two other systems to the live graph: where results came from, and what can still contribute.

    roadside (job 1): reports -> 120 s -> stopped --> center (job 2): + weather -> 60 s -> accidents

Job 1 is started again in between, and goes on with readings of its first run that it had kept.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collector.ingest import Accepted, ingest, nonce_of, read_json
from collector.log import LogReader
from collector.store import open_store
from collector.store.reader import StoreReader
from protocol.chunks import SEQ_BITS
from protocol.row import Row
from tests.support.pipeline import CheckedPipeline
from tests.support.told_log import Log
from tests.support.whole_graph import every_late, every_sink, every_source
from tests.system.graph.city import differences
from tests.system.ingest.site import Site, run
from threadline.lab import SparkService

ROADSIDE = {
    "sources": ["reports"],
    "sends": {"stopped": {"from": ["reports"], "window_ms": 120_000, "to": ["center"]}},
}
CENTER = {
    "sources": ["weather"],
    "receives": {"cars": {"agent": "roadside", "stream": "stopped"}},
    "sinks": {"accidents": {"from": ["cars", "weather"], "window_ms": 60_000}},
}


def batch(agent: str, start: str, number: int, *records: dict[str, Any], plan: Any = None) -> dict[str, Any]:
    epoch = {"monday": 1, "tuesday": 2}[start]
    made = {"agent": agent, "run": start, "epoch": epoch, "batch": number, "records": list(records)}
    return {**made, "plan": plan} if number == 0 else made


def source(stream: str, seq: int, ts: int) -> dict[str, Any]:
    return {"source": {"stream": stream, "seq": seq, "ts": ts, "payload": {"at": ts}}}


def delivery(stream: str, seq: int, ts: int, *origins: dict[str, Any]) -> dict[str, Any]:
    return {
        "delivery": {"stream": stream, "seq": seq, "ts": ts, "payload": {"of": len(origins)}, "origins": [*origins]}
    }


def progress(stream: str, watermark: int | str) -> dict[str, Any]:
    return {"progress": {"stream": stream, "watermark": watermark}}


def own(stream: str, seq: int, ts: int, **start: Any) -> dict[str, Any]:
    return {"stream": stream, "seq": seq, "ts": ts, **start}


def stopped(start: str, seq: int, ts: int) -> dict[str, Any]:
    epoch = {"monday": 1, "tuesday": 2}[start]
    return {"agent": "roadside", "run": start, "epoch": epoch, **own("stopped", seq, ts), "remote": True}


BEFORE = [
    batch(
        *("center", "monday", 0, source("weather", 0, 130_000)),
        delivery("accidents", 0, 150_000, stopped("monday", 0, 120_000), own("weather", 0, 130_000)),
        plan=CENTER,
    ),
    batch(
        *(
            "roadside",
            "monday",
            0,
            source("reports", 0, 0),
            source("reports", 1, 100_000),
            source("reports", 2, 190_000),
        ),
        delivery("stopped", 0, 120_000, own("reports", 0, 0), own("reports", 1, 100_000)),
        progress("stopped", 190_000),
        plan=ROADSIDE,
    ),
    batch("center", "monday", 1, progress("accidents", 200_000)),
]
AFTER = [
    batch(
        *("roadside", "tuesday", 0, source("reports", 0, 210_000)),
        delivery("stopped", 0, 240_000, own("reports", 0, 210_000), own("reports", 2, 190_000, run="monday", epoch=1)),
        progress("stopped", 240_000),
        plan=ROADSIDE,
    ),
    batch(
        *("center", "monday", 2),
        delivery("accidents", 1, 260_000, stopped("tuesday", 0, 240_000)),
        progress("accidents", 260_000),
    ),
    batch("roadside", "tuesday", 1, {"end": {"ts": 300_000}}),
    batch("center", "monday", 3, progress("accidents", "end"), {"end": {"ts": 300_000}}),
]


def post(site: Site, documents: Sequence[dict[str, Any]]) -> None:
    async def scenario() -> list[Accepted]:
        async with site.link() as link:
            return [await ingest(link, read_json(json.dumps(each).encode())) for each in documents]

    assert [answer.next_batch for answer in run(scenario())] == [each["batch"] + 1 for each in documents]


class Ids:
    """Tuples by the numbers that the cloud has given them."""

    def __init__(self, log: Log) -> None:
        self._numbers = {stream: number for number, stream in log.streams.items()}

    def __call__(self, agent: str, start: str, stream: str, seq: int) -> int:
        return self._numbers[agent, nonce_of(agent, start), stream] << SEQ_BITS | seq


def check_graph(reader: StoreReader, ids: Ids) -> None:
    """Everything has ended."""
    reports = [ids("roadside", "monday", "reports", seq) for seq in range(3)]
    again, weather = ids("roadside", "tuesday", "reports", 0), ids("center", "monday", "weather", 0)
    accidents = [ids("center", "monday", "accidents", seq) for seq in range(2)]
    assert {edge.id for edge in reader.backward(accidents[0])} == {reports[0], reports[1], weather}
    assert {edge.id for edge in reader.backward(accidents[1])} == {reports[2], again}
    assert reader.forward(reports[2]) == [accidents[1]]
    assert {each.id for each in every_sink(reader)} == set(accidents)
    assert all(each.label_stamp is not None for each in every_sink(reader))
    assert all(each.label_stamp is not None for each in every_source(reader))
    payload = reader.payload(reports[1])
    assert payload is not None and payload.value == {"at": 100_000}


def test_results_are_traced_back_over_both_jobs_and_readings_expire_when_their_windows_say(
    site: Site, tmp_path: Path
) -> None:
    pipeline, store = CheckedPipeline(), open_store(f"sqlite:///{tmp_path / 'graph.db'}")
    reader, read = LogReader(site.log_folder), {"roadside": 0, "center": 0}

    def rows() -> dict[int, list[Row]]:
        """What is new of the two jobs: others use the log as well."""
        found: dict[int, list[Row]] = {}
        for shard in reader.shards():
            of_all = list(reader.rows(shard, reader.start(shard), reader.end(shard)))
            for agent, count in read.items():
                mine = [row for row in of_all if row.agent == agent]
                found.setdefault(shard, []).extend(mine[count:])
                read[agent] = max(count, len(mine))
        return {shard: of for shard, of in found.items() if of}

    with store.writer() as writer:
        post(site, BEFORE)
        writer.write(pipeline.run(rows()))
        ids = Ids(pipeline.oracle.log)
        with closing(store.reader()) as graph:
            labels = {each.id: each.label_stamp for each in every_source(graph)}
            first, second = (ids("roadside", "monday", "reports", seq) for seq in range(2))
            assert labels[first] is not None, "0 < 200 s - (120 s + 60 s): it cannot contribute any more"
            assert labels[second] is None, "it still can"
            assert labels[ids("center", "monday", "weather", 0)] is not None, "130 s < 200 s - 60 s"
            assert ids("roadside", "monday", "reports", 2) not in labels, "it has touched nothing yet"
        post(site, AFTER)
        writer.write(pipeline.run(rows()))
    pipeline.finish()
    assert pipeline.oracle.log.all_ended
    with closing(store.reader()) as graph:
        assert list(every_late(graph)) == []
        check_graph(graph, Ids(pipeline.oracle.log))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_same_with_spark(own_site: Site, tmp_path: Path) -> None:
    post(own_site, [*BEFORE, *AFTER])
    reader, log = LogReader(own_site.log_folder), Log(levels=2)
    log.add({shard: list(reader.rows(shard, reader.start(shard), reader.end(shard))) for shard in reader.shards()})
    job = SparkService(tmp_path, own_site.log_folder, "--once")
    assert subprocess.run(job.command(), stderr=subprocess.DEVNULL, timeout=200, check=False).returncode == 0
    assert differences(job.store, log) == []
    with closing(open_store(job.store).reader()) as graph:
        check_graph(graph, Ids(log))

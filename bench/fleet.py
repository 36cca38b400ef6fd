"""What the size of a fleet costs the live graph: CPU of one micro-batch for 16 to 1,000 agents, stage by stage.

Agents tell one result of 50 readings each in every micro-batch. Their batches go through the translator's own code into
rows of the log, these through the stages of the Spark job (split, MU, MU, ANK-1), one bucket after the other, as Spark
calls them; but Spark is not there, so that only what we do ourselves is measured. It is CPU time of this process, so it
says the same on a busy machine. The first micro-batches, in which everybody introduces themselves, are left out.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from bench._goals import Report, parse_arguments
from collector.log import LogReader
from collector.quarantine import Quarantine
from collector.registry import Registry
from collector.shard_log import ShardLog
from protocol.ids import StreamId
from protocol.records import END_OF_TIME, Declared, Delivery, Progress, SourcePayload
from protocol.row import Row
from protocol.topics import SHARDS, shard_of
from protocol.wire.batch import Header, encode_batch, frame
from protocol.wire.packer import Packer
from protocol.wire.sections import pending
from spark_jobs.ank import Ank
from spark_jobs.binding import Stage
from spark_jobs.chunks import Chunk, Kind
from spark_jobs.mu import Mu
from spark_jobs.split import split
from threadline.load.profiles import ORIGINS, SHARED, profile_named

LEVELS, BUCKETS = 2, 4
WARM = 3
PERIOD_MS = 1_000
MOST_PER_AGENT = 0.2
"""ms of CPU in a micro-batch, for each agent."""


class State(dict[tuple[str, int], bytes]):
    """A bucket's memory, as the stages ask for it."""

    def get(self, name: str, number: int) -> bytes | None:  # type: ignore[override]
        return super().get((name, number))

    def put(self, name: str, number: int, value: bytes) -> None:
        self[name, number] = value

    def remove(self, name: str, number: int) -> None:
        del self[name, number]


class Teller:
    """One agent: a batch for each micro-batch."""

    def __init__(self, number: int) -> None:
        self.name = f"agent-{number}"
        self._readings, self._results = (StreamId(self.name, 1, each, number + 1) for each in ("readings", "results"))
        self._packer = Packer()
        self._seq = self._next = 0
        self._recent: tuple[SourcePayload, ...] = ()

    def batch(self) -> bytes:
        """The next one: a result, and the readings that it is the first to name."""
        ts = 1_700_000_000_000 + PERIOD_MS * self._seq
        fresh = ORIGINS - (SHARED if self._recent else 0)
        readings = tuple(
            SourcePayload(self._readings, self._next + place, ts - fresh + place, {"value": place % 17})
            for place in range(fresh)
        )
        delivery = Delivery(self._results, self._seq, ts, {"mean": 1.5}, (*self._recent[-SHARED:], *readings))
        records = [*readings, delivery, Progress(self._results, ts, END_OF_TIME)]
        plan = profile_named("query").plan
        assert plan is not None
        told = [Declared(plan.to_json()), *records] if self._seq == 0 else records
        nonce = self._results.nonce
        data = encode_batch(Header(1, nonce, self._seq), [pending(each, self._packer) for each in told], self.name)
        self._recent, self._next, self._seq = readings, self._next + fresh, self._seq + 1
        return frame(data, self.name, self._seq == 1)


def micro_batches(folder: Path, agents: int, count: int) -> list[dict[int, list[Row]]]:
    """Rows of the log by shard, as a translator writes them."""
    registry = Registry(folder / "registry.db")
    quarantine = Quarantine(folder / "quarantine")
    tellers = [Teller(number) for number in range(agents)]
    logs = {shard: ShardLog(folder, shard, registry, quarantine) for shard in range(SHARDS)}
    reader = LogReader(folder)
    reached = {shard: reader.start(shard) for shard in logs}
    found: list[dict[int, list[Row]]] = []
    for _ in range(count):
        for teller in tellers:
            logs[shard_of(teller.name)].take(teller.name, teller.batch())
        rows: dict[int, list[Row]] = {}
        for shard, log in logs.items():
            log.commit()
            end = reader.end(shard)
            rows[shard] = list(reader.rows(shard, reached[shard], end))
            reached[shard] = end
        found.append({shard: some for shard, some in rows.items() if some})
    for log in logs.values():
        log.close()
    registry.close()
    return found


def measure(batches: list[dict[int, list[Row]]]) -> dict[str, float]:
    """Median CPU of a micro-batch in ms, by stage."""
    stages: dict[str, Stage] = {f"MU {level}": Mu(level, LEVELS, BUCKETS) for level in range(1, LEVELS + 1)}
    stages["ANK-1"] = Ank(BUCKETS)
    states: dict[tuple[str, int], State] = defaultdict(State)
    took: dict[str, list[float]] = defaultdict(list)
    for rows in batches:
        begun = time.process_time()
        chunks = [chunk for shard, some in rows.items() for chunk in split(shard, some, BUCKETS)]
        took["split"].append(time.process_time() - begun)
        for name, stage in stages.items():
            out: list[Chunk] = []
            begun = time.process_time()
            for bucket in range(BUCKETS):
                of_bucket = [chunk for chunk in chunks if chunk.bucket == bucket]
                out += [chunk for chunk in of_bucket if chunk.kind >= Kind.ROWS]
                out += stage.run(states[name, bucket], bucket, sorted(c for c in of_bucket if c.kind < Kind.ROWS))
            took[name].append(time.process_time() - begun)
            chunks = out
    return {name: 1000 * statistics.median(times[WARM:]) for name, times in took.items()}


def main() -> None:
    report = parse_arguments("fleet", __doc__.splitlines()[0])
    sizes, count = ((16, 64, 250), 10) if report.quick else ((16, 64, 250, 1_000), 20)
    for agents in sizes:
        with tempfile.TemporaryDirectory(prefix="threadline-fleet-") as name:
            cost_ms = measure(micro_batches(Path(name), agents, count))
        total_ms = sum(cost_ms.values())
        report.figures.append({"agents": agents, "ms": cost_ms})
        print(
            f"{agents:5} agents: {total_ms:7.1f} ms of CPU per micro-batch, {total_ms / agents:.3f} ms per agent, "
            f"{1000 * total_ms / (agents * ORIGINS):.2f} us per origin ("
            + ", ".join(f"{name} {ms:.1f}" for name, ms in cost_ms.items())
            + ")",
            flush=True,
        )
    _goal(report, sizes[-1], total_ms)
    report.finish()


def _goal(report: Report, agents: int, total_ms: float) -> None:
    report.goal(f"CPU of a micro-batch per agent, of {agents} agents", total_ms / agents, "<=", MOST_PER_AGENT, " ms")


if __name__ == "__main__":
    main()

"""How fast one translator writes the log: 64 simulated agents, a real Mosquitto, every commit synced to the disk.

Each agent tells results of 50 readings each, in batches of 1,200 bytes, and sends on when it is acknowledged. Figures
are per second of the translator's own CPU time (user and system, all threads), so they say what one core can do; the
wall time, which Mosquitto and the simulated agents share on the same machine, is printed beside it. The log is read
back and compared in the end. A commit gathers what came while the last one was on its way (5 ms at least), and ends
with fdatasync; nothing is acknowledged before that.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from bench._goals import parse_arguments
from bench._ingest_agents import ORIGINS, Fleet, SimulatedAgent, simulated_agent
from bench.gateway import cpu_us
from collector.log_view import entries
from protocol.wire.sections import Kind
from threadline.lab import Mosquitto, TranslatorService

AGENTS = 64
WANTED = 100_000
PATIENCE_S = 300.0


def main() -> None:
    report = parse_arguments("ingest", __doc__.splitlines()[0])
    results, rounds = (30, 3) if report.quick else (300, 5)
    agents = [simulated_agent(number, results) for number in range(AGENTS)]
    batches = sum(len(agent.batches) for agent in agents)
    size = sum(len(batch) for agent in agents for batch in agent.batches)
    origins = sum(agent.origins for agent in agents)
    print(f"{AGENTS} agents, {batches} batches of {size / batches:.0f} bytes, {origins} origins, {rounds} rounds")
    rates: list[float] = []
    for number in range(rounds):
        figures = measure(agents, size, origins)
        rates.append(figures["origins_per_core_s"])
        report.figures.append({"round": number, **figures})
        print(
            f"round {number + 1}: per second of one core {figures['origins_per_core_s']:,.0f} origins, "
            f"{figures['records_per_core_s']:,.0f} records, {figures['mb_per_core_s']:.2f} MB of batches; "
            f"wall {figures['wall_s']:.1f} s ({figures['origins_per_wall_s']:,.0f} origins/s), "
            f"translator CPU {figures['cpu_s']:.1f} s, log {figures['log_bytes_per_origin']:.1f} bytes per origin"
        )
    name = "delivery origins per second of one core" + (" (a tenth of the results)" if report.quick else "")
    report.goal(name, statistics.median(rates), ">=", WANTED)
    report.finish()


def measure(agents: list[SimulatedAgent], size: int, origins: int) -> dict[str, float]:
    """One translator with an empty log, from the first batch until all are acknowledged."""
    for agent in agents:
        agent.sent = agent.acknowledged = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Mosquitto(Path(folder)) as broker,
        TranslatorService(Path(folder), broker) as translator,
    ):
        fleet = Fleet(broker.port, agents)
        begun, cpu_begun = time.monotonic(), cpu_us(translator.pid)
        fleet.start()
        if not fleet.done.wait(PATIENCE_S):
            raise SystemExit(f"not all batches were acknowledged within {PATIENCE_S:.0f} s:\n{translator.tail()}")
        wall_s, cpu_s = time.monotonic() - begun, (cpu_us(translator.pid) - cpu_begun) / 1e6
        fleet.close()
        translator.stop()
        log_bytes = check(translator.log_folder, agents)
    records = sum(agent.records for agent in agents)
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "origins_per_core_s": origins / cpu_s,
        "records_per_core_s": records / cpu_s,
        "mb_per_core_s": size / cpu_s / 1e6,
        "origins_per_wall_s": origins / wall_s,
        "log_bytes_per_origin": log_bytes / origins,
    }


def check(log: Path, agents: list[SimulatedAgent]) -> int:
    """Every result is in the log once, with all its origins, in order. Returns the size of the log."""
    found: dict[str, list[int]] = {agent.name: [] for agent in agents}
    for entry in entries(log, [Kind.DELIVERY]):
        if len(entry.record.origins) != ORIGINS:
            raise SystemExit(f"{entry.record.id} has {len(entry.record.origins)} origins")
        found[entry.agent].append(entry.record.seq)
    for agent in agents:
        if found[agent.name] != list(range(agent.origins // ORIGINS)):
            raise SystemExit(f"the log holds other results of {agent.name} than it sent")
    return sum(each.stat().st_size for each in log.rglob("*.arrows"))


if __name__ == "__main__":
    main()

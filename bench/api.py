"""The API over stores of one and ten million edges, next to `/healthz` in the same run, while a writer writes.

A server runs for each store, and a process that writes to the one that is being asked, as the Spark job would, once a
second. Each round asks every question of both servers, so what disturbs the machine disturbs all of them: a ratio is
taken per round, and its median over the rounds is what counts. Ids are taken at random from the whole store.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from bench._goals import Report, parse_arguments
from bench._graph_store import CENTER, DEVICE, NAMES, READINGS, RESULTS, SIZE, GraphStore, common_reading, fill
from bench._http_client import Measured, ask, first_event_s
from collector.store import StoreWriter
from threadline.lab import ApiService

CLIENTS = (1, 16)
WRITTEN_AT_ONCE = 40  # results: 2,000 edges a second
POINT = ("vertex", "backward", "forward")
"""The questions that the goals are about."""

Figures = dict[tuple[str, str, int], list[Measured]]
"""By store, question and number of clients: round by round."""


def questions(results: int) -> dict[str, Callable[[], str]]:
    """What is asked, of a store with so many results."""
    dice = random.Random(results)

    def result() -> str:
        return f"{CENTER}/{NAMES[RESULTS]}@1:{dice.randrange(results)}"

    def common() -> str:
        return common_reading(dice.randrange(results // SIZE))

    def reading() -> str:
        return f"{DEVICE}/{NAMES[READINGS]}@1:{dice.randrange(results * 30)}"

    def times() -> str:
        begin = dice.randrange(results) * 350
        return f"from={begin}&to={begin + 3_500}"

    return {
        "healthz": lambda: "/healthz",
        "vertex": lambda: f"/v1/vertices/{result()}",
        "backward": lambda: f"/v1/vertices/{result()}/backward",
        "forward": lambda: f"/v1/vertices/{common()}/forward",
        "backward with payloads": lambda: f"/v1/vertices/{result()}/backward?payload=true",
        "vertex of a reading": lambda: f"/v1/vertices/{reading()}",
        "sinks": lambda: f"/v1/sinks?limit=50&{times()}",
        "sinks where": lambda: f"/v1/sinks?limit=5&where=mean%3D{dice.randrange(97)}",
        "lineage": lambda: f"/v1/vertices/{result()}/lineage?levels=3",
        "paths": lambda: f"/v1/paths?from={reading()}&to=~{CENTER}/.*",
        "impact": lambda: f"/v1/impact?stream={DEVICE}/{NAMES[READINGS]}&{times()}",
        "statistics": lambda: f"/v1/statistics?{times()}",
    }


class Server(NamedTuple):
    """The API over one store, and who writes to that."""

    api: ApiService
    path: Path
    results: int
    batches: int
    is_written: Event
    """While it is set, something is written once a second."""


def write(server: tuple[Path, int, int], is_written: Event, done: Event) -> None:
    """Write to a store as the Spark job would, as long as that is wanted."""
    path, results, batches = server
    with StoreWriter(path) as writer:
        store = GraphStore(writer, results, batches)
        while not done.wait(1.0):
            if is_written.is_set():
                store.append(WRITTEN_AT_ONCE)


async def measure(servers: dict[str, Server], rounds: int, requests: int) -> Figures:
    """Every question to both servers, in every round."""
    figures: Figures = {}
    for number in range(rounds):
        for size, server in servers.items():
            server.is_written.set()
            for name, path_of in questions(server.results).items():
                count = requests if name in ("healthz", *POINT) else requests // 8
                for clients in CLIENTS:
                    if number == 0:
                        await ask(server.api.port, path_of, clients, max(clients * 2, count // 4))
                    found = await ask(server.api.port, path_of, clients, max(clients * 3, count))
                    figures.setdefault((size, name, clients), []).append(found)
            server.is_written.clear()
        print(f"round {number + 1} of {rounds}", flush=True)
    return figures


def first_event(server: Server, number: int) -> float:
    """How long after the commit the first event about it comes."""
    with StoreWriter(server.path) as writer:
        # Behind what the writer has written, wherever it stopped.
        store = GraphStore(writer, 2 * server.results + number, 1_000_000 + number)

        def act() -> float:
            store.append(1)
            return perf_counter()

        return asyncio.run(first_event_s(server.api.port, "/v1/graph/stream?since=end", act))


def main() -> None:
    report = parse_arguments("api", __doc__.partition("\n")[0])
    sizes = {"small": 200_000, "large": 2_000_000} if report.quick else {"small": 1_000_000, "large": 10_000_000}
    rounds, requests = (9, 400) if report.quick else (12, 1_000)
    with tempfile.TemporaryDirectory(prefix="threadline-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        servers: dict[str, Server] = {}
        for size, edges in sizes.items():
            begun = time.monotonic()
            path = folder / f"{size}.db"
            results, batches = fill(path, edges)
            megabytes, seconds = path.stat().st_size / 1e6, time.monotonic() - begun
            print(f"{size}: {results * SIZE} edges, {megabytes:.0f} MB, in {seconds:.0f} s", flush=True)
            api = stack.enter_context(ApiService(folder, None, f"sqlite:///{path}", name=f"api-{size}"))
            servers[size] = Server(api, path, results, batches, multiprocessing.Event())
        done = multiprocessing.Event()
        writers = [
            multiprocessing.Process(target=write, args=(each[1:4], each.is_written, done)) for each in servers.values()
        ]
        for writer in writers:
            writer.start()
        try:
            figures = asyncio.run(measure(servers, rounds, requests))
        finally:
            done.set()
            for writer in writers:
                writer.join()
        latest = [first_event(servers["large"], number) for number in range(5)]
    _print(figures)
    _judge(report, figures, "tenth " if report.quick else "", latest)
    report.finish()


def _print(figures: Figures) -> None:
    print(f"{'':24}{'1 client':>26}{'16 clients':>36}")
    print(f"{'':24}{'p50 ms':>8}{'p99 ms':>8}{'per s':>10}{'p50 ms':>16}{'p99 ms':>8}{'per s':>10}")
    for size, name in dict.fromkeys((size, name) for size, name, _ in figures):
        line = f"{size + ' ' + name:24}"
        for clients in CLIENTS:
            runs = figures[size, name, clients]
            p50, p99 = (statistics.median(run.at(share) for run in runs) for share in (0.5, 0.99))
            line += f"{p50:8.2f}{p99:8.2f}{statistics.median(run.rate for run in runs):10.0f}" + " " * 8
        print(line)


def _judge(report: Report, figures: Figures, sizes: str, latest: list[float]) -> None:
    for size, name, clients in figures:
        runs = figures[size, name, clients]
        report.figures.append(
            {
                "store": size,
                "question": name,
                "clients": clients,
                "p50_ms": statistics.median(run.at(0.5) for run in runs),
                "p99_ms": statistics.median(run.at(0.99) for run in runs),
                "per_s": statistics.median(run.rate for run in runs),
            }
        )

    def ratio(of: Callable[[Measured], float], name: str, other: str, clients: int, size: str, base: str) -> float:
        pairs = zip(figures[size, name, clients], figures[base, other, clients], strict=True)
        return statistics.median(of(run) / of(against) for run, against in pairs)

    for name in POINT:
        worst = max(ratio(lambda run: run.at(0.99), name, "healthz", 1, size, size) for size in ("small", "large"))
        report.goal(f"{sizes}{name}_p99_over_healthz", worst, "<=", 4)
        for clients in CLIENTS:
            least = min(
                ratio(lambda run: run.rate, name, "healthz", clients, size, size) for size in ("small", "large")
            )
            report.goal(f"{sizes}{name}_rate_over_healthz_{clients}_clients", least, ">=", 0.333)
        slower = max(ratio(lambda run: run.at(0.5), name, name, clients, "large", "small") for clients in CLIENTS)
        report.goal(f"{sizes}{name}_on_ten_times_the_store", slower, "<=", 1.5)
    report.goal(f"{sizes}first_event_after_commit", statistics.median(latest), "<=", 1, " s")


if __name__ == "__main__":
    main()

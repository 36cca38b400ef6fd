"""Those who ask for everything and do not take it: what waits for them is bounded, and nobody else waits."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import psutil

from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id
from threadline.lab import ApiService

SINKS = 60_000
STALLED = 8
LOOK_S, STILL_LOOKS, LEAST_LOOKS = 0.3, 3, 4
STILL_BYTES = 64 << 10


def settled_bytes(process: psutil.Process) -> int:
    """Its memory when that does not change any more."""
    looks: list[int] = []
    while len(looks) < LEAST_LOOKS or max(looks[-STILL_LOOKS:]) - min(looks[-STILL_LOOKS:]) > STILL_BYTES:
        time.sleep(LOOK_S)
        looks.append(process.memory_info().rss)
    return looks[-1]


def test_consumers_of_events_that_do_not_read_cost_no_memory(tmp_path: Path) -> None:
    api = ApiService(tmp_path, None, f"sqlite:///{tmp_path / 'graph.db'}")
    with QuickWriter(tmp_path / "graph.db") as writer:
        for batch in range(4):
            ids = [tuple_id(1, SINKS // 4 * batch + each) for each in range(SINKS // 4)]
            writer.write(graph_batch("q", batch, sinks=dict.fromkeys(ids, batch), sink_labels=ids))
    with api:
        assert api.process is not None
        process = psutil.Process(api.process.pid)
        host, port = api.host, api.port
        consumers = []
        before_bytes = process.memory_info().rss
        for _ in range(STALLED):
            consumer = socket.socket()
            consumer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            consumer.connect((host, port))
            consumer.sendall(b"GET /v1/graph/stream?since=start HTTP/1.1\r\nHost: x\r\n\r\n")
            assert consumer.recv(12) == b"HTTP/1.1 200"
            consumers.append(consumer)
        grown_bytes = settled_bytes(process) - before_bytes
        all_of_it_bytes = 2 * SINKS * 100 * STALLED  # what they have asked for
        assert grown_bytes < min(40 << 20, all_of_it_bytes / 2), f"{grown_bytes / 1e6:.0f} MB"
        with socket.create_connection((host, port)) as other:
            other.sendall(b"GET /v1/sinks?limit=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            other.settimeout(10.0)
            assert other.recv(12) == b"HTTP/1.1 200"
        for consumer in consumers:
            consumer.close()

"""The capture benchmark counts what is sent, gives all contenders the same to do, and all of them capture it."""

from __future__ import annotations

import json
import math
import socket
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bench._capture_contenders import (
    CONTENDERS,
    FLOWCEPT,
    NOTHING,
    OPENTELEMETRY,
    PROVLIGHT,
    PROVLIGHT_50,
    THREADLINE,
    Contender,
    Measured,
    Servers,
    Worker,
    WorkerFailed,
    why_not,
)
from bench._capture_servers import SnServer, SpanSink, provlight_events, threadline_events
from bench._capture_traffic import TcpCounter, Traffic, UdpCounter
from bench._capture_workload import EVENTS, TASKS, Workload
from bench._goals import Report
from bench.capture import INSTANT, SLOW, Figures, set_goals
from protocol.address import format_address
from protocol.mqttsn import ConnAck, Connect, PubComp, Publish, PubRec, PubRel, RegAck, Register, decode, encode
from protocol.wire.batch import Header, encode_batch, frame
from protocol.wire.sections import EventKind, Kind
from threadline.lab import ServiceFailed

REAL_10 = Workload("real", 10, 0.0)


def ran(contender: Contender, workload: Workload, server: str, folder: Path) -> Measured:
    with Worker(contender, workload, server, folder, settle_s=0) as worker:
        worker.go()
        return worker.result()


# --- the workload -------------------------------------------------------------------------


def test_paper_data_is_that_of_the_listing() -> None:
    data = Workload("paper", 10, 0.0).data()
    assert len(data) == TASKS == EVENTS / 2 == 100
    assert all(pair == ({"in": [1] * 10}, {"out": [2] * 10}) for pair in data)


@pytest.mark.parametrize("attributes", [10, 100])
def test_real_data_has_the_same_names_and_new_values_in_every_event(attributes: int) -> None:
    data = Workload("real", attributes, 0.0).data()
    assert data == Workload("real", attributes, 0.0).data()
    first_in, first_out = data[0]
    assert len(first_in | first_out) == 2 * attributes  # a span keeps both in one dict
    assert all((list(into), list(out)) == (list(first_in), list(first_out)) for into, out in data)
    assert len({json.dumps(each) for pair in data for each in pair}) == EVENTS
    kinds = [type(value).__name__ for value in first_in.values()]
    assert [kinds.count(kind) * 10 // attributes for kind in ("float", "int", "str")] == [6, 2, 2]


# --- counting -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload_bytes", "packets", "ip_bytes"), [(0, 1, 28), (1_472, 1, 1_500), (1_473, 2, 1_521), (50_000, 34, 50_688)]
)
def test_a_datagram_is_cut_into_packets_of_the_mtu(payload_bytes: int, packets: int, ip_bytes: int) -> None:
    traffic = Traffic()
    traffic.add_datagram(payload_bytes)
    assert traffic == Traffic(packets, ip_bytes)


def test_datagrams_pass_both_ways_and_count_towards_the_server_only() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        with UdpCounter(server.getsockname()) as counter, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(5)
            host, port = counter.url.split(":")
            client.connect((host, int(port)))
            for _ in range(3):
                client.send(b"x" * 100)
                datagram, sender = server.recvfrom(200)
                assert datagram == b"x" * 100
            server.sendto(b"answer", sender)
            assert client.recv(200) == b"answer"
            client.send(b"the last one, which nobody waits for")
    assert counter.traffic == Traffic(4, 3 * 128 + 28 + 36)


def test_a_connection_counts_as_the_segments_that_the_mtu_allows() -> None:
    sent_bytes = 100_000
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        with TcpCounter(server.getsockname()) as counter:
            host, port = counter.url.split(":")
            with socket.create_connection((host, int(port)), timeout=5) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"x" * sent_bytes)
                    received = 0
                    while received < sent_bytes:
                        received += len(accepted.recv(65_536))
                    accepted.sendall(b"answer")
                    assert client.recv(100) == b"answer"
    packets, ip_bytes = counter.traffic.packets, counter.traffic.ip_bytes
    assert ip_bytes - 52 * packets - sent_bytes in (0, 1)  # to the kernel, the end of a stream is one byte more
    assert sent_bytes / 1_448 <= packets <= 1.5 * sent_bytes / 1_448


# --- arrivals -----------------------------------------------------------------------------


def test_task_events_are_found_in_our_batches() -> None:
    rows = [
        (Kind.EVENT, EventKind.WORKFLOW_BEGUN, 1, 0, "1", None, b"\xc0"),
        (Kind.EVENT, EventKind.TASK_BEGUN, 2, 5, 0, "0-5", "0", (), ()),
        (Kind.EVENT, EventKind.TASK_ENDED, 3, 5, 0, "", ()),
    ]
    batch = encode_batch(Header(1, 99, 0), rows, "agent-1")
    assert list(threadline_events(frame(batch, "agent-1", True), "agent-1")) == ["5 TaskBegun", "5 TaskEnded"]


# --- contenders ---------------------------------------------------------------------------


def test_a_run_without_capture_times_every_event(tmp_path: Path) -> None:
    measured = ran(NOTHING, REAL_10, "", tmp_path)
    assert len(measured.call_us) == len(measured.event_us) == EVENTS
    assert all(0 < call < event for call, event in zip(measured.call_us, measured.event_us, strict=True))
    assert 0 < measured.cpu_us < 1_000
    assert 5 < measured.peak_rss_mb < 30


def test_a_contender_that_fails_says_why(tmp_path: Path) -> None:
    absent = Contender("absent", "absent", "bench", "", "nowhere")
    with (
        pytest.raises(WorkerFailed, match=r"No module named .bench._capture_absent"),
        Worker(absent, REAL_10, "", tmp_path),
    ):
        pass


def test_what_is_missing_for_a_contender_is_said() -> None:
    assert why_not(NOTHING) is None
    assert why_not(Contender("x", "x", "no_such_library", "", "nowhere")) == "no_such_library is not installed"


@contextmanager
def obliging_gateway() -> Iterator[tuple[str, list[bytes]]]:
    """Says yes to everything; gives the payloads of complete QoS 2 exchanges."""
    under_way: dict[int, bytes] = {}
    complete: list[bytes] = []
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    sock.bind(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            datagram, client = sock.recvfrom(65_535)
            if not datagram:
                return
            match decode(datagram):
                case Connect():
                    sock.sendto(encode(ConnAck(0)), client)
                case Register(msg_id=msg_id):
                    sock.sendto(encode(RegAck(1, msg_id, 0)), client)
                case Publish(msg_id=msg_id, payload=payload, qos=2):
                    under_way[msg_id] = payload
                    sock.sendto(encode(PubRec(msg_id)), client)
                case PubRel(msg_id=msg_id):
                    complete.append(under_way.pop(msg_id))
                    sock.sendto(encode(PubComp(msg_id)), client)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield format_address(*sock.getsockname()), complete
    finally:
        sock.sendto(b"", sock.getsockname())
        thread.join()
        sock.close()


@pytest.mark.parametrize(("contender", "messages"), [(PROVLIGHT, EVENTS + 2), (PROVLIGHT_50, TASKS + 2 + 2)])
def test_provlight_publishes_begins_at_once_and_ended_tasks_by_its_group(
    contender: Contender, messages: int, tmp_path: Path
) -> None:
    with obliging_gateway() as (url, payloads):
        ran(contender, REAL_10, url, tmp_path)
    assert len(payloads) == messages
    events = [event for payload in payloads for event in provlight_events(payload, "")]
    assert len(events) == len(set(events)) == EVENTS
    assert sum(event.endswith(" running") for event in events) == TASKS
    values = b"".join(zlib.decompress(payload) for payload in payloads)
    attributes_in, attributes_out = REAL_10.data()[37]
    assert str(attributes_in).encode() in values and str(attributes_out).encode() in values


def test_flowcept_writes_all_tasks_to_its_file(tmp_path: Path) -> None:
    with Worker(FLOWCEPT, REAL_10, "", tmp_path, settle_s=0) as worker:
        worker.go()
        worker.result()
    lines = (tmp_path / worker.client / "flowcept_buffer.jsonl").read_text().splitlines()
    tasks = [task for task in map(json.loads, lines) if task["type"] == "task"]
    assert [(task["used"], task["generated"]) for task in tasks] == REAL_10.data()


def test_opentelemetry_exports_a_span_with_all_attributes_of_a_task(tmp_path: Path) -> None:
    workload = Workload("real", 100, 0.0)
    with SpanSink() as sink:
        ran(OPENTELEMETRY, workload, format_address(*sink.address), tmp_path)
    exported = [ExportTraceServiceRequest.FromString(export) for export in sink.exports]
    spans = [
        span
        for request in exported
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert len(spans) == TASKS
    keys = {attribute.key for attribute in spans[0].attributes}
    attributes_in, attributes_out = workload.data()[0]
    assert keys == {*attributes_in, *attributes_out, "workflow", "transformation", "dependencies"}


def test_who_sends_nowhere_needs_no_server_and_has_no_traffic(tmp_path: Path) -> None:
    with Servers(tmp_path, [FLOWCEPT]) as servers, servers.counting(FLOWCEPT) as (url, traffic):
        assert (url, traffic) == ("", None)


def test_what_has_started_is_ended_if_the_gateway_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing outlives a benchmark that is killed: all of it is started apart."""
    calls: list[tuple[str, Any]] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self._name = name

        def start(self, apart: bool = False) -> None:
            calls.append((self._name, apart))
            if self._name == "gateway":
                raise ServiceFailed("its port is taken")

        def stop(self) -> None:
            calls.append((self._name, "stopped"))

    for each in ("Mosquitto", "GatewayService", "TranslatorService"):
        name = each.removesuffix("Service").lower()
        monkeypatch.setattr(f"bench._capture_servers.{each}", lambda *_, name=name: Fake(name))
    with pytest.raises(ServiceFailed, match="its port is taken"), SnServer(tmp_path):
        pass
    assert calls == [("mosquitto", True), ("gateway", True), ("gateway", "stopped"), ("mosquitto", "stopped")]


# --- goals --------------------------------------------------------------------------------


def figures_of(call_us: dict[Contender, float]) -> Figures:
    """Everybody's CPU is ten times what a call takes, above 5 us of the workload; peaks differ by the call as well."""
    figures = Figures(defaultdict(list), {}, defaultdict(list), defaultdict(list))
    for workload in (*INSTANT, *SLOW):
        for contender, us in {NOTHING: 0.0, **call_us}.items():
            measured = Measured("", [us] * EVENTS, [us] * EVENTS, 5 + 10 * us, 10 + us)
            figures.runs[contender, workload] = [measured] * 3
            figures.counts[contender, workload] = Traffic(10, 20 * EVENTS)
            figures.delivered[contender, workload, 0.0] = [1.0]
            figures.delivered[contender, workload, 0.05] = [1.0, 0.995]
    for contender, us in call_us.items():
        figures.imports[contender] = [us] * 3
    return figures


def goals_of(figures: Figures, skip_unmeasured: bool = False) -> dict[str, tuple[float, bool]]:
    report = Report("capture", quick=True, json_file=None)
    set_goals(report, figures, skip_unmeasured)
    return {goal.name: (goal.measured, goal.met) for goal in report.goals}


def test_goals_compare_with_each_peer_in_every_workload() -> None:
    goals = goals_of(figures_of({THREADLINE: 2.0, PROVLIGHT: 100.0, FLOWCEPT: 5.0}))
    for workload in (*INSTANT, *SLOW):
        assert goals[f"caller p50 vs ProvLight ({workload.name})"] == (50, True)
        assert goals[f"caller p50 vs Flowcept ({workload.name})"] == (2.5, False)
        assert goals[f"CPU vs ProvLight ({workload.name})"] == (50, True)
    for workload in INSTANT:
        assert goals[f"added RSS ({workload.data_name})"] == (2, True)
        assert goals[f"delivery at 0% loss ({workload.data_name})"] == (100, True)
        assert goals[f"delivery at 5% loss ({workload.data_name})"] == (99.5, False)
    assert goals["IP bytes per event (paper-100, task 0.05)"] == (20, True)
    assert goals["import CPU over ProvLight"] == (0.02, True)


def test_the_faster_of_both_flowcepts_counts() -> None:
    redis = next(each for each in CONTENDERS if each.name == "flowcept-redis")
    goals = goals_of(figures_of({THREADLINE: 1.0, FLOWCEPT: 9.0, redis: 6.0}))
    assert goals["caller p50 vs Flowcept (real-10, task 0)"] == (6, True)


def test_what_was_not_measured_is_missed_or_left_out_if_it_was_not_wanted() -> None:
    figures = figures_of({PROVLIGHT: 100.0, FLOWCEPT: 5.0})
    missed = goals_of(figures)
    assert len(missed) == 43
    assert all(math.isnan(measured) and not met for measured, met in missed.values())
    assert goals_of(figures, skip_unmeasured=True) == {}

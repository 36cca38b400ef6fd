"""The counters of the machine as Prometheus sees them."""

from __future__ import annotations

import ast
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import broker
from broker.bridge import Bridge
from broker.journal import Journal
from broker.metrics import COUNTERS, GatewayMetrics, serve_metrics
from broker.mqtt_connection import Broker
from protocol.mqttsn import Disconnect, Publish, Subscribe
from tests.support.machine import NORMAL, SHORT, Machine, at

A, B = at(1), at(2)


def bridge_of(machine: Machine) -> Bridge:
    """A bridge that never connects."""
    return Bridge(machine.gateway, Broker("127.0.0.1", 1), Journal(), lambda: None)


def scrape(machine: Machine) -> dict[str, float]:
    """Every sample by its name and labels, as text."""
    registry = CollectorRegistry()
    registry.register(GatewayMetrics(machine.gateway, bridge_of(machine), machine.journal))
    samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def counted_in_source() -> set[str]:
    """The first argument of every `count(...)` and the first key of every `counters[...]` in the package."""
    names = set()
    for file in Path(broker.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            first: ast.expr | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "count":
                first = node.args[0]
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
                target = node.value
                name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
                first = node.slice.elts[0] if name == "counters" else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                names.add(first.value)
    return names


def test_everything_that_is_counted_is_told_and_everything_told_is_counted() -> None:
    assert counted_in_source() == set(COUNTERS)


def test_no_two_counters_share_a_metric() -> None:
    names = [name for name, _, _ in COUNTERS.values()]
    assert len(set(names)) == len(names)


def test_counters_carry_their_reasons() -> None:
    machine = Machine()
    machine.receive(b"\x02\x04", A)
    machine.receive(b"\x02\x04", A)
    machine.receive(b"\x00", A)
    machine.connect(B, "dev")
    machine.send(B, Publish(SHORT, 0x6162, 0, b"p", 0))
    samples = scrape(machine)
    assert samples["threadline_gateway_datagrams_received_total"] == 5
    malformed = {key: value for key, value in samples.items() if "datagrams_malformed" in key}
    assert sum(malformed.values()) == 3
    assert samples["threadline_gateway_datagrams_malformed_total{reason=truncated}"] == 3
    assert samples["threadline_gateway_publishes_from_devices_total{qos=0}"] == 1


def test_a_counter_without_labels_is_there_from_the_start() -> None:
    samples = scrape(Machine())
    assert samples["threadline_gateway_sessions_rebound_total"] == 0
    assert samples["threadline_gateway_wills_published_total"] == 0


def test_gauges_show_sessions_by_state_and_what_waits_for_devices() -> None:
    machine = Machine()
    for number, client_id in enumerate(("one", "two", "three")):
        machine.connect(at(number), client_id, clean=False)
        machine.send(at(number), Subscribe(NORMAL, "t/x", 1, 1))
    machine.broker_subscribed("t/x")
    machine.send(at(1), Disconnect(60))
    machine.send(at(2), Disconnect())
    machine.publish_from_broker("t/x", b"12345")
    samples = scrape(machine)
    assert samples["threadline_gateway_sessions{state=active}"] == 1
    assert samples["threadline_gateway_sessions{state=asleep}"] == 1
    assert samples["threadline_gateway_sessions{state=offline}"] == 1
    assert samples["threadline_gateway_sessions{state=awake}"] == 0
    assert samples["threadline_gateway_buffered_bytes"] == 3 * 8
    assert samples["threadline_gateway_mqtt_connected"] == 0
    assert samples["threadline_gateway_publishes_unacknowledged"] == 0
    assert samples["threadline_gateway_state_unwritten"] == 0


def test_prometheus_can_fetch_them() -> None:
    machine = Machine()
    port = serve_metrics(machine.gateway, bridge_of(machine), machine.journal, "127.0.0.1", 0)
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"threadline_gateway_sessions" in answer.read()


@pytest.mark.parametrize("kind", [count for count in COUNTERS if COUNTERS[count][1]])
def test_a_counter_with_a_label_shows_each_reason(kind: str) -> None:
    machine = Machine()
    machine.gateway.outputs.count(kind, "because")
    name, label, _ = COUNTERS[kind]
    assert scrape(machine)[f"threadline_gateway_{name}_total{{{label}=because}}"] == 1

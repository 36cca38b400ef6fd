"""The machine's counters as Prometheus metrics: one table says how each is called and what it means."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.bridge import Bridge
from broker.gateway import Gateway
from broker.journal import Journal
from broker.server import CannotListen, reason
from protocol.address import format_address

COUNTERS: dict[str, tuple[str, str, str]] = {
    # counter of the machine: (metric, label or "", what it means)
    "received": ("datagrams_received", "", "Datagrams that came in"),
    "sent": ("datagrams_sent", "", "Datagrams that went out"),
    "not sent": ("datagrams_not_sent", "reason", "Datagrams the network layer would not take"),
    "malformed": ("datagrams_malformed", "reason", "Datagrams that are not MQTT-SN"),
    "refused": ("packets_refused", "reason", "Well-formed packets that make no sense where they came"),
    "connect refused": ("connects_refused", "code", "Connections answered with an error code"),
    "will update refused": ("will_updates_refused", "code", "Changes of a will answered with an error code"),
    "published": ("publishes_from_devices", "qos", "Publishes passed on to the broker"),
    "publish refused": ("publishes_refused", "code", "Publishes answered with an error code"),
    "register refused": ("registers_refused", "code", "Registrations answered with an error code"),
    "subscribe refused": ("subscribes_refused", "code", "Subscriptions answered with an error code"),
    "congestion from a client": ("congestion_from_devices", "", "Devices that asked the gateway to try again later"),
    "delivered": ("publishes_to_devices", "qos", "Publishes sent to devices, retransmissions included"),
    "retransmitted": ("retransmissions", "packet", "Packets sent to a device again"),
    "duplicates": ("duplicates_suppressed", "kind", "Copies that were recognised and not passed on"),
    "dropped": ("messages_dropped", "reason", "Messages that will never arrive, and why"),
    "acknowledgements nobody waits for": (
        "stale_acknowledgements",
        "",
        "Broker acknowledgements for a client that has begun something else",
    ),
    "rebound": ("sessions_rebound", "", "Clients that went on from another address"),
    "displaced": ("sessions_displaced", "", "Clients whose address another client has taken"),
    "sessions lost": ("sessions_lost", "reason", "Clients not heard of any more"),
    "sessions ended": ("sessions_ended", "reason", "Sessions that are over"),
    "sleepers that went back to sleep undrained": (
        "sleepers_undrained",
        "",
        "Sleeping clients that woke and then did not answer",
    ),
    "wills": ("wills_published", "", "Wills published for lost clients"),
    "other gateways heard": ("other_gateways_heard", "", "ADVERTISE and GWINFO of other gateways"),
}


class GatewayMetrics(Collector):
    """Reads the running gateway whenever Prometheus asks."""

    def __init__(self, gateway: Gateway, bridge: Bridge, journal: Journal) -> None:
        self._gateway = gateway
        self._bridge = bridge
        self._journal = journal

    def collect(self) -> Iterator[Metric]:
        counted = dict(self._gateway.outputs.counters)
        for what, (name, label, meaning) in COUNTERS.items():
            counter = CounterMetricFamily(f"threadline_gateway_{name}", meaning, labels=[label] if label else [])
            if not label:
                counter.add_metric([], counted.get((what, ""), 0))
            for (key, why), times in counted.items():
                if label and key == what:
                    counter.add_metric([why], times)
            yield counter
        sessions = GaugeMetricFamily("threadline_gateway_sessions", "Sessions by state", labels=["state"])
        for state, number in self._gateway.sessions_by_state().items():
            sessions.add_metric([state], number)
        yield sessions
        for name, meaning, value in (
            ("mqtt_connected", "Whether the MQTT broker is connected", float(self._bridge.is_up)),
            (
                "publishes_unacknowledged",
                "Publishes the broker has yet to acknowledge",
                float(self._bridge.unacknowledged),
            ),
            ("buffered_bytes", "Bytes waiting for devices", float(self._gateway.buffered_bytes)),
            (
                "state_unwritten",
                "Changes of sessions that are not in the state folder, as its disk takes nothing",
                float(self._journal.unwritten),
            ),
        ):
            yield GaugeMetricFamily(f"threadline_gateway_{name}", meaning, value=value)


def serve_metrics(gateway: Gateway, bridge: Bridge, journal: Journal, host: str, port: int) -> int:
    """Answer Prometheus on its own thread; returns the port (asked for 0, a free one)."""
    registry = CollectorRegistry()
    registry.register(GatewayMetrics(gateway, bridge, journal))
    try:
        server, _ = start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:
        raise CannotListen(
            f"cannot serve metrics on {format_address(host, port)} (--metrics): {reason(error)}"
        ) from error
    return int(server.server_port)

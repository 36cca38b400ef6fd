"""The forwarder's counters for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import start_http_server
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric

from collector.forwarding.errors import ForwardingError
from protocol.address import format_address

if TYPE_CHECKING:
    from collector.forwarding.forwarder import Forwarder

_GAUGES = frozenset(("lag_seconds",))


class _Counters:
    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def collect(self) -> Iterator[Metric]:
        for name, value in self._forwarder.totals().items():
            kind = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
            yield kind(f"threadline_forwarder_{name}", name.replace("_", " "), value)


def serve(forwarder: Forwarder, host: str, port: int) -> None:
    """Answer Prometheus on this address for as long as the process lives."""
    registry = CollectorRegistry()
    registry.register(_Counters(forwarder))
    try:
        start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ForwardingError(f"cannot serve metrics on {format_address(host, port)} (--metrics): {why}") from error

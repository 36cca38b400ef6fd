"""The translator's counters for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import start_http_server
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric

from protocol.address import format_address

if TYPE_CHECKING:
    from collector.translator import Translator

_GAUGES = frozenset(("agents", "shards", "shards_in_trouble", "is_holding_back", "unread_bytes", "most_unread_bytes"))


class CannotServe(RuntimeError):
    """The address cannot be listened on; the text says why."""


class _Counters:
    def __init__(self, translator: Translator) -> None:
        self._translator = translator

    def collect(self) -> Iterator[Metric]:
        for name, value in self._translator.totals().items():
            kind = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
            yield kind(f"threadline_translator_{name}", name.replace("_", " "), value)
        yield CounterMetricFamily(
            "threadline_translator_held_seconds", "time in which nothing could be taken", self._translator.held_s
        )
        yield CounterMetricFamily(
            "threadline_translator_commit_seconds", "time spent in commits", self._translator.commit_s
        )


def serve(translator: Translator, host: str, port: int) -> None:
    """Answer Prometheus on this address for as long as the process lives."""
    registry = CollectorRegistry()
    registry.register(_Counters(translator))
    try:
        start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise CannotServe(f"cannot serve metrics on {format_address(host, port)} (--metrics): {why}") from error

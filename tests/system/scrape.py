"""A running gateway's metrics, as a test asks for them."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from threadline.lab import GatewayService

_PREFIX = "threadline_gateway_"


class Metrics:
    """One answer of the metrics endpoint. Names go without the common prefix and the `_total` of counters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [
            (sample.name.removeprefix(_PREFIX).removesuffix("_total"), sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name with these labels."""
        return sum(value for each, had, value in self._samples if each == name and labels.items() <= had.items())

    @property
    def sessions(self) -> int:
        return int(self.value("sessions"))


def scrape(gateway: GatewayService) -> Metrics:
    with urlopen(f"http://127.0.0.1:{gateway.metrics_port}/metrics", timeout=10) as answer:
        return Metrics(answer.read().decode())

"""The metrics of a component, as Prometheus would ask for them."""

from __future__ import annotations

from http.client import HTTPException
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

_ANSWER_S = 5.0


def scrape(component: str, address: str) -> dict[str, float]:
    """All of them by name, without the common prefix and the `_total` of counters; those of all labels together.
    Nothing if it does not answer: it may be busy, and is asked again."""
    try:
        with urlopen(f"http://{address}/metrics", timeout=_ANSWER_S) as answer:
            text = answer.read().decode()
    except (OSError, HTTPException):
        return {}
    found: dict[str, float] = {}
    prefix = f"threadline_{component}_"
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(prefix).removesuffix("_total")
            found[name] = found.get(name, 0.0) + sample.value
    return found

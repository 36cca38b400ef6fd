"""The metrics of a component, as Prometheus would ask for them."""

from __future__ import annotations

from http.client import HTTPException
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

_ANSWER_S = 5.0
_DIRECT = build_opener(ProxyHandler({}))  # a proxy for the web knows nothing of what runs here


class NoMetrics(RuntimeError):
    """Nobody answers there, or somebody else."""


def scrape(component: str, address: str) -> dict[str, float]:
    """All of them by name, without the common prefix and the `_total` of counters; those of all labels together.
    Nothing if it does not answer, or nothing that makes sense: it may be busy, and is asked again."""
    try:
        return _read(component, _ask(address))
    except (OSError, HTTPException, ValueError):
        return {}


def check_metrics(component: str, address: str) -> None:
    """NoMetrics if those of this component are not there."""
    try:
        text = _ask(address)
        _read(component, text)
    except (OSError, HTTPException) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise NoMetrics(f"nobody tells metrics at {address}: {getattr(why, 'strerror', None) or why}") from error
    except ValueError as error:
        raise NoMetrics(f"what {address} tells are no metrics of Prometheus") from error
    if _prefix(component) not in text:
        raise NoMetrics(f"{address} tells no metrics of {component}")


def _prefix(component: str) -> str:
    return f"threadline_{component}_"


def _ask(address: str) -> str:
    with _DIRECT.open(f"http://{address}/metrics", timeout=_ANSWER_S) as answer:
        text: str = answer.read().decode()
    return text


def _read(component: str, text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(_prefix(component)).removesuffix("_total")
            found[name] = found.get(name, 0.0) + sample.value
    return found

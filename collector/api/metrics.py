"""What the API has done, for Prometheus and for its log: one line per request, and figures by route."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import inf
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from collector.api.head import as_get
from collector.api.problems import Problem, answer
from collector.api.readers import Readers
from collector.presence import Presence
from collector.store import StoreError

_LOG = logging.getLogger("collector.api")
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_LONG_S = 1.0
_MOST_SHOWN = 200
MOST_QUESTIONS = 1_000
MOST_STREAMS = 500
"""Of events: each stays for as long as it likes, so they have places of their own."""
_STREAM = "/v1/graph/stream"
_ALWAYS = ("/healthz", "/readyz", "/metrics")
"""Whoever looks after it has to see that it lives, and how much there is to do."""


class Metrics:
    """The figures of one application."""

    def __init__(self, readers: Readers, presence: Presence) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "threadline_api_requests", "requests", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "threadline_api_request_seconds", "time of requests", ["route"], buckets=_BUCKETS_S, registry=self.registry
        )
        self.running = Gauge("threadline_api_running", "requests that are being answered", registry=self.registry)
        self.registry.register(_StoreFigures(readers))
        self.registry.register(_PresenceFigures(presence))
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count(self, method: str, route: str, status: int, elapsed_s: float) -> None:
        """A request was answered."""
        name = (method, route, status)
        found = self._children.get(name)
        if found is None:
            found = self.requests.labels(method, route, status), self.seconds.labels(route)
            self._children[name] = found
        found[0].inc()
        found[1].observe(elapsed_s)


class _StoreFigures:
    """What the store counts: how much of everything there is."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def collect(self) -> Iterator[Metric]:
        try:
            counters = self._readers.quick().reader.counters()
        except StoreError:
            yield GaugeMetricFamily("threadline_store_up", "whether the store can be read", 0)
            return
        yield GaugeMetricFamily("threadline_store_up", "whether the store can be read", 1)
        for name, value in sorted(counters.items()):
            yield GaugeMetricFamily(f"threadline_store_{name}", f"{name.replace('_', ' ')} in the store", value)


class _PresenceFigures:
    """What the gateways tell, and what of it is left out."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence

    def collect(self) -> Iterator[Metric]:
        presence = self._presence
        states = list(presence.gateways().values())
        figures = {
            "gateways_online": states.count("online"),
            "gateways_offline": states.count("offline"),
            "clients": len(presence.known()),
            "clients_not_kept": presence.not_kept,
            "states_not_understood": presence.not_understood,
        }
        for name, value in figures.items():
            yield GaugeMetricFamily(f"threadline_presence_{name}", name.replace("_", " "), value)


class _Places:
    """How many requests of one kind are under way, and may be."""

    __slots__ = ("most", "taken", "taken_by")

    def __init__(self, taken_by: str, most: float) -> None:
        self.taken_by = taken_by
        self.most = most
        self.taken = 0


class Observed:
    """An application of which every request is counted, timed and logged. If very many are under way, it says so; HEAD
    is asked as GET."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._questions = _Places("requests are being answered", MOST_QUESTIONS)
        self._others = {each: _Places("", inf) for each in _ALWAYS}
        self._others[_STREAM] = _Places("streams of events are open", MOST_STREAMS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = answered = perf_counter()
        status = 0
        size_bytes = 0

        async def sent(message: Message) -> None:
            nonlocal answered, status, size_bytes
            if message["type"] == "http.response.start":
                status, answered = message["status"], perf_counter()
            elif message["type"] == "http.response.body":
                size_bytes += len(message.get("body", b""))
            await send(message)

        metrics = self._metrics
        metrics.running.inc()
        places = self._others.get(scope["path"], self._questions)
        places.taken += 1
        asked = scope["method"]
        if asked == "HEAD":
            scope = as_get(scope)
        try:
            if places.taken > places.most:
                await _overloaded(places, scope, receive, sent)
            else:
                await self._app(scope, receive, sent)
        finally:
            places.taken -= 1
            metrics.running.dec()
            elapsed_s = answered - begun  # a stream of events goes on
            route = _route(scope)
            method = asked if asked in _METHODS else "other"  # callers may make them up
            metrics.count(method, route, status, elapsed_s)
            level = _level(status, elapsed_s)
            if _LOG.isEnabledFor(level):
                _LOG.log(
                    level,
                    "request method=%s path=%s status=%d ms=%.1f bytes=%d",
                    *(asked, _shown(scope), status, elapsed_s * 1000, size_bytes),
                )


async def _overloaded(places: _Places, scope: Scope, receive: Receive, send: Send) -> None:
    problem = Problem(503, f"{places.most} {places.taken_by} already: wait a little", headers={"Retry-After": "1"})
    await answer(Request(scope), problem)(scope, receive, send)


def _route(scope: Scope) -> str:
    """The path of the route that a request has come to, not of the request: there are few of them."""
    path: str | None = getattr(scope.get("route"), "path", None)
    if path is None:
        return "none"
    return f"/v1{path}" if scope["path"].startswith("/v1/") and not path.startswith("/v1") else path


def _level(status: int, elapsed_s: float) -> int:
    """What a person would want to read of: what was refused, or took long. All of it with --verbose."""
    if status >= 500:
        return logging.WARNING
    return logging.INFO if status >= 400 or elapsed_s > _LONG_S else logging.DEBUG


def _shown(scope: Scope) -> str:
    """The path as it came, percent-encoded: one word, whatever it holds. Never the query: a token may be in it."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0][:_MOST_SHOWN].decode("ascii", "backslashreplace")

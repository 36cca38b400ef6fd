"""Metrics of components, and what is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.threadline.commands.strangers import answering, said
from threadline.lab import free_port
from threadline.load.scrape import NoMetrics, check_metrics, scrape

OURS = b"threadline_gateway_publishes_total 3.0\n"


@contextmanager
def telling(body: bytes) -> Iterator[str]:
    with answering(said(200, "text/plain", body)) as url:
        yield url.removeprefix("http://")


def test_metrics_are_told_by_their_names() -> None:
    with telling(OURS) as address:
        check_metrics("gateway", address)
        assert scrape("gateway", address) == {"publishes": 3.0}


def test_no_proxy_is_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with telling(OURS) as address:
        assert scrape("gateway", address) == {"publishes": 3.0}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>what is this?</html>", "are no metrics of Prometheus"),
        (b"\xff\xfe", "are no metrics of Prometheus"),
        (b"", "tells no metrics of gateway"),
        (b"threadline_translator_rows_total 1.0\n", "tells no metrics of gateway"),
    ],
)
def test_what_are_no_metrics_is_refused_at_the_start_and_ends_nothing_later(body: bytes, words: str) -> None:
    with telling(body) as address:
        with pytest.raises(NoMetrics, match=words):
            check_metrics("gateway", address)
        assert "publishes" not in scrape("gateway", address)


def test_nobody_to_tell_metrics_is_told() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(NoMetrics, match=f"nobody tells metrics at {address}: Connection refused"):
        check_metrics("gateway", address)

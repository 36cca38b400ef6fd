"""What a class has to do so that records can be forwarded in its words, and where such classes come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, runtime_checkable

import httpx

from collector.forwarding.errors import SystemUnusable
from collector.log_view import Entry

PROV_JSON = "prov-json"
DFANALYZER = "dfanalyzer"


class Request(NamedTuple):
    """One POST to the other system. Sent again, the same request must change nothing there."""

    url: str
    body: bytes
    content_type: str = "application/json"


class System(Protocol):
    """Another provenance system. It is made with the URL that the user gave.

    It may have an attribute `skipped`, a Counter of what it cannot say in its words: that is shown with all other
    counts.
    """

    def requests(self, entries: Sequence[Entry]) -> Iterable[Request]:
        """What to send, in this order, so that the other system knows of these records. They are of one shard, in the
        order of the log, and come again if they were not answered for. Does no I/O itself."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A system that must know of earlier records. What it remembers is kept with the position."""

    def memory(self) -> Any:
        """All that it has to know, as JSON can hold it."""
        ...

    def recall(self, memory: Any) -> None:
        """Go on with what `memory` gave in an earlier life."""
        ...


def system_named(name: str, url: str) -> System:
    """A system that comes with Threadline, or a user's own by `module:Class`."""
    _check_url(url)
    if name == PROV_JSON:
        from collector.forwarding.prov_json import ProvJson

        return ProvJson(url)
    if name == DFANALYZER:
        from collector.forwarding.dfanalyzer import DfAnalyzer

        return DfAnalyzer(url)
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise SystemUnusable(
            f"there is no system {name!r}, only {PROV_JSON}, {DFANALYZER} and module:Class of your own"
        )
    try:
        system = getattr(import_module(module), attribute)(url)
    except Exception as error:  # whatever a user's module does
        raise SystemUnusable(f"{name} cannot be used: {type(error).__name__}: {error}") from error
    if not callable(getattr(system, "requests", None)):
        raise SystemUnusable(f"{name} cannot be used: it has no method requests(entries)")
    made: System = system
    return made


def _check_url(url: str) -> None:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SystemUnusable(f"{url!r} is no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SystemUnusable(f"{shown_url(url)!r} is no URL such as http://127.0.0.1:8000/documents")


def shown_url(url: str) -> str:
    """A URL as people may see it: a password in it is not for logs."""
    return str(httpx.URL(url).copy_with(userinfo=b""))

"""An application over a store that a test fills: asked as a client would, without a network between."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from collector.api.app import Settings, create_app
from collector.store import StoreWriter
from tests.collector.store.graphs import QuickWriter

Json = dict[str, Any]
MOST_REFUSAL_BYTES = 8_000
"""Of an answer that says what is wrong."""


class Served:
    """The API, and the store behind it."""

    def __init__(self, client: TestClient, path: Path) -> None:
        self.client = client
        self.path = path

    def new_store(self) -> StoreWriter:
        """An empty store in the place of the one before."""
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        return QuickWriter(self.path)

    def get(self, path: str, status: int = 200, **parameters: Any) -> Json:
        """An answer, which has to have this status."""
        response = self.client.get(path, params={name.rstrip("_"): value for name, value in parameters.items()})
        assert response.status_code == status, response.text
        found: Json = response.json()
        return found

    def pages(self, path: str, **parameters: Any) -> list[Json]:
        """All pages of a list."""
        found = [self.get(path, **parameters)]
        while found[-1]["next"] is not None:
            found.append(self.get(path, **parameters, cursor=found[-1]["next"]))
        return found

    def every(self, path: str, of: str, **parameters: Any) -> list[Any]:
        """What all pages have of something."""
        return [each for page in self.pages(path, **parameters) for each in page[of]]

    def post(self, path: str, body: Mapping[str, Any], status: int = 200, **parameters: Any) -> Json:
        response = self.client.post(path, json=body, params=parameters)
        assert response.status_code == status, response.text
        found: Json = response.json()
        return found


@contextmanager
def serving(path: Path) -> Iterator[Served]:
    """The API over a store that need not be there yet."""
    with TestClient(create_app(Settings(path)), raise_server_exceptions=False) as client:
        yield Served(client, path)


def refused(served: Served, method: str, path: str, status: int, field: str | None, **request: Any) -> Json:
    """The problem that a request ends with."""
    response = served.client.request(method, path, **request)
    assert response.status_code == status, (path, request, response.text[:500])
    assert response.headers["content-type"] == "application/problem+json"
    assert len(response.content) < MOST_REFUSAL_BYTES
    told: Json = response.json()
    assert told["status"] == status
    assert told["title"] == HTTPStatus(status).phrase
    assert told["detail"]
    assert told["type"] == "about:blank"
    assert told["instance"]
    named = [each["field"] for each in told["errors"]]
    assert field in named if field else not named, (path, request, told)
    assert all(each["reason"] for each in told["errors"])
    return told


def refused_raw(served: Served, path: str, query: bytes = b"") -> Json:
    """The problem that a request ends with that no client would send."""
    told: list[MutableMapping[str, Any]] = []

    async def ask() -> None:
        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            told.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query}
        await served.client.app({**scope, "headers": [], "http_version": "1.1", "scheme": "http"}, receive, send)

    assert served.client.portal is not None
    served.client.portal.call(ask)
    body = b"".join(message.get("body", b"") for message in told)
    found: Json = json.loads(body)
    assert (b"content-type", b"application/problem+json") in told[0]["headers"]
    assert len(body) < MOST_REFUSAL_BYTES + len(path)
    return found

"""An application over a store that a test fills: asked as a client would, without a network between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from collector.api.app import Settings, create_app
from collector.store import StoreWriter
from tests.collector.store.graphs import QuickWriter

Json = dict[str, Any]


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

"""Which store a URL names, and who may open it how."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from collector.store.errors import BadStoreUrl, StoreUnavailable
from collector.store.reader import StoreReader
from collector.store.writer import StoreWriter


class Store:
    """A store by its place; nothing is opened before somebody reads or writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def writer(self) -> StoreWriter:
        """The one writer; the store is made if there is none. StoreInUse if another process writes to it."""
        return StoreWriter(self.path)

    def reader(self) -> StoreReader:
        """One of many readers. StoreMissing if no writer has made the store yet."""
        return StoreReader(self.path)


def open_store(url: str) -> Store:
    """The store at a URL: `sqlite:///FILE`, with a fourth slash for a path from the root."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        raise BadStoreUrl(f"{url!r}: there is no store of kind {parts.scheme!r}, only sqlite:///FILE")
    file = unquote(parts.path)[1:]
    if parts.netloc or not file or parts.query or parts.fragment:
        raise BadStoreUrl(f"{url!r} names no file: write sqlite:///FILE")
    path = Path(file)
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
    if is_folder:
        raise BadStoreUrl(f"{url!r}: {path} is a folder")
    return Store(path)

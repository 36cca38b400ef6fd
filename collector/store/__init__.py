"""The store of the live graph: one writer, which the pipeline hands its micro-batches, and any number of readers."""

from collector.store.errors import (
    BadStoreUrl,
    CursorExpired,
    OtherContent,
    StoreError,
    StoreInUse,
    StoreMissing,
    StoreUnavailable,
    StoreUnusable,
    TooSlow,
)
from collector.store.feed import Change, ChangeKind, Cursor
from collector.store.opening import Store, open_store
from collector.store.reader import StoreReader
from collector.store.retention import Removed
from collector.store.writer import StoreWriter, Written

__all__ = [
    "BadStoreUrl",
    "Change",
    "ChangeKind",
    "Cursor",
    "CursorExpired",
    "OtherContent",
    "Removed",
    "Store",
    "StoreError",
    "StoreInUse",
    "StoreMissing",
    "StoreReader",
    "StoreUnavailable",
    "StoreUnusable",
    "StoreWriter",
    "TooSlow",
    "Written",
    "open_store",
]

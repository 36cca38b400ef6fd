"""The device's durable queue: what was captured stays on disk until the cloud has it."""

from edge_agent.spool.errors import (
    EntryMissing,
    EntryTooLarge,
    SpoolError,
    SpoolFull,
    SpoolLocked,
    SpoolUnusable,
    SpoolUnwritable,
)
from edge_agent.spool.spool import Entry, Fsync, Spool, Unsynced
from edge_agent.spool.syncer import Syncer

__all__ = [
    "Entry",
    "EntryMissing",
    "EntryTooLarge",
    "Fsync",
    "Spool",
    "SpoolError",
    "SpoolFull",
    "SpoolLocked",
    "SpoolUnusable",
    "SpoolUnwritable",
    "Syncer",
    "Unsynced",
]

"""What a spool raises."""

from __future__ import annotations


class SpoolError(Exception):
    """Something is wrong with the spool; the text says what and in which folder."""


class SpoolUnusable(SpoolError):
    """The folder cannot be opened or read at all."""


class SpoolLocked(SpoolUnusable):
    """Another process has the folder open."""


class SpoolUnwritable(SpoolError):
    """The disk did not take it now. Nothing was kept of it; the next try may succeed."""


class SpoolFull(SpoolError):
    """It would exceed the size the spool may have. Nothing was written."""


class EntryTooLarge(SpoolError, ValueError):
    """It would not fit into an empty spool either."""


class EntryMissing(SpoolError, LookupError):
    """No such entry: released, not yet appended, or unreadable."""

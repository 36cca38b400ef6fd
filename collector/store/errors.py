"""What can go wrong with the store, one type per thing that its user would do about it."""

from __future__ import annotations


class StoreError(RuntimeError):
    """Anything about the store; the text says what and where."""


class BadStoreUrl(StoreError, ValueError):
    """The URL names no store that can be opened here."""


class StoreMissing(StoreError):
    """There is no store yet: a writer makes it."""


class StoreUnusable(StoreError):
    """The file is no store of ours, is damaged, or is of another version."""


class OtherStore(StoreUnusable):
    """A database of something else, or of a version that this one cannot read: nobody can say if it is sound."""


class OtherContent(StoreError):
    """What is told is not what the store was told before under the same name, or is of another log."""


class StoreInUse(StoreError):
    """Another writer has it: wait for it to end, and try again."""


class StoreUnavailable(StoreError):
    """Full disk, or busy for too long: nothing was changed; the same call may be made again later."""


class CursorExpired(StoreError):
    """Retention has removed changes that this reader of the feed has not seen: it has to begin anew."""


class TooSlow(StoreError):
    """An answer would have taken longer than whoever asks has time for."""

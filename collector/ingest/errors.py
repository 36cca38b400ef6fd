"""Why a document is not taken."""

from __future__ import annotations


class BadDocument(ValueError):
    """Something in a document is wrong: where (`field`, such as records[3].delivery.ts; empty if it is all of it), and
    what."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason

    def inside(self, around: str) -> BadDocument:
        """The same, told from further out."""
        if not self.field:
            return BadDocument(around, self.reason)
        return BadDocument(f"{around}{self.field}" if self.field[0] == "[" else f"{around}.{self.field}", self.reason)


class TooLarge(ValueError):
    """A document that is right but too large for one batch; the text says how to divide it."""


class NotAcknowledged(RuntimeError):
    """Nobody has said in time that the batch is in the log. It may be there or not: send the same one again."""


class OutOfOrder(RuntimeError):
    """Batches before this one are missing; `expected` is the first of them."""

    def __init__(self, batch: int, expected: int) -> None:
        super().__init__(f"batch {batch} came too soon: {expected} is the next one that is expected")
        self.expected = expected

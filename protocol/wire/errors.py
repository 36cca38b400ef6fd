"""What can be wrong with bytes that claim to be a batch."""

from __future__ import annotations


class MalformedBatch(ValueError):
    """Bytes that no agent of ours has written, or that were changed on the way."""


class UnknownCodec(MalformedBatch):
    """Whole, as far as can be told, but compressed in a way that cannot be read here."""

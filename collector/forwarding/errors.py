"""What can keep a forwarder from its work, one type per thing that its user would do about it."""

from __future__ import annotations


class ForwardingError(RuntimeError):
    """Anything about forwarding; the text says what, and what to do."""


class PositionUnusable(ForwardingError):
    """The position file cannot be read or written, or it belongs to something else."""


class PositionInUse(ForwardingError):
    """Another forwarder goes by this position file."""


class SystemUnusable(ForwardingError):
    """There is no such system, its URL is none, or its class cannot do what a system does."""

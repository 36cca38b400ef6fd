"""A row of the log between translators and all that is computed from it."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """What one agent batch says of one kind (`protocol.wire.sections.Kind`); `data` means nothing to the log."""

    kind: int
    agent: str
    nonce: int
    seq: int
    data: bytes

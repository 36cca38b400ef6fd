"""Exactly-once receipt of QoS 2 messages, whatever the network repeats or delays.

The gateway sends PUBLISH until we say PUBREC, then PUBREL until we say PUBCOMP; after that it may use the message id
again. A copy of the PUBLISH can overtake none of this but may arrive after all of it, so an id alone does not tell a
late copy from a new message: id and content together do. Completed exchanges are remembered for longer than a
datagram lives in a network.
"""

from __future__ import annotations

REMEMBER_S = 10.0
REMEMBER = 256


class Inbox:
    """The QoS 2 exchanges that are open, and those that ended a short time ago."""

    __slots__ = ("_ended", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._ended: dict[tuple[int, int], float] = {}

    def is_new(self, msg_id: int, topic: str | int, payload: bytes, now: float) -> bool:
        """Take in a PUBLISH: True for the first copy of a message, the one to deliver."""
        digest = hash((topic, payload))
        if self._open.get(msg_id) == digest:
            return False
        if now < self._ended.get((msg_id, digest), now):
            return False
        self._open.pop(msg_id, None)
        if len(self._open) >= REMEMBER:
            del self._open[next(iter(self._open))]
        self._open[msg_id] = digest
        return True

    def released(self, msg_id: int, now: float) -> None:
        """Take in a PUBREL: the gateway will not send this message again, but the network may."""
        digest = self._open.pop(msg_id, None)
        if digest is None:
            return
        key = (msg_id, digest)
        self._ended.pop(key, None)
        if len(self._ended) >= REMEMBER:
            del self._ended[next(iter(self._ended))]
        self._ended[key] = now + REMEMBER_S

    def clear(self) -> None:
        """A clean session begins: nothing of the old one will come."""
        self._open.clear()
        self._ended.clear()

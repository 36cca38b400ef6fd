"""The will of a client: given with CONNECT, changed or taken away later, one change at a time.

A change is two requests, WILLTOPICUPD and WILLMSGUPD, without message ids. A reconnect in the middle carries the new
will in its own handshake; only "no will any more" has to be asked for again, because CONNECT cannot say it.
"""

from __future__ import annotations

from edge_agent.transport.config import Will
from edge_agent.transport.pending import DeliveryFailed, Pending, Refused
from edge_agent.transport.wire import Flight, Wire
from protocol.mqttsn import ReturnCode, WillMsgResp, WillMsgUpd, WillTopicResp, WillTopicUpd


class _Change(Flight):
    __slots__ = ("message_leg", "pending", "started", "will")

    def __init__(self, will: Will | None, pending: Pending[None]) -> None:
        super().__init__()
        self.will = will
        self.pending = pending
        self.started = False
        self.message_leg = False

    def packet(self) -> WillTopicUpd | WillMsgUpd:
        will = self.will
        if will is None:
            return WillTopicUpd("")
        return WillMsgUpd(will.payload) if self.message_leg else WillTopicUpd(will.topic, will.qos, will.retain)


class WillKeeper:
    """The will as the application wants it, and the change that is on its way to the gateway."""

    def __init__(self, wire: Wire, will: Will | None) -> None:
        self._wire = wire
        self._change: _Change | None = None
        self._next: _Change | None = None
        self.current = will
        self.offered = will

    @property
    def idle(self) -> bool:
        return self._change is None

    def change(self, will: Will | None, pending: Pending[None]) -> None:
        """Make this the will. A change that has not begun is replaced."""
        self.current = will
        change = _Change(will, pending)
        if self._change is None or not self._change.started:
            replaced, self._change = self._change, change
        else:
            replaced, self._next = self._next, change
        if replaced is not None:
            self._wire.fail(replaced.pending, DeliveryFailed("a later will replaced it"))

    def pump(self, now: float) -> None:
        """Begin a change if one waits."""
        change = self._change
        if change is not None and not change.started and now >= self._wire.paused_until:
            change.started = True
            self._send(change, now)

    def _send(self, change: _Change, now: float) -> None:
        self._wire.send(change.packet(), now)
        self._wire.supervise(change, now)

    def timers(self, now: float) -> bool:
        """Send again what got no answer in time. False if the gateway is gone."""
        change = self._change
        if change is None or not change.started:
            return True
        if change.deadline <= now:
            if self._wire.gave_up(change):
                return False
            self._send(change, now)
        self._wire.sooner(change.deadline)
        return True

    def offer(self) -> Will | None:
        """A connection begins: the will its handshake is to carry."""
        self.offered = self.current
        return self.offered

    def online(self, now: float) -> None:
        """The connection stands, and its handshake carried the will that was offered, if there was one."""
        last = self._next or self._change
        if self._next is not None and self._change is not None:
            self._wire.fail(self._change.pending, DeliveryFailed("a later will replaced it"))
        if last is not None and last.will is not None and last.will == self.offered:
            self._wire.succeed(last.pending, None)
            last = None
        self._change, self._next = last, None

    def offline(self) -> None:
        """The connection is gone: a change begins anew with the next one."""
        if self._change is not None:
            self._change.rest()
            self._change.started = self._change.message_leg = False

    def on_topic_resp(self, message: WillTopicResp, now: float) -> None:
        change = self._answered(message.return_code, False, now)
        if change is None:
            return
        if change.will is None:
            self._finish(change)
        else:
            change.message_leg = True
            change.rest()
            self._send(change, now)

    def on_msg_resp(self, message: WillMsgResp, now: float) -> None:
        change = self._answered(message.return_code, True, now)
        if change is not None:
            self._finish(change)

    def fail_all(self, reason: str) -> None:
        """The end of the session."""
        for change in (self._change, self._next):
            if change is not None:
                self._wire.fail(change.pending, DeliveryFailed(f"change of the will: {reason}"))
        self._change = self._next = None

    def _answered(self, code: int, message_leg: bool, now: float) -> _Change | None:
        """The change that was waiting for this answer, if it was a yes."""
        change = self._change
        if change is None or not change.started or change.message_leg is not message_leg:
            self._wire.stats.duplicates += 1
            return None
        self._wire.answered(change, now)
        if code == ReturnCode.ACCEPTED:
            return change
        if code == ReturnCode.CONGESTION:
            change.rest()
            change.started = change.message_leg = False
            self._wire.congested(now)
        else:
            self._wire.fail(change.pending, Refused("a change of the will", code))
            self._change, self._next = self._next, None
        return None

    def _finish(self, change: _Change) -> None:
        self._wire.succeed(change.pending, None)
        self._change, self._next = self._next, None

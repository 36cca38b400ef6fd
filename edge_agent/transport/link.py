"""The life of a connection: connecting, keeping alive, sleeping, losing it, closing. Everything that changes `State`.

      IDLE --connect--> SEEKING --opened--> CONNECTING --CONNACK--> CONNECTED --sleep--> DOZING --DISCONNECT--> ASLEEP
                         ^   |                 |                        |                                      |  ^ |
           back-off over |   | unreachable     | no answer, refused     | lost                           check |  | |
                         |   v                 v                        v                                      v  | |
                         +-WAITING<------------+------------------------+-------------- lost -------------- AWAKE-+ |
                                                                                                      PINGRESP      |
      SEEKING <------------------------------------ wake, or work to do --------------------------------------------+

      any state --close--> CLOSING --DISCONNECT, or no answer--> CLOSED

In SEEKING the shell looks up the address of gateway number `gateway` and answers with `opened` or `unreachable`. A lost
connection is a pause, not an end: the parts of the session (`Part`) stop their timers and go on with the next one, and
a wanted sleep is resumed. One control packet may await its answer at a time (CONNECT and its will legs, PINGREQ,
DISCONNECT): `_control`.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from edge_agent.transport.config import MAX_DURATION_S
from edge_agent.transport.pending import ClientClosed, DeliveryFailed, Pending, Refused, TransportError
from edge_agent.transport.wills import WillKeeper
from edge_agent.transport.wire import NEVER, Flight, Wire
from protocol.dice import Dice
from protocol.mqttsn import (
    AnyMessage,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    ReturnCode,
    WillMsg,
    WillMsgReq,
    WillTopic,
    WillTopicReq,
)

_PING_AT = 0.8  # of the keep-alive time, so that a lost ping or two do not cost the connection
_CHECK_AT = 0.8  # of the announced sleep
_STABLE_S = 1.0  # a connection shorter than this counts as a failure
_AT_ONCE_S = 0.1
_REFUSED = 6  # failures that a refusal counts for: a person has to change something, so ask rarely
_ECHO_S = 5.0  # how long the network may delay a copy of the answer to our going to sleep
_GOODBYE_S = 3.0
_GOODBYE_AGAIN_S = 0.4  # often: a gateway that misses the goodbye thinks for long that the client is there


class State(Enum):
    IDLE = "idle"
    WAITING = "waiting"
    SEEKING = "seeking"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    DOZING = "dozing"
    ASLEEP = "asleep"
    AWAKE = "awake"
    CLOSING = "closing"
    CLOSED = "closed"


LISTENING = frozenset((State.CONNECTING, State.CONNECTED, State.DOZING, State.ASLEEP, State.AWAKE, State.CLOSING))
_SLEEPING = frozenset((State.DOZING, State.ASLEEP, State.AWAKE))


class Part(Protocol):
    """A part of the session that needs a connection to get on."""

    @property
    def idle(self) -> bool: ...
    def online(self, now: float) -> None: ...
    def offline(self) -> None: ...
    def pump(self, now: float) -> None: ...
    def timers(self, now: float) -> bool: ...
    def fail_all(self, reason: str) -> None: ...


class _Control(Flight):
    """The control packet that awaits its answer."""

    __slots__ = ("message",)

    def __init__(self, message: AnyMessage) -> None:
        super().__init__()
        self.message = message


class _Sleep:
    """A sleep the application wants, until it wants something else."""

    __slots__ = ("check_every_s", "drain_s", "duration_s", "pending")

    def __init__(self, duration_s: int, check_every_s: float, drain_s: float, pending: Pending[None]) -> None:
        self.duration_s = duration_s
        self.check_every_s = check_every_s
        self.drain_s = drain_s
        self.pending = pending


class Link:
    """The connection to one gateway at a time. `outbox` is the part that close waits for."""

    def __init__(self, wire: Wire, random: Dice, requests: Part, wills: WillKeeper, outbox: Part) -> None:
        self.state = State.IDLE
        self.gateway = 0
        self.last_error: TransportError | None = None
        self.refused = False
        self.clean = False
        self.connections = 0
        self.closing = False
        self.received = 0
        self.notices: list[str] = []
        self._config = wire.config
        self._wire = wire
        self._random = random
        self._wills = wills
        self._outbox = outbox
        self._parts: tuple[Part, ...] = (requests, wills, outbox)
        self._control: _Control | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._connected_at = 0.0
        self._resuming = False
        self._close_by = 0.0
        self._drain_until = 0.0
        self._sleep: _Sleep | None = None
        self._wake_wanted = False
        self._waking: list[Pending[None]] = []
        self._slept_at = -NEVER
        self._check_at = 0.0
        self._checks: list[Pending[int]] = []

    # Connecting

    def connect(self, now: float) -> None:
        """Begin to connect, and stay connected until closed."""
        if self.state is State.IDLE:
            self._enter(State.SEEKING)
            self._wire.sooner(now)

    def need_connection(self, now: float) -> None:
        """There is work that only a connected client can do."""
        if self.state is State.IDLE:
            self.connect(now)
        elif self.state in _SLEEPING:
            self._wake(now)

    def opened(self, now: float) -> bool:
        """In SEEKING: there is an address to send to. False if nobody wants to connect any more."""
        if self.state is not State.SEEKING:
            return False
        self._enter(State.CONNECTING)
        self._wire.last_received = self._wire.last_sent = now
        self.clean = self._config.clean and not self._resuming
        will = self._wills.offer() is not None
        self._begin(Connect(self._config.client_id, self._config.keep_alive_s, self.clean, will), now)
        return True

    def unreachable(self, reason: str, now: float) -> None:
        """In SEEKING: there is no such gateway at the moment."""
        if self.state is State.SEEKING:
            self._failed(TransportError(reason), now)

    def on_connack(self, message: ConnAck, now: float) -> None:
        """In CONNECTING: the answer we wait for."""
        self._answered(now)
        if message.return_code != ReturnCode.ACCEPTED:
            self.refused = message.return_code != ReturnCode.CONGESTION
            if self.refused:
                self._failures += _REFUSED * self._config.gateways
            self._failed(Refused("the connection", message.return_code), now)
            return
        self.refused = False
        self.last_error = None
        self._resuming = False
        self._connected_at = now
        self.connections += 1
        self._enter(State.CONNECTED)
        self.notices.append(f"connected gateway={self.gateway}")
        for pending in self._waking:
            self._wire.succeed(pending, None)
        self._waking.clear()
        if self._sleep is not None:
            self._drain_until = now + self._sleep.drain_s
        for part in self._parts:
            part.online(now)
        self._wire.sooner(now)

    def on_will_topic_req(self, message: WillTopicReq, now: float) -> None:
        if self.state is State.CONNECTING:
            will = self._wills.offered
            self._answered(now)
            self._begin(WillTopic(will.topic, will.qos, will.retain) if will else WillTopic(""), now)
        else:
            self._wire.stats.count_unexpected("willtopicreq")

    def on_will_msg_req(self, message: WillMsgReq, now: float) -> None:
        if self.state is State.CONNECTING:
            will = self._wills.offered
            self._answered(now)
            self._begin(WillMsg(will.payload if will else b""), now)
        else:
            self._wire.stats.count_unexpected("willmsgreq")

    def renew(self, now: float) -> None:
        """Connect anew: what the gateway has of ours may not be what we have told it."""
        if self.state is State.CONNECTED:
            self._lost(TransportError("given up, to begin anew"), now, move_on=False)

    # Losing the connection

    def on_disconnect(self, message: Disconnect, now: float) -> None:
        if self.state is State.CLOSING and now - self._slept_at >= _ECHO_S:
            self._end()
        elif self.state is State.DOZING:
            self._answered(now)
            self._slept_at = now
            self._suspend()
            self._fall_asleep(now)
        elif now - self._slept_at < _ECHO_S:
            # Most likely a copy of the gateway's answer when we fell asleep. If not, our next packet gets another;
            # a goodbye is repeated until its time is over, since this may not be the answer to it.
            self._wire.stats.duplicates += 1
        elif self.state in (State.CONNECTED, State.AWAKE):
            self._lost(TransportError("the gateway ended the connection"), now, move_on=False)
        else:
            self._wire.stats.count_unexpected("disconnect")

    def _lost(self, error: TransportError, now: float, move_on: bool) -> None:
        """The connection is gone. Nothing else is."""
        self._failures = 0 if now - self._connected_at >= _STABLE_S else self._failures + 1
        self._wire.stats.reconnects += 1
        self.notices.append(f"connection lost reason={str(error)!r}")
        self._suspend()
        self._retry(error, now, move_on)

    def _failed(self, error: TransportError, now: float) -> None:
        """An attempt to connect came to nothing."""
        self._failures += 1
        self.notices.append(f"connecting failed attempt={self._failures} reason={str(error)!r}")
        self._retry(error, now, move_on=True)

    def _retry(self, error: TransportError, now: float, move_on: bool) -> None:
        """Try again after a while: at once the first time, then later and later. Every gateway gets its turn."""
        config = self._config
        self.last_error = error
        self._control = None
        self._resuming = False
        if move_on and config.gateways > 1:
            self.gateway = (self.gateway + 1) % config.gateways
            self._wire.new_gateway()
        rounds = self._failures // config.gateways
        if rounds:
            delay = min(config.reconnect_first_s * 2 ** min(rounds - 1, 16), config.reconnect_most_s)
            delay *= (1 + self._random.random()) / 2
        else:
            delay = _AT_ONCE_S * self._random.random()
        self._retry_at = now + delay
        self._enter(State.WAITING)
        self._wire.sooner(self._retry_at)

    def _suspend(self) -> None:
        """Stop the timers of everything that needs a connection."""
        for part in self._parts:
            part.offline()
        for pending in self._checks:
            self._wire.fail(pending, DeliveryFailed("the connection was lost"))
        self._checks.clear()

    # Time

    def tick(self, now: float) -> None:
        """Do what is due: timers first, then whatever may be sent."""
        if now >= self._wire.wake_at:
            self._timers(now)
        if self.state is State.CONNECTED:
            for part in self._parts:
                part.pump(now)
            if self._sleep is not None and not self.closing:
                self._doze_when_done(now)
        if self.closing:
            self._part_when_done(now)

    def heard(self, now: float) -> None:
        """The gateway sent something. While it hands out what it kept for us, the ping need not be repeated."""
        if self.state is State.AWAKE and self._control is not None:
            self._control.rest()
            self._wire.supervise(self._control, now)

    def _timers(self, now: float) -> None:
        wire = self._wire
        wire.wake_at = NEVER
        control = self._control
        if control is not None and control.deadline <= now:
            self._repeat(control, now)
        if self._control is not None:
            wire.sooner(self._control.deadline)
        if self.state is State.WAITING:
            if now >= self._retry_at:
                self._enter(State.SEEKING)
            else:
                wire.sooner(self._retry_at)
        elif self.state is State.CONNECTED:
            if all(part.timers(now) for part in self._parts):
                self._keep_alive(now)
            else:
                self._lost(TransportError("the gateway does not answer"), now, move_on=True)
        elif self.state is State.ASLEEP and self._sleep is not None and self._sleep.check_every_s:
            if now < self._check_at:
                wire.sooner(self._check_at)
            elif not self._outbox.idle:
                self._wake(now)  # the last wake was too short for them
            else:
                self._begin_check(now)
        elif self.state is State.CLOSING:
            if now >= self._close_by:
                self._end()
            else:
                wire.sooner(self._close_by)
        if (self.closing or self._sleep is not None) and self._drain_until > now:
            wire.sooner(self._drain_until)

    def _keep_alive(self, now: float) -> None:
        if self._control is not None:
            return
        wire = self._wire
        due = min(wire.last_sent, wire.last_received) + self._config.keep_alive_s * _PING_AT
        if now >= due:
            self._begin(PingReq(), now)
        else:
            wire.sooner(due)

    def _begin(self, message: AnyMessage, now: float) -> None:
        """Send a control packet and await its answer, instead of the one before."""
        self._control = control = _Control(message)
        self._wire.send(message, now)
        self._await_answer(control, now)

    def _await_answer(self, control: _Control, now: float) -> None:
        self._wire.supervise(control, now)
        if self.state is State.CLOSING:
            control.deadline = min(control.deadline, now + _GOODBYE_AGAIN_S)
            self._wire.sooner(control.deadline)

    def _answered(self, now: float) -> None:
        if self._control is not None:
            self._wire.answered(self._control, now)
            self._control = None

    def _repeat(self, control: _Control, now: float) -> None:
        """A control packet got no answer in time."""
        state = self.state
        if state is State.CONNECTING:
            over = control.attempts >= self._config.connect_attempts
        elif state is State.CLOSING:
            over = False  # `_timers` ends it
        else:
            over = self._wire.gave_up(control)
        if not over:
            self._wire.send(control.message, now)
            self._await_answer(control, now)
        elif state is State.CONNECTING:
            self._failed(TransportError("the gateway does not answer CONNECT"), now)
        else:
            self._lost(TransportError("the gateway does not answer"), now, move_on=True)

    def _enter(self, state: State) -> None:
        self.state = state
        self._wire.news = True

    # Sleeping

    def sleep(
        self, duration_s: int, check_every_s: float | None, drain_s: float, pending: Pending[None], now: float
    ) -> None:
        """Sleep until `wake`, as soon as nothing is in flight or `drain_s` is over. Work that comes meanwhile wakes the
        client for as long as it takes. `check_every_s=0`: nobody but `check` asks the gateway for messages."""
        if not 1 <= duration_s <= MAX_DURATION_S:
            raise ValueError(f"a sleep lasts 1 to {MAX_DURATION_S} s, not {duration_s}")
        every = duration_s * _CHECK_AT if check_every_s is None else check_every_s
        if not 0 <= every <= duration_s:
            raise ValueError(f"check_every_s is 0 to the sleep's {duration_s}, not {every}")
        self._end_sleep("another sleep was asked for")
        self._sleep = _Sleep(duration_s, every, drain_s, pending)
        self._drain_until = now + drain_s
        self.need_connection(now)  # from a sleeping client too: the gateway takes a duration from a connected one
        self._wire.sooner(now)

    def check(self, pending: Pending[int], now: float) -> None:
        """Fetch what the gateway keeps for this sleeping client; the result is how many messages came."""
        if self.state is State.ASLEEP:
            self._begin_check(now)
        elif self.state is not State.AWAKE:
            raise TransportError(f"the client is {self.state.value}, not asleep")
        self._checks.append(pending)

    def wake(self, pending: Pending[None], now: float) -> None:
        """Connect again and stay so."""
        self._end_sleep("woken up before it began")
        if self.state is State.CONNECTED:
            self._wire.succeed(pending, None)
            return
        self._waking.append(pending)
        self.need_connection(now)

    def _doze_when_done(self, now: float) -> None:
        sleep = self._sleep
        if sleep is not None and (now >= self._drain_until or all(part.idle for part in self._parts)):
            self._enter(State.DOZING)
            self._begin(Disconnect(sleep.duration_s), now)

    def _fall_asleep(self, now: float) -> None:
        sleep = self._sleep
        self._enter(State.ASLEEP)
        if self._wake_wanted or sleep is None:
            self._wake(now)
            return
        self._wire.succeed(sleep.pending, None)
        self._check_at = now + sleep.check_every_s
        self._wire.sooner(self._check_at)

    def _begin_check(self, now: float) -> None:
        self._enter(State.AWAKE)
        self.received = 0
        self._begin(PingReq(self._config.client_id), now)

    def _end_check(self) -> None:
        for pending in self._checks:
            self._wire.succeed(pending, self.received)
        self._checks.clear()

    def on_pingresp(self, message: PingResp, now: float) -> None:
        if self.state is State.AWAKE:
            self._answered(now)
            self._end_check()
            self._fall_asleep(now)
        elif self.state is State.CONNECTED and self._control is not None:
            self._answered(now)
            self._wire.sooner(now)
        else:
            self._wire.stats.count_unexpected("pingresp")

    def on_pingreq(self, message: PingReq, now: float) -> None:
        if self.state in LISTENING:
            self._wire.send(PingResp(), now)

    def _end_sleep(self, reason: str) -> None:
        if self._sleep is not None:
            self._wire.fail(self._sleep.pending, DeliveryFailed(f"sleep: {reason}"))
            self._sleep = None

    def _wake(self, now: float) -> None:
        """There is work for a connected client. While the gateway has yet to agree to the sleep, wait for that."""
        if self.state is State.DOZING:
            self._wake_wanted = True
            return
        self._wake_wanted = False
        self._end_check()
        self._control = None
        self._resuming = True
        self._enter(State.SEEKING)
        self._wire.sooner(now)

    # Closing

    def refuse_if_closing(self) -> None:
        """ClientClosed if nothing new may come."""
        if self.closing:
            raise ClientClosed("the client is closed")

    def close(self, drain_s: float, now: float) -> None:
        """Take nothing new, finish what is in flight (for `drain_s` at most), say goodbye."""
        if self.closing:
            return
        self.closing = True
        self._drain_until = now + drain_s
        self._end_sleep("the client was closed")
        if self.state in _SLEEPING and not self._outbox.idle:
            self._wake(now)
        self._wire.sooner(now)

    def abort(self, reason: str) -> None:
        """End at once: everything that was not done fails with this reason."""
        self.closing = True
        self._end(reason)

    def _part_when_done(self, now: float) -> None:
        state = self.state
        if state in (State.CLOSING, State.CLOSED) or not (self._outbox.idle or now >= self._drain_until):
            return
        if state in (State.CONNECTED, State.ASLEEP, State.AWAKE, State.DOZING):
            self._close_by = now + _GOODBYE_S
            self._enter(State.CLOSING)
            self._begin(Disconnect(), now)
            self._wire.sooner(self._close_by)
            return
        if state is State.CONNECTING:
            self._wire.send(Disconnect(), now)
        self._end()

    def _end(self, reason: str = "the client was closed before it was done") -> None:
        self._control = None
        for part in self._parts:
            part.fail_all(reason)
        self._end_sleep(reason)
        for check in self._checks:
            self._wire.fail(check, DeliveryFailed(f"check: {reason}"))
        for waking in self._waking:
            self._wire.fail(waking, DeliveryFailed(f"wake: {reason}"))
        self._checks.clear()
        self._waking.clear()
        self._wire.wake_at = NEVER
        self._enter(State.CLOSED)

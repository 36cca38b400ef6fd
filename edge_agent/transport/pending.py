"""What an application holds while the client works: pending results, received messages, counters and errors.

A `Pending` has the face of `concurrent.futures.Future` and a tenth of its cost, because one is made per published
message on boards where a lock per message shows: all of a client's pendings wait on the client's one condition.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread, current_thread
from typing import Generic, TypeVar, cast

from protocol.mqttsn import ReturnCode
from protocol.structs import Struct, made

T = TypeVar("T")


class TransportError(Exception):
    """Base of everything the client raises besides ValueError and TimeoutError."""


class QueueFull(TransportError):
    """The client holds as many undelivered messages as it may. Nothing was taken."""


class ClientClosed(TransportError):
    """The client is closed, or closing, and takes nothing new."""


class DeliveryFailed(TransportError):
    """A request or an accepted message came to nothing; the text says why."""


class Refused(DeliveryFailed):
    """The gateway said no."""

    def __init__(self, what: str, code: int) -> None:
        name = ReturnCode(code).name.lower().replace("_", " ") if code in _RETURN_CODES else f"code {code}"
        super().__init__(f"the gateway refused {what}: {name}")
        self.code = code


_RETURN_CODES = frozenset(int(code) for code in ReturnCode)


class Waiters(Condition):
    """The one condition of a client. Nobody may wait on the thread that has to bring about what is waited for."""

    thread: Thread | None = None

    def refuse_on_own_thread(self) -> None:
        if current_thread() is self.thread:
            raise RuntimeError("waiting in a callback would never end: use add_done_callback")


class Pending(Generic[T]):
    """A result that will come. In a callback, do not wait for one: use `add_done_callback`."""

    __slots__ = ("_callbacks", "_done", "_error", "_value", "_waiters")

    def __init__(self, waiters: Waiters | None = None) -> None:
        self._waiters = waiters or Waiters()
        self._callbacks: list[Callable[[Pending[T]], object]] | None = None
        self._done = False
        self._error: Exception | None = None
        self._value: T | None = None

    def done(self) -> bool:
        """Whether it has come to a good or a bad end."""
        return self._done

    def result(self, timeout: float | None = None) -> T:
        """The result, or the error raised. TimeoutError if neither is there in time."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return cast(T, self._value)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The error it ended with, None if it ended well. TimeoutError if it has not ended in time."""
        if not self._done:
            self._waiters.refuse_on_own_thread()
            with self._waiters:
                if not self._waiters.wait_for(self.done, timeout):
                    raise TimeoutError(f"no answer within {timeout} s")
        return self._error

    def add_done_callback(self, callback: Callable[[Pending[T]], object]) -> None:
        """Call `callback` with this object when it is done: on the client's thread, or here and now if it is."""
        with self._waiters:
            if not self._done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def settle(self, value: T | None, error: Exception | None) -> bool:
        """For the client, with its lock held: set the end. True if callbacks want to be run without the lock."""
        if self._done:
            return False
        self._value, self._error, self._done = value, error, True
        return self._callbacks is not None

    def take_callbacks(self) -> list[Callable[[Pending[T]], object]]:
        """For the client: the callbacks, once."""
        callbacks, self._callbacks = self._callbacks or [], None
        return callbacks


Delivery = Pending[None]


class Message(Struct):
    """A received message. `topic` is a number only for a predefined id that has no name here."""

    topic: str | int
    payload: bytes
    qos: int
    retain: bool


class Stats(Struct):
    """Counters since the start, and the present state. `delivered` is by QoS, `malformed`, `unexpected` by reason."""

    sent: int = 0
    resent: int = 0
    received: int = 0
    duplicates: int = 0
    congestion: int = 0
    reconnects: int = 0
    foreign: int = 0
    send_errors: int = 0
    callback_errors: int = 0
    delivered: dict[int, int] = made(factory=lambda: {-1: 0, 0: 0, 1: 0, 2: 0})
    malformed: dict[str, int] = made(factory=dict)
    unexpected: dict[str, int] = made(factory=dict)
    state: str = ""
    queued: int = 0
    queued_bytes: int = 0
    in_flight: int = 0
    round_trip_s: float | None = None

    def count_unexpected(self, reason: str) -> None:
        self.unexpected[reason] = self.unexpected.get(reason, 0) + 1

    def count_malformed(self, reason: str) -> None:
        self.malformed[reason] = self.malformed.get(reason, 0) + 1

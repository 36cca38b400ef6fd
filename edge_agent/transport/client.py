"""The client an application uses: one socket and one thread around a `ClientSession`.

The thread sleeps in `select` until a datagram comes, a timer of the session is due, or a caller gave it work; callers
hold the lock only to talk to the session, never while anything is sent or a callback runs. All callbacks run on that
thread, one at a time: a callback may publish, but must not wait for a result.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Any

from edge_agent.background import Background
from edge_agent.logger import Logger
from edge_agent.transport.address import SocketAddress, resolve
from edge_agent.transport.config import SessionConfig, Will
from edge_agent.transport.link import State
from edge_agent.transport.pending import Delivery, Message, Pending, QueueFull, Stats, TransportError, Waiters
from edge_agent.transport.requests import OnMessage
from edge_agent.transport.session import ClientSession
from protocol.address import Address, format_address, parse_address
from protocol.dice import Dice
from protocol.mqttsn import MAX_PACKET_BYTES, RetryPolicy
from protocol.structs import replaced

_LOG = Logger(__name__)
_RECEIVE_BURST = 64
_JOIN_S = 5.0

Payload = bytes | bytearray | memoryview


class Client:
    """An MQTT-SN client that stays connected to one of its gateways until it is closed.

    >>> with Client("127.0.0.1:1884", client_id="car-7") as client:  # doctest: +SKIP
    ...     client.publish("cars/7/speed", b"13.9").result(timeout=10)

    `gateways` is an address or several, tried in turn. `connect=False` puts connecting off until something needs it,
    so a device that only publishes with QoS -1 never does. All methods may be called from any thread.
    """

    def __init__(
        self,
        gateways: Address | Sequence[Address],
        client_id: str,
        *,
        keep_alive_s: int = 60,
        clean: bool = False,
        will: Will | None = None,
        predefined: Mapping[str, int] | None = None,
        window: int = 16,
        max_queued: int = 1_000,
        max_queued_bytes: int = 1 << 20,
        retry: RetryPolicy | None = None,
        connect: bool = True,
        random: Dice | None = None,
    ) -> None:
        self._gateways = _addresses(gateways)
        config = SessionConfig(
            client_id,
            keep_alive_s=keep_alive_s,
            clean=clean,
            will=will,
            predefined=predefined or {},
            gateways=len(self._gateways),
            window=window,
            max_queued=max_queued,
            max_queued_bytes=max_queued_bytes,
        )
        self._session = ClientSession(config if retry is None else replaced(config, retry=retry), random)
        self._stats = self._session.stats()
        self._waiters = Waiters()
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._parked = False
        self._socket: socket.socket | None = None
        self._peer: SocketAddress | None = None
        self._choice = -1
        self._connections = 0
        self._unsent: list[bytes] = []
        self._buffer = memoryview(bytearray(MAX_PACKET_BYTES))

    def start(self) -> Client:
        """Start the thread, and connecting. Once; `with` does it."""
        with self._waiters:
            if self._thread is None and self._session.state is not State.CLOSED:
                self._selector = selectors.DefaultSelector()
                self._waker, self._wakened = socket.socketpair()
                self._wakened.setblocking(False)
                self._selector.register(self._wakened, selectors.EVENT_READ)
                if self._connect:
                    self._session.connect(monotonic())
                name = f"mqttsn-{self._session.config.client_id}"
                self._thread = Background(target=self._run, name=name, daemon=True)
                self._waiters.thread = self._thread
                self._thread.start()
        return self

    def __enter__(self) -> Client:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Sending

    def publish(
        self, topic: str | int, payload: Payload, qos: int = 1, retain: bool = False, timeout: float | None = None
    ) -> Delivery:
        """Take a message and deliver it, however long that takes.

        `topic` is a name, a two-octet short name or a predefined id. The result is done when the message was sent
        (QoS 0, -1), acknowledged (1) or its exchange is complete (2). QueueFull if the client holds too much, at once
        or, with `timeout`, if there is still no room after so many seconds. ValueError if it can never be sent.
        """
        data = payload if type(payload) is bytes else bytes(memoryview(payload))
        pending: Delivery = Pending(self._waiters)
        with self._waiters:
            now = monotonic()
            deadline = None if timeout is None else now + timeout
            while True:
                try:
                    self._session.publish(topic, data, qos, retain, pending, now)
                except QueueFull:
                    if deadline is None or now >= deadline or threading.current_thread() is self._thread:
                        raise
                    self._waiters.wait(deadline - now)
                    now = monotonic()
                else:
                    self._wake_thread()
                    return pending

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message taken so far, or meanwhile, has come to an end. TimeoutError if that is too long."""
        self._waiters.refuse_on_own_thread()
        with self._waiters:
            if not self._waiters.wait_for(lambda: self._session.idle, timeout):
                raise TimeoutError(f"{self._session.stats().queued} messages are undelivered after {timeout} s")

    # Receiving

    def subscribe(self, topic: str | int, callback: OnMessage, qos: int = 1) -> Pending[int]:
        """Call `callback` with every `Message` the filter covers, until unsubscribed. The result is the granted QoS.

        `topic` is a filter, a short name or a predefined id. Subscribing again to the same one replaces the callback.
        """
        pending: Pending[int] = Pending(self._waiters)
        return self._ask(pending, lambda now: self._session.subscribe(topic, qos, callback, pending, now))

    def unsubscribe(self, topic: str | int) -> Pending[None]:
        """Stop calling the callback, but for a message just being handed to it. The result is done when the gateway has
        stopped sending."""
        pending: Pending[None] = Pending(self._waiters)
        return self._ask(pending, lambda now: self._session.unsubscribe(topic, pending, now))

    # The connection

    @property
    def connected(self) -> bool:
        """Whether the gateway has us as an active client, as far as we know."""
        return self._session.state is State.CONNECTED

    def wait_connected(self, timeout: float | None = None) -> None:
        """Wait for the connection. TimeoutError says why there is none; `Refused` if the gateway will not have us."""
        self._waiters.refuse_on_own_thread()
        session = self._session
        with self._waiters:
            session.connect(monotonic())
            self._wake_thread()
            done = self._waiters.wait_for(
                lambda: session.state in (State.CONNECTED, State.CLOSED) or session.refusal, timeout
            )
            if session.state is State.CONNECTED:
                return
            if session.refusal is not None:
                raise session.refusal
            if done:
                raise TransportError("the client is closed")
            raise TimeoutError(f"not connected after {timeout} s: {session.last_error or session.state.value}")

    def set_will(self, will: Will | None) -> Pending[None]:
        """Change the will, or take it away with None."""
        pending: Pending[None] = Pending(self._waiters)
        return self._ask(pending, lambda now: self._session.set_will(will, pending, now))

    def sleep(self, duration_s: int, *, check_every_s: float | None = None, drain_s: float = 10.0) -> Pending[None]:
        """Sleep until `wake`. The result is done when the gateway knows.

        Messages in flight are finished first, for `drain_s` at most. While asleep, the client asks for its messages
        every 0.8 of `duration_s` (or `check_every_s`; 0: only in `check`), and whatever is published or subscribed
        wakes it for as long as that takes.
        """
        pending: Pending[None] = Pending(self._waiters)
        return self._ask(pending, lambda now: self._session.sleep(duration_s, check_every_s, drain_s, pending, now))

    def check(self) -> Pending[int]:
        """While asleep: fetch the messages the gateway keeps. The result is their number."""
        pending: Pending[int] = Pending(self._waiters)
        return self._ask(pending, lambda now: self._session.check(pending, now))

    def wake(self) -> Pending[None]:
        """End the sleep. The result is done when connected."""
        pending: Pending[None] = Pending(self._waiters)
        return self._ask(pending, lambda now: self._session.wake(pending, now))

    def renew(self) -> None:
        """Connect anew, if connected: all topics are registered and all subscriptions made again. Nothing is lost."""
        with self._waiters:
            self._session.renew(monotonic())
            self._wake_thread()

    def close(self, timeout: float = 5.0) -> None:
        """Take nothing new, try for `timeout` to finish what was taken, then say goodbye for 3 s at most. What is not
        done by then fails with a reason."""
        with self._waiters:
            self._session.close(timeout, monotonic())
            self._wake_thread()
            if self._thread is None:
                self._session.tick(monotonic() + timeout)
                self._waiters.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout + _JOIN_S)

    def stats(self) -> Stats:
        """A copy of the counters and the present state."""
        with self._waiters:
            stats = self._session.stats()
            return replaced(
                stats,
                delivered=dict(stats.delivered),
                malformed=dict(stats.malformed),
                unexpected=dict(stats.unexpected),
            )

    # The thread

    def _ask(self, pending: Pending[Any], call: Callable[[float], None]) -> Pending[Any]:
        with self._waiters:
            call(monotonic())
            self._wake_thread()
        return pending

    def _wake_thread(self) -> None:
        """With the lock held: make the thread look at the session, if it is not about to."""
        if self._parked:
            self._parked = False
            self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            _LOG.exception("client stopped by a defect client_id=%s", self._session.config.client_id)
            with self._waiters:
                self._session.abort("the client stopped by a defect, see the log")
                self._waiters.notify_all()
        finally:
            with self._waiters:
                self._parked = False
                self._release()

    def _loop(self) -> None:
        session, waiters = self._session, self._waiters
        received: list[bytes] = []
        while True:
            with waiters:
                now = monotonic()
                self._parked = False
                for datagram in received:
                    session.receive(datagram, now)
                if self._unsent:
                    session.datagrams[:0] = self._unsent
                session.tick(now)
                datagrams = session.datagrams.copy()
                session.datagrams.clear()
                delivered, session.delivered = session.delivered, []
                notices = session.notices.copy()
                session.notices.clear()
                settled = session.settled.copy()
                session.settled.clear()
                if session.take_news():
                    waiters.notify_all()
                state = session.state
                deadline = session.next_deadline()
                timeout = None if deadline is None else max(0.0, deadline - now)
                if session.backlog or state is State.SEEKING:
                    timeout = 0.0
                self._parked = True
            for notice in notices:
                _LOG.info("%s client_id=%s", notice, session.config.client_id)
            self._unsent = self._transmit(datagrams) if datagrams else []
            if delivered or settled:
                self._call_back(delivered, settled)
            if state is State.CLOSED:
                return
            if state is State.SEEKING:
                self._seek()
            received = self._wait(timeout)

    def _wait(self, timeout: float | None) -> list[bytes]:
        """Wait for something to do; the datagrams that came from the gateway."""
        received: list[bytes] = []
        if self._socket is not None and self._unsent:
            self._selector.modify(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._wakened:
                self._wakened.recv(64)
            else:
                self._receive(received)
        if self._socket is not None and self._unsent:
            self._selector.modify(self._socket, selectors.EVENT_READ)
        return received

    def _receive(self, received: list[bytes]) -> None:
        endpoint, buffer = self._socket, self._buffer
        assert endpoint is not None
        try:
            while len(received) < _RECEIVE_BURST:
                size, sender = endpoint.recvfrom_into(buffer)
                if self._peer is not None and sender[:2] == self._peer[:2]:
                    received.append(bytes(buffer[:size]))
                else:
                    self._stats.foreign += 1
        except BlockingIOError:
            pass
        except OSError as error:
            _LOG.debug("receive failed error=%s", error)

    def _transmit(self, datagrams: list[bytes]) -> list[bytes]:
        """Send; what the socket would not take yet is returned. Other errors are what retransmission is for."""
        if self._peer is None:
            self._seek_unconnected()
        endpoint, peer = self._socket, self._peer
        if endpoint is None or peer is None:
            self._stats.send_errors += len(datagrams)
            return []
        for index, datagram in enumerate(datagrams):
            try:
                endpoint.sendto(datagram, peer)
            except BlockingIOError:
                return datagrams[index:]
            except OSError as error:
                self._stats.send_errors += 1
                _LOG.debug("send failed bytes=%d error=%s", len(datagram), error)
        return []

    def _call_back(self, delivered: list[tuple[Message, list[OnMessage]]], settled: list[Pending[object]]) -> None:
        """Run what the application gave us, without the lock. Its errors are its own, but they are not hidden."""
        for pending in settled:
            for done in pending.take_callbacks():
                try:
                    done(pending)
                except (Exception, SystemExit):
                    self._stats.callback_errors += 1
                    _LOG.exception("callback of a pending failed")
        for message, routes in delivered:
            for on_message in routes:
                try:
                    on_message(message)
                except (Exception, SystemExit):
                    self._stats.callback_errors += 1
                    _LOG.exception("callback of a subscription failed topic=%s", message.topic)

    def _seek(self) -> None:
        """Look up the gateway the session wants to talk to. Takes as long as the name service does: no lock is held."""
        host, port = self._gateways[self._session.gateway]
        if self._connections == self._session.connections:
            self._choice += 1  # the last attempt failed: the name may have another address
        self._connections = self._session.connections
        try:
            self._aim(host, port)
        except OSError as error:
            with self._waiters:
                self._session.unreachable(f"{format_address(host, port)}: {error}", monotonic())
        else:
            with self._waiters:
                self._session.opened(monotonic())

    def _seek_unconnected(self) -> None:
        """QoS -1 before any connection: the first gateway is as good as any."""
        host, port = self._gateways[self._session.gateway]
        try:
            self._aim(host, port)
        except OSError as error:
            _LOG.warning("no gateway to send to address=%s error=%s", format_address(host, port), error)

    def _aim(self, host: str, port: int) -> None:
        """Set the peer, with a socket of its address family."""
        found = resolve(host, port)
        family, peer = found[self._choice % len(found)]
        if self._socket is not None and self._socket.family != family:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        if self._socket is None:
            endpoint = socket.socket(family, socket.SOCK_DGRAM)
            endpoint.setblocking(False)
            self._selector.register(endpoint, selectors.EVENT_READ)
            self._socket = endpoint
        self._peer = peer

    def _release(self) -> None:
        self._selector.close()
        self._waker.close()
        self._wakened.close()
        if self._socket is not None:
            self._socket.close()


def _addresses(gateways: Address | Sequence[Address]) -> list[tuple[str, int]]:
    if isinstance(gateways, str):
        return [parse_address(gateways)]
    if len(gateways) == 2 and isinstance(gateways[0], str) and isinstance(gateways[1], int):
        return [parse_address((gateways[0], gateways[1]))]
    addresses = [parse_address(address) for address in gateways if not isinstance(address, int)]
    if not addresses:
        raise ValueError("no gateway address")
    return addresses

"""One MQTT connection on the event loop: paho-mqtt's client without its thread, with batched reads and writes.

paho sends every packet with a system call of its own and reads each in three. Here it gets a socket that collects what
it writes until `flush`, and that hands out piece by piece what one large read has brought.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MalformedPacket
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

log = logging.getLogger(__name__)

FAILURE = 0x80
"""Reason codes from here on mean that the broker has refused."""

_READ_BYTES = 64 * 1024
_KEEP_ALIVE_S = 10
RECEIVE_MAXIMUM = 1_000
"""Unacknowledged messages we let a broker with MQTT 5 send; the mosquitto.conf we ship allows twice as many."""
_ANSWER_S = 10.0
_RETRY_S = (0.1, 5.0)
_SESSION_EXPIRY_S = 24 * 3600


class _BatchingSocket:
    """What paho takes for its socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._input = b""
        self._at = 0
        self._drained = False
        self._output: list[bytes] = []
        self.output_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send(self, data: bytes) -> int:
        self._output.append(bytes(data))
        self.output_bytes += len(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        if self._at >= len(self._input):
            if self._drained:
                raise BlockingIOError
            self._input = self._sock.recv(_READ_BYTES)
            self._at = 0
            self._drained = len(self._input) < _READ_BYTES
        chunk = self._input[self._at : self._at + size]
        self._at += len(chunk)
        return chunk

    def close(self) -> None:
        """paho closes right after it has "sent" its DISCONNECT: let that out first."""
        with suppress(OSError):
            self.flush()
        self._output.clear()
        self.output_bytes = 0
        self._sock.close()

    @property
    def has_input(self) -> bool:
        return self._at < len(self._input)

    def readable(self) -> None:
        """The event loop says that there is something to read."""
        self._drained = False

    def flush(self) -> bool:
        """Write what was collected. False: the peer does not take more just now."""
        while self._output:
            data = b"".join(self._output)
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            self._output = [data[sent:]] if sent < len(data) else []
            self.output_bytes = len(data) - sent
            if sent == 0:
                return False
        return True


class _Client(paho.Client):
    """paho's client with two changes: its socket, and how it takes the acknowledgements of publishes.

    paho builds a reason code with a table of its own for each acknowledgement, which costs more than all the rest of
    a publish, and it does not look at a refusal in PUBREC.
    """

    on_answer: Callable[[int, int], None]
    """Called with packet id and reason code when the broker has accepted or refused a publish for good."""

    def _create_socket(self) -> Any:
        sock: Any = super()._create_socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _BatchingSocket(sock)

    def _acknowledgement(self) -> tuple[int, int]:
        packet = self._in_packet["packet"]
        if len(packet) < 2:
            raise MalformedPacket
        return packet[0] << 8 | packet[1], packet[2] if len(packet) > 2 else 0

    def _handle_pubrec(self) -> MQTTErrorCode:
        mid, reason = self._acknowledgement()
        message = self._out_messages.get(mid)
        if message is not None and reason < FAILURE:
            message.state = paho.mqtt_ms_wait_for_pubcomp
            return self._send_pubrel(mid)
        return self._finished(mid, reason)

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        return self._finished(*self._acknowledgement())

    def _finished(self, mid: int, reason: int) -> MQTTErrorCode:
        if self._out_messages.pop(mid, None) is not None:
            self._inflight_messages -= 1
            self.on_answer(mid, reason)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


@dataclass(slots=True)
class Broker:
    """Where the broker is and how to speak to it. `version` is 5 or 3 (for 3.1.1)."""

    host: str
    port: int
    version: int = 5


@dataclass(slots=True)
class Handlers:
    """What the owner of a connection wants to hear. All are called on the event loop."""

    up: Callable[[bool], None]
    """Connected; whether the broker still has the session."""
    down: Callable[[], None]
    published: Callable[[int, int], None]
    """(packet id, reason code)."""
    subscribed: Callable[[int, bool], None]
    message: Callable[[paho.MQTTMessage], None]
    turn: Callable[[], None]
    """A batch of input has been worked off: carry out what came of it."""
    trouble: Callable[[str], None]
    """No connection, and why; again and again for as long as that lasts."""


class MqttConnection:
    """Stays connected, or tries again for ever; `client` is paho's, for publish and subscribe."""

    def __init__(self, broker: Broker, client_id: str, keep_session: bool, handlers: Handlers) -> None:
        self._broker = broker
        self._client_id = client_id
        self._keep_session = keep_session
        self._handlers = handlers
        self._random = Random()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lost = asyncio.Event()
        self._answered = asyncio.Event()
        self._stopping = False
        self._will: tuple[str, bytes] | None = None
        self._writing = False
        self._was_connected = False
        self._is_opening = False
        self.is_up = False
        self.receive_maximum = 0xFFFF
        self.client = self._new_client()

    def set_will(self, topic: str, payload: bytes) -> None:
        """What the broker publishes, retained, if this process disappears. Before `run`."""
        self._will = (topic, payload)
        self.client.will_set(topic, payload, qos=1, retain=True)

    def _new_client(self) -> _Client:
        protocol = MQTTProtocolVersion.MQTTv5 if self._broker.version == 5 else MQTTProtocolVersion.MQTTv311
        client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            protocol=protocol,
            clean_session=None if self._broker.version == 5 else not self._keep_session,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        client.max_inflight_messages_set(0)
        client.max_queued_messages_set(0)
        if self._will is not None:
            client.will_set(*self._will, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = self._on_socket_close
        client.on_answer = self._handlers.published
        client.on_subscribe = lambda _c, _u, mid, codes, _p: self._handlers.subscribed(
            mid, not any(code.is_failure for code in codes)
        )
        client.on_message = lambda _c, _u, message: self._handlers.message(message)
        return client

    def start_over(self) -> None:
        """Drop the client with all it has in flight; the next connection is made by a new one."""
        self._close()
        self._was_connected = False
        self.client = self._new_client()

    async def run(self) -> None:
        """Connect, and connect again, until cancelled."""
        self._loop = asyncio.get_running_loop()
        attempt = 0
        while not self._stopping:
            if await self._connect():
                attempt = 0
                await self._lost.wait()
            else:
                self._close()
            if self._stopping:
                break
            least, most = _RETRY_S
            await asyncio.sleep(min(least * 2**attempt, most) * (1 + self._random.random() / 2))
            attempt = min(attempt + 1, 16)

    async def _connect(self) -> bool:
        self._lost.clear()
        self._answered.clear()
        client = self.client
        self._is_opening = True
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._open, client)
        except (OSError, ValueError) as error:
            self._handlers.trouble(f"mqtt unreachable broker={self._broker.host}:{self._broker.port} error={error}")
            return False
        finally:
            self._is_opening = False
        asyncio.get_running_loop().add_reader(self._socket(), self._readable)
        self.flush()
        try:
            await asyncio.wait_for(self._answered.wait(), _ANSWER_S)
        except TimeoutError:
            self._handlers.trouble(f"mqtt silent broker={self._broker.host}:{self._broker.port}")
        return self.is_up

    def _open(self, client: _Client) -> None:
        if self._broker.version == 5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = _SESSION_EXPIRY_S
            properties.ReceiveMaximum = RECEIVE_MAXIMUM
            # Not paho's "clean start on the first connect": it takes every call of connect for the first.
            clean_start = not self._keep_session and not self._was_connected
            client.connect(
                self._broker.host, self._broker.port, _KEEP_ALIVE_S, clean_start=clean_start, properties=properties
            )
        else:
            client.connect(self._broker.host, self._broker.port, _KEEP_ALIVE_S)

    def _socket(self) -> _BatchingSocket:
        return self.client.socket()  # type: ignore[return-value]

    def _on_connect(self, _client: Any, _data: Any, flags: Any, code: Any, properties: Any) -> None:
        self._answered.set()
        if code.is_failure:
            where = f"{self._broker.host}:{self._broker.port}"
            self._handlers.trouble(f"mqtt refused broker={where} reason={str(code)!r}")
            return
        self.is_up = self._was_connected = True
        self.receive_maximum = getattr(properties, "ReceiveMaximum", 0xFFFF)
        self._handlers.up(flags.session_present)

    def _on_disconnect(self, *_: Any) -> None:
        self._close()

    def _on_socket_close(self, _client: Any, _data: Any, sock: Any) -> None:
        """paho closes its socket."""
        self._unwatch(sock)

    def _unwatch(self, sock: Any) -> None:
        """The event loop forgets a socket before it is closed, or a new one of that number is never heard."""
        if sock.fileno() >= 0 and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)

    def _close(self) -> None:
        """Forget the socket and tell the owner, once."""
        sock = self._socket()
        if sock is not None:
            self._unwatch(sock)
            sock.close()
        self._writing = False
        was_up, self.is_up = self.is_up, False
        self._answered.set()
        self._lost.set()
        if was_up and not self._stopping:
            self._handlers.down()
            self._handlers.turn()

    def _readable(self) -> None:
        sock = self._socket()
        sock.readable()
        self.client.loop_read()
        while self._socket() is sock and sock.has_input:
            self.client.loop_read()
        self._handlers.turn()

    @property
    def unsent_bytes(self) -> int:
        sock = self._socket()
        return sock.output_bytes if sock is not None else 0

    def flush(self) -> None:
        """Write what paho has produced in this turn."""
        sock = self._socket()
        if sock is None or self._writing or self._is_opening:
            return
        if self.client.want_write():  # written from within a callback
            self.client.loop_write()
        if not sock.output_bytes:
            return
        try:
            done = sock.flush()
        except OSError as error:
            log.warning("mqtt write failed broker=%s:%d error=%s", self._broker.host, self._broker.port, error)
            self._close()
            return
        if not done:
            self._writing = True
            asyncio.get_running_loop().add_writer(sock, self._writable)

    def _writable(self) -> None:
        self._writing = False
        asyncio.get_running_loop().remove_writer(self._socket())
        self._handlers.turn()

    def keep_alive(self) -> None:
        """Let paho send its pings; to be called about every second."""
        if self.client.socket() is not None and not self._is_opening:
            self.client.loop_misc()
            self.flush()

    def stop(self) -> None:
        """Disconnect properly and do not come back."""
        self._stopping = True
        if self.is_up:
            self.client.disconnect()
            self.flush()
        self._lost.set()

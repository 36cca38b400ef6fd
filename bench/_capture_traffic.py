"""What crosses the network towards a server, counted as IP packets and bytes by a proxy in front of it.

Only that direction counts, acknowledgements included, everything from connecting to closing, on a link with Ethernet's
MTU of 1,500 bytes. UDP: the datagrams, with a header of 8 bytes, and 20 more for every IP packet that they are cut up
into. TCP: what the kernel says of the accepted connection (TCP_INFO), bytes of payload plus 52 for each segment (20 of
IP, 20 of TCP, 12 of its timestamps), pure acknowledgements as well; the listener asks for segments that fit the MTU.
"""

from __future__ import annotations

import selectors
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Self

from protocol.address import format_address

Peer = tuple[str, int]
_MTU_BYTES = 1_500
_IP_HEADER_BYTES = 20
_UDP_HEADER_BYTES = 8
_TCP_HEADERS_BYTES = 52
_MAX_DATAGRAM_BYTES = 65_535
_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
_TCP_COUNTERS = Struct("=Q4xI")  # in the kernel's struct tcp_info: bytes_received, segs_out, segs_in
_TCP_COUNTERS_OFFSET = 128


@dataclass(slots=True)
class Traffic:
    """Towards the server."""

    packets: int = 0
    ip_bytes: int = 0

    def add_datagram(self, payload_bytes: int) -> None:
        udp_bytes = _UDP_HEADER_BYTES + payload_bytes
        fragments = -(-udp_bytes // (_MTU_BYTES - _IP_HEADER_BYTES))
        self.packets += fragments
        self.ip_bytes += udp_bytes + fragments * _IP_HEADER_BYTES

    def add_connection(self, connection: socket.socket) -> None:
        """At its end, when the peer has closed it."""
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        payload_bytes, segments = _TCP_COUNTERS.unpack_from(info, _TCP_COUNTERS_OFFSET)
        self.packets += segments
        self.ip_bytes += payload_bytes + segments * _TCP_HEADERS_BYTES


class Counter(ABC):
    """A proxy in one thread. `traffic` is complete once the client has gone and the proxy is closed."""

    def __init__(self, target: Peer, kind: socket.SocketKind) -> None:
        self.traffic = Traffic()
        self._target = target
        self._front = socket.socket(socket.AF_INET, kind)
        self._front.bind(("127.0.0.1", 0))
        self._waker, self._wakened = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._front, selectors.EVENT_READ)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="counter", daemon=True)

    @property
    def url(self) -> str:
        return format_address(*self._front.getsockname())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waker.send(b"\0")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._waker.close()
        self._selector.close()

    def _run(self) -> None:
        closing = False
        while True:
            events = self._selector.select(0 if closing else None)
            ready = [key.fileobj for key, _ in events if key.fileobj is not self._wakened]
            if closing and not ready:
                return
            closing = closing or len(ready) < len(events)
            for endpoint in ready:
                assert isinstance(endpoint, socket.socket)
                self._take(endpoint)

    @abstractmethod
    def _take(self, endpoint: socket.socket) -> None:
        """Something has come in here: pass it on."""


class UdpCounter(Counter):
    """In front of an MQTT-SN gateway, for one client."""

    def __init__(self, target: Peer) -> None:
        super().__init__(target, socket.SOCK_DGRAM)
        self._back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._back.connect(target)
        self._selector.register(self._back, selectors.EVENT_READ)
        for endpoint in (self._front, self._back):
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self._client: Peer | None = None

    def _take(self, endpoint: socket.socket) -> None:
        if endpoint is self._front:
            datagram, self._client = endpoint.recvfrom(_MAX_DATAGRAM_BYTES)
            self.traffic.add_datagram(len(datagram))
            self._back.send(datagram)
        elif self._client is not None:
            self._front.sendto(endpoint.recv(_MAX_DATAGRAM_BYTES), self._client)


class TcpCounter(Counter):
    """In front of Redis or an HTTP server."""

    def __init__(self, target: Peer) -> None:
        super().__init__(target, socket.SOCK_STREAM)
        self._front.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _MTU_BYTES - 40)
        self._front.listen()
        self._other_end: dict[socket.socket, socket.socket] = {}
        self._accepted: set[socket.socket] = set()

    def _take(self, endpoint: socket.socket) -> None:
        if endpoint is self._front:
            client, _ = endpoint.accept()
            self._join(client, socket.create_connection(self._target))
            self._accepted.add(client)
            return
        if endpoint not in self._other_end:
            return  # its other end was closed a moment ago
        chunk = b""
        with suppress(ConnectionError):
            chunk = endpoint.recv(_MAX_DATAGRAM_BYTES)
            self._other_end[endpoint].sendall(chunk)
        if not chunk:
            self._close(endpoint)

    def _join(self, one: socket.socket, other: socket.socket) -> None:
        for endpoint, other_end in ((one, other), (other, one)):
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._other_end[endpoint] = other_end
            self._selector.register(endpoint, selectors.EVENT_READ)

    def _close(self, endpoint: socket.socket) -> None:
        for each in (endpoint, self._other_end[endpoint]):
            if each in self._accepted:
                self._accepted.remove(each)
                self.traffic.add_connection(each)
            self._selector.unregister(each)
            del self._other_end[each]
            each.close()

"""The process around the machine: a UDP socket, the clock, the journal's commits and the bridge to MQTT.

Work is done in turns: read all the datagrams (or broker packets) there are, let the machine work them off, commit the
journal, write to the broker once, then let the answers out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from ipaddress import ip_address
from math import inf
from pathlib import Path
from random import Random
from signal import SIGINT, SIGTERM
from time import monotonic

from broker.bridge import Bridge
from broker.config import GatewayConfig
from broker.gateway import Gateway
from broker.journal import Journal, SqliteJournal
from broker.mqtt_connection import Broker
from broker.outputs import Address
from protocol.mqttsn import MAX_PACKET_BYTES

log = logging.getLogger(__name__)

_DATAGRAMS_PER_TURN = 128
_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
_MAX_UNSENT_DATAGRAMS = 10_000
_DRAIN_S = 3.0
_RETRY_S = 1.0
"""How often a journal that a full disk has stopped is tried again."""


class CannotListen(RuntimeError):
    """The address cannot be listened on; the text says why."""


@dataclass(slots=True)
class ServerOptions:
    listen: tuple[str, int]
    broker: Broker
    state: Path | None = None
    metrics: tuple[str, int] | None = None
    advertise: tuple[str, int] | None = None
    config: GatewayConfig = field(default_factory=GatewayConfig)


class GatewayServer:
    """One gateway process."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._journal = SqliteJournal(options.state) if options.state is not None else Journal()
        self._gateway = Gateway(options.config, self._journal, Random())
        self._bridge = Bridge(self._gateway, options.broker, self._journal, self._end_turn)
        self._socket = _udp_socket(options.listen)
        self._search_socket: socket.socket | None = None
        if options.advertise is not None:
            self._search_socket = _advertising(self._socket, options.advertise, options.listen[0])
        self._unsent: deque[tuple[bytes, Address]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._timer_at = inf

    @property
    def address(self) -> Address:
        """Where it listens (asked for port 0, a free one)."""
        return tuple(self._socket.getsockname())

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what is under way."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for sig in (SIGTERM, SIGINT):
            loop.add_signal_handler(sig, stop.set)
        now = monotonic()
        sessions = self._journal.sessions(now, self._options.config.retry)
        self._gateway.restore(sessions, self._journal.announcements(), now)
        metrics = ""
        if self._options.metrics is not None:
            from broker.metrics import serve_metrics

            host, port = self._options.metrics
            metrics = f" metrics={host}:{serve_metrics(self._gateway, self._bridge, self._journal, host, port)}"
        self._bridge.start()
        for sock in self._sockets():
            loop.add_reader(sock, self._readable, sock)
        self._end_turn()
        host, port = self.address[:2]
        broker = self._options.broker
        log.info(
            "gateway ready udp=%s:%d mqtt=%s:%d name=%s%s",
            host, port, broker.host, broker.port, self._bridge.name, metrics,
        )  # fmt: skip
        await stop.wait()
        await self._stop()

    def _sockets(self) -> list[socket.socket]:
        return [sock for sock in (self._socket, self._search_socket) if sock is not None]

    async def _stop(self) -> None:
        log.info("gateway stopping unacknowledged=%d", self._bridge.unacknowledged)
        loop = asyncio.get_running_loop()
        for sock in self._sockets():
            loop.remove_reader(sock)
        self._gateway.stop()
        self._end_turn()
        await self._bridge.drain(_DRAIN_S)
        left = self._bridge.unacknowledged
        await self._bridge.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._journal.close()
        for sock in self._sockets():
            sock.close()
        log.info("gateway stopped unacknowledged=%d", left)

    def _readable(self, sock: socket.socket) -> None:
        receive = self._gateway.receive
        now = monotonic()
        for _ in range(_DATAGRAMS_PER_TURN):
            try:
                datagram, address = sock.recvfrom(MAX_PACKET_BYTES)
            except BlockingIOError:
                break
            except OSError as error:  # an ICMP error for an earlier answer
                self._gateway.outputs.count("not sent", reason(error))
                continue
            try:
                receive(datagram, address, now)
            except Exception:  # a fault of ours: it must cost this datagram, not the service
                log.exception("defect while working on a datagram from=%s bytes=%s", address, datagram[:64].hex())
                self._gateway.outputs.count("refused", "defect")
        self._end_turn()

    def _tick(self) -> None:
        self._timer_at = inf
        self._gateway.tick(monotonic())
        self._end_turn()

    def _end_turn(self) -> None:
        """Make what was decided durable, then carry it out."""
        self._bridge.carry_out()
        self._bridge.flush(self._commit())
        out = self._gateway.outputs
        if out.datagrams:
            self._unsent.extend(out.datagrams)
            out.datagrams.clear()
            self._send()
        if out.broadcasts and self._options.advertise is not None:
            self._unsent.extend((datagram, self._options.advertise) for datagram in out.broadcasts)
            out.broadcasts.clear()
            self._send()
        deadline = self._gateway.next_deadline
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = asyncio.get_running_loop().call_at(deadline, self._tick)

    def _commit(self) -> bool:
        """Whether the journal has everything. If not, answers that rest on it are not let out, and it tries again in a
        while: not with every datagram."""
        has_news = self._journal.has_news
        if self._retry is not None:
            self._journal.put_off()
        elif self._journal.commit():
            return True
        out = self._gateway.outputs
        if has_news:
            out.counters["not sent", "state not written"] += len(out.datagrams)
            out.datagrams.clear()
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)
        return False

    def _try_again(self) -> None:
        self._retry = None
        self._end_turn()

    def _send(self) -> None:
        counters = self._gateway.outputs.counters
        unsent = self._unsent
        send = self._socket.sendto
        while unsent:
            datagram, address = unsent[0]
            try:
                send(datagram, address)
                counters["sent", ""] += 1
            except BlockingIOError:
                while len(unsent) > _MAX_UNSENT_DATAGRAMS:
                    unsent.popleft()
                    counters["not sent", "socket buffer full"] += 1
                asyncio.get_running_loop().add_writer(self._socket, self._writable)
                return
            except OSError as error:
                counters["not sent", reason(error)] += 1
            unsent.popleft()

    def _writable(self) -> None:
        asyncio.get_running_loop().remove_writer(self._socket)
        self._send()


def reason(error: OSError | UnicodeError) -> str:
    """What went wrong with an address, in the system's words."""
    return getattr(error, "strerror", None) or str(error)


def is_loopback(address: tuple[str, int]) -> bool:
    """Whether only this machine can reach the address. CannotListen if nobody knows the name."""
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise CannotListen(f"cannot listen on udp {host}:{port} (--listen): {reason(error)}") from error
    return all(ip_address(str(resolved[0]).partition("%")[0]).is_loopback for *_, resolved in found)


def _udp_socket(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        family, kind, proto, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        sock.setblocking(False)
        sock.bind(resolved)
    except (OSError, UnicodeError) as error:
        raise CannotListen(f"cannot listen on udp {host}:{port} (--listen): {reason(error)}") from error
    return sock


def _advertising(main: socket.socket, group: tuple[str, int], interface: str) -> socket.socket | None:
    """Prepare for ADVERTISE and, on a multicast group, listen there for SEARCHGW as well."""
    host, port = group
    main.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try:
        is_multicast = ip_address(host).is_multicast
    except ValueError:
        raise CannotListen(f"cannot advertise on {host}:{port}: {host} is not an IP address") from None
    if not is_multicast:
        return None
    try:
        source = socket.inet_aton(interface)
        main.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, source)
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((host, port))
        sock.setsockopt(
            socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4s", socket.inet_aton(host), source)
        )
    except OSError as error:
        raise CannotListen(f"cannot join multicast group {host}:{port}: {reason(error)}") from error
    return sock

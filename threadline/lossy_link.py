"""A bad network between clients and a gateway, in one thread: loss, duplication, delay, reordering, corruption, and
little bandwidth.

Clients send to `address` instead of to the gateway; every client gets an upstream socket of its own, so the gateway
sees as many peers as there are. Each datagram, in each direction, is dropped, doubled or damaged by chance, and each
copy waits a random time of its own, which is what reorders them. The dice are seeded, one per direction. A link with a
rate sends one datagram after the other, and lets as many wait as there are.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from time import monotonic
from types import TracebackType

from protocol.address import format_address

Peer = tuple[str, int]
_BURST = 128
_MAX_DATAGRAM_BYTES = 65_535
_HEADER_BYTES = 28  # of IP and UDP, which take their time too


@dataclass(slots=True)
class Traffic:
    """What happened to the datagrams of one direction. `forwarded` counts copies."""

    forwarded: int = 0
    dropped: int = 0
    duplicated: int = 0
    corrupted: int = 0


@dataclass(slots=True)
class _Faults:
    loss: float
    duplicate: float
    delay_s: tuple[float, float]
    corrupt: float
    rate_bps: float | None


class LossyLink:
    """A UDP proxy with faults. `up` is towards the target, `down` towards the clients."""

    def __init__(
        self,
        target: Peer,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        delay_s: tuple[float, float] = (0.0, 0.0),
        corrupt: float = 0.0,
        rate_bps: float | None = None,
        seed: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.target = target
        self.partitioned = False
        """Nothing passes."""
        self.one_way = False
        """Nothing comes down, so clients never learn that they were heard."""
        self.up = Traffic()
        self.down = Traffic()
        self._faults = _Faults(loss, duplicate, delay_s, corrupt, rate_bps)
        self._free_at = {True: 0.0, False: 0.0}  # upwards, downwards
        self._up_dice = Random(f"{seed}/up")
        self._down_dice = Random(f"{seed}/down")
        self._selector = selectors.DefaultSelector()
        self._front = _udp(host)
        self._selector.register(self._front, selectors.EVENT_READ)
        self.address: Peer = self._front.getsockname()
        self._waker, self._wakened = socket.socketpair()
        self._wakened.setblocking(False)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._upstream: dict[Peer, socket.socket] = {}
        self._client_of: dict[socket.socket, Peer] = {}
        self._scheduled: list[tuple[float, int, Peer, bool, bytes]] = []
        self._number = 0
        self._calls: list[Callable[[], None]] = []
        self._running = True
        self._thread = threading.Thread(target=self._run, name="lossy-link", daemon=True)

    @property
    def url(self) -> str:
        """`address` as host:port."""
        return format_address(*self.address[:2])

    def set(
        self,
        *,
        loss: float | None = None,
        duplicate: float | None = None,
        delay_s: tuple[float, float] | None = None,
        corrupt: float | None = None,
        rate_bps: float | None = None,
    ) -> None:
        """Change the given faults from now on."""
        old = self._faults
        self._faults = _Faults(
            old.loss if loss is None else loss,
            old.duplicate if duplicate is None else duplicate,
            old.delay_s if delay_s is None else delay_s,
            old.corrupt if corrupt is None else corrupt,
            old.rate_bps if rate_bps is None else rate_bps,
        )

    def rebind(self) -> None:
        """Give every client a new upstream port, as a NAT router does that forgot them. Done on return."""
        self._do(self._rebind)

    def __enter__(self) -> LossyLink:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread and free the ports."""

        def stop() -> None:
            self._running = False

        if self._thread.is_alive():
            self._do(stop)
            self._thread.join()
        for endpoint in (self._front, self._waker, self._wakened, *self._upstream.values()):
            endpoint.close()
        self._selector.close()

    def _do(self, call: Callable[[], None]) -> None:
        """Run something on the link's thread and wait for it."""
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._calls.append(run)
        self._waker.send(b"\0")
        if not done.wait(5):
            raise RuntimeError("the link's thread does not answer")

    def _rebind(self) -> None:
        for client, endpoint in list(self._upstream.items()):
            self._selector.unregister(endpoint)
            endpoint.close()
            del self._client_of[endpoint]
            self._connect(client)

    def _connect(self, client: Peer) -> socket.socket:
        endpoint = _udp(self.address[0])
        self._upstream[client] = endpoint
        self._client_of[endpoint] = client
        self._selector.register(endpoint, selectors.EVENT_READ)
        return endpoint

    def _run(self) -> None:
        while self._running:
            timeout = max(0.0, self._scheduled[0][0] - monotonic()) if self._scheduled else None
            for key, _ in self._selector.select(timeout):
                endpoint = key.fileobj
                assert isinstance(endpoint, socket.socket)
                if endpoint is self._front:
                    self._take(endpoint, None, self._up_dice, self.up)
                elif endpoint is self._wakened:
                    endpoint.recv(64)
                    while self._calls:
                        self._calls.pop(0)()
                elif endpoint in self._client_of:
                    self._take(endpoint, self._client_of[endpoint], self._down_dice, self.down)
            while self._scheduled and self._scheduled[0][0] <= monotonic():
                _, _, client, upwards, datagram = heapq.heappop(self._scheduled)
                self._forward(client, upwards, datagram)

    def _take(self, endpoint: socket.socket, to: Peer | None, dice: Random, traffic: Traffic) -> None:
        """Read what came and decide the fate of each datagram."""
        faults = self._faults
        low_s, high_s = faults.delay_s
        upwards = to is None
        for _ in range(_BURST):
            try:
                datagram, sender = endpoint.recvfrom(_MAX_DATAGRAM_BYTES)
            except OSError:
                return
            if self.partitioned or (self.one_way and not upwards) or dice.random() < faults.loss:
                traffic.dropped += 1
                continue
            copies = 1
            if faults.duplicate and dice.random() < faults.duplicate:
                traffic.duplicated += 1
                copies = 2
            if faults.corrupt and dice.random() < faults.corrupt:
                traffic.corrupted += 1
                datagram = damaged(datagram, dice)
            client = sender if to is None else to
            for _ in range(copies):
                if high_s or faults.rate_bps:
                    self._number += 1
                    due = self._transmitted(upwards, len(datagram), faults.rate_bps) + dice.uniform(low_s, high_s)
                    heapq.heappush(self._scheduled, (due, self._number, client, upwards, datagram))
                else:
                    self._forward(client, upwards, datagram)

    def _transmitted(self, upwards: bool, size_bytes: int, rate_bps: float | None) -> float:
        """When the last bit of a datagram has left, which has to wait for those before it."""
        now = monotonic()
        if rate_bps:
            begin = max(now, self._free_at[upwards])
            now = self._free_at[upwards] = begin + (size_bytes + _HEADER_BYTES) * 8 / rate_bps
        return now

    def _forward(self, client: Peer, upwards: bool, datagram: bytes) -> None:
        traffic = self.up if upwards else self.down
        if self.partitioned:
            traffic.dropped += 1
            return
        traffic.forwarded += 1
        try:
            if upwards:
                endpoint = self._upstream.get(client) or self._connect(client)
                endpoint.sendto(datagram, self.target)
            else:
                self._front.sendto(datagram, client)
        except OSError:
            traffic.forwarded -= 1
            traffic.dropped += 1


def _udp(host: str) -> socket.socket:
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    endpoint.setblocking(False)
    endpoint.bind((host, 0))
    return endpoint


def damaged(datagram: bytes, dice: Random) -> bytes:
    """The datagram with one bit flipped, or cut short."""
    if len(datagram) > 1 and dice.random() < 0.25:
        return datagram[: dice.randrange(1, len(datagram))]
    raw = bytearray(datagram)
    if raw:
        raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
    return bytes(raw)

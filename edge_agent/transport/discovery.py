"""Finding gateways: SEARCHGW to an address, GWINFO and ADVERTISE back.

The address may be a gateway's own, a broadcast or a multicast address. For the latter two, gateways answer and
advertise to the group as well, so the group's port is listened on too if it is free.
"""

from __future__ import annotations

import selectors
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic

from edge_agent.logger import Logger
from edge_agent.transport.address import SocketAddress, resolve
from protocol.address import Address, format_address, parse_address
from protocol.mqttsn import MAX_PACKET_BYTES, Advertise, GwInfo, MalformedPacket, SearchGw, decode, encode
from protocol.structs import Struct

_LOG = Logger(__name__)
_FIRST_WAIT_S = 0.5


class Gateway(Struct):
    """A gateway that was heard of: its id, and its address in the form `Client` takes."""

    gateway_id: int
    address: str


def search_gateways(address: Address, *, timeout_s: float = 5.0, first: bool = True, radius: int = 1) -> list[Gateway]:
    """Ask for gateways, again and again with growing pauses, and return those heard of, in that order.

    Returns as soon as one is known, or with `first=False` all that were heard of within `timeout_s`. An empty list
    means that nobody answered. OSError if the address cannot be looked up or sent to.
    """
    host, port = parse_address(address)
    family, target = resolve(host, port)[0]
    found: dict[Gateway, None] = {}
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        sender = stack.enter_context(_sender(family, radius))
        selector.register(sender, selectors.EVENT_READ)
        listener = _listener(family, target)
        if listener is not None:
            selector.register(stack.enter_context(listener), selectors.EVENT_READ)
        end = monotonic() + timeout_s
        wait_s = _FIRST_WAIT_S
        ask_at = monotonic()
        while (now := monotonic()) < end and not (found and first):
            if now >= ask_at:
                sender.sendto(encode(SearchGw(radius)), target)
                ask_at = now + wait_s
                wait_s *= 2
            for key, _ in selector.select(max(0.0, min(ask_at, end) - now)):
                assert isinstance(key.fileobj, socket.socket)
                found.update(dict.fromkeys(_heard(key.fileobj)))
    return list(found)


def _heard(endpoint: socket.socket) -> Iterator[Gateway]:
    """The gateways named in the datagrams that wait at a socket."""
    while True:
        try:
            datagram, source = endpoint.recvfrom(MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            _LOG.debug("cannot receive error=%s", error)
            return
        try:
            message = decode(datagram)
        except MalformedPacket as error:
            _LOG.debug("ignored datagram from=%s reason=%s", source, error.reason)
            continue
        if isinstance(message, Advertise) or (isinstance(message, GwInfo) and not message.address):
            yield Gateway(message.gateway_id, format_address(str(source[0]), int(source[1])))
        elif isinstance(message, GwInfo):
            told = _gateway_address(message.address, int(source[1]))
            if told is not None:
                yield Gateway(message.gateway_id, told)


def _gateway_address(raw: bytes, port: int) -> str | None:
    """The address in another client's GWINFO: an IP address, with or without a port and a length octet before it."""
    if len(raw) in (5, 7, 17, 19) and raw[0] == len(raw) - 1:
        raw = raw[1:]
    if len(raw) in (6, 18):
        port = int.from_bytes(raw[-2:], "big")
        raw = raw[:-2]
    if len(raw) not in (4, 16) or not port:
        return None
    from ipaddress import ip_address  # every client has this module, few ever search

    return format_address(str(ip_address(raw)), port)


def _sender(family: int, radius: int) -> socket.socket:
    endpoint = socket.socket(family, socket.SOCK_DGRAM)
    endpoint.setblocking(False)
    if family == socket.AF_INET:
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        endpoint.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, max(radius, 1))
    else:
        endpoint.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, max(radius, 1))
    return endpoint


def _listener(family: int, target: SocketAddress) -> socket.socket | None:
    """A socket that hears what is sent to the group, or None if the address is one host's, or its port is taken."""
    from ipaddress import ip_address

    host, port = str(target[0]), int(target[1])
    group = ip_address(host.partition("%")[0])
    if not group.is_multicast and not host.endswith(".255"):
        return None
    endpoint = socket.socket(family, socket.SOCK_DGRAM)
    try:
        endpoint.setblocking(False)
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        endpoint.bind(("", port))
        if group.is_multicast and family == socket.AF_INET:
            membership = struct.pack("4sI", group.packed, socket.INADDR_ANY)
            endpoint.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        elif group.is_multicast:
            scope = int(target[3]) if len(target) > 3 else 0
            endpoint.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, struct.pack("16sI", group.packed, scope))
    except OSError as error:
        _LOG.debug("cannot listen to the group host=%s error=%s", host, error)
        endpoint.close()
        return None
    return endpoint

"""Gateway addresses as people write them: `host:port`, `[ipv6]:port`, or a (host, port) pair."""

from __future__ import annotations

import socket
from typing import cast

Address = str | tuple[str, int]
SocketAddress = tuple[str | int, ...]


def parse_address(address: Address) -> tuple[str, int]:
    """(host, port). ValueError says what is wrong with the text."""
    if isinstance(address, str):
        host, colon, digits = address.rpartition(":")
        if not colon or not host or not digits.isascii() or not digits.isdigit():
            raise ValueError(f"{address!r} is not host:port")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{address!r}: an IPv6 address is written [address]:port")
        port = int(digits)
    else:
        host, port = address
    if not 0 < port < 65_536:
        raise ValueError(f"{address!r}: a port is 1 to 65535")
    return host, port


def format_address(host: str, port: int) -> str:
    """The text that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str, port: int) -> list[tuple[int, SocketAddress]]:
    """(address family, socket address) of a UDP peer, at least one, IPv4 first: a gateway that listens on one family
    only most likely listens on that. OSError if the name cannot be looked up. May block."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no host name: {error}") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return [(family, cast(SocketAddress, sockaddr)) for family, _, _, _, sockaddr in found]

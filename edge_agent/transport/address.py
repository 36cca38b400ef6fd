"""Host names to socket addresses."""

from __future__ import annotations

import socket
from typing import cast

from edge_agent.background import importing

SocketAddress = tuple[str | int, ...]


def resolve(host: str, port: int) -> list[tuple[int, SocketAddress]]:
    """(address family, socket address) of a UDP peer, at least one, IPv4 first: a gateway that listens on one family
    only most likely listens on that. OSError if the name cannot be looked up. May block."""
    try:
        # A name as bytes is taken as it is. As a text it is run through IDNA, which costs time and a megabyte.
        with importing:
            name = host.encode() if host.isascii() else host.encode("idna")
        found = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no host name: {error}") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return [(family, cast(SocketAddress, sockaddr)) for family, _, _, _, sockaddr in found]

"""Network addresses as people write them: `host:port`, `[ipv6]:port`, or a (host, port) pair."""

from __future__ import annotations

Address = str | tuple[str, int]


def parse_address(address: Address, least_port: int = 1) -> tuple[str, int]:
    """(host, port). ValueError says what is wrong with the text. A least port of 0 is for "any free one"."""
    if isinstance(address, str):
        host, colon, digits = address.rpartition(":")
        if not colon or not host or not digits.isascii() or not digits.isdigit():
            raise ValueError(f"{address!r} is not HOST:PORT")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{address!r}: an IPv6 address is written [ADDRESS]:PORT")
        port = int(digits)
    else:
        host, port = address
    if not least_port <= port < 65_536:
        raise ValueError(f"{address!r}: a port is {least_port} to 65535")
    return host, port


def format_address(host: str, port: int) -> str:
    """The text that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_this_machine(host: str) -> bool:
    """Whether a name or an address is always that of the machine one is on: no proxy can know it."""
    return host in ("localhost", "::1") or host.startswith("127.")

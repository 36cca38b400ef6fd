"""Multicast on the loopback interface, if this machine has it."""

from __future__ import annotations

import socket
import struct

from threadline.lab import free_port


def multicast_on_loopback_works() -> bool:
    port = free_port(socket.SOCK_DGRAM)
    try:
        with multicast_listener("239.83.84.1", port) as listener, multicast_sender() as sender:
            sender.sendto(b"works", ("239.83.84.1", port))
            listener.settimeout(2)
            return listener.recv(100) == b"works"
    except OSError:
        return False


def multicast_listener(group: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((group, port))
    membership = struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton("127.0.0.1"))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    return sock


def multicast_sender() -> socket.socket:
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    return sock

"""Length headers, the way from a datagram to a message and back, and forwarder encapsulation.

One datagram carries one message. Its length header is one octet, or 0x01 and two octets; both count themselves.
A forwarder puts its own small header, with the wireless node's id, in front of an unchanged message.
"""

from __future__ import annotations

from protocol.mqttsn.messages import MAX_PACKET_BYTES, UNPACK, AnyMessage, MalformedPacket, Message, MessageType

_LONG = 0x01
_ENCAPSULATED = int(MessageType.ENCAPSULATED)


def encode(message: Message) -> bytes:
    """The datagram for a message, with the shorter header that fits. ValueError if the message is too large."""
    body = message.body()
    size = len(body) + 2
    if size < 256:
        return bytes((size, message.TYPE)) + body
    size += 2
    if size > MAX_PACKET_BYTES:
        raise ValueError(f"{type(message).__name__} of {size} bytes: a packet has at most {MAX_PACKET_BYTES}")
    return bytes((_LONG, size >> 8, size & 0xFF, message.TYPE)) + body


def decode(datagram: bytes) -> AnyMessage:
    """The message in a datagram. `MalformedPacket` is the only exception, whatever the bytes are."""
    kind, start = _header(datagram)
    unpack = UNPACK.get(kind)
    if unpack is None:
        raise MalformedPacket("unknown type")
    return unpack(datagram[start:])


def _header(datagram: bytes) -> tuple[int, int]:
    """(message type, where the body starts), with the length checked against the datagram's own."""
    actual = len(datagram)
    if actual < 2:
        raise MalformedPacket("truncated")
    size, kind, start = datagram[0], datagram[1], 2
    if size == _LONG:
        if actual < 4:
            raise MalformedPacket("truncated")
        size, kind, start = datagram[1] << 8 | datagram[2], datagram[3], 4
    if size != actual:
        raise MalformedPacket("wrong length")
    return kind, start


def is_encapsulated(datagram: bytes) -> bool:
    """Whether a forwarder's header stands in front of the message."""
    return len(datagram) > 2 and datagram[1] == _ENCAPSULATED and datagram[0] >= 3


def encapsulate(datagram: bytes, node_id: bytes, radius: int = 0) -> bytes:
    """What a forwarder sends on for `node_id`; also how an answer is addressed to that node."""
    size = len(node_id) + 3
    if size > 255:
        raise ValueError(f"a wireless node id has at most 252 octets, not {len(node_id)}")
    return bytes((size, _ENCAPSULATED, radius & 0x03)) + node_id + datagram


def decapsulate(datagram: bytes) -> tuple[bytes, bytes]:
    """(wireless node id, the message's own datagram) of one encapsulated datagram."""
    if not is_encapsulated(datagram):
        raise MalformedPacket("not encapsulated")
    size = datagram[0]
    if size >= len(datagram):
        raise MalformedPacket("truncated")
    return datagram[3:size], datagram[size:]

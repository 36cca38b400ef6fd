"""Every MQTT-SN 1.2 message as a small class that packs itself and is unpacked from a message body.

A *body* is what follows the message type octet; `codec` adds and removes the length header around it. Classes are
plain slotted dataclasses and not frozen ones, because building a frozen dataclass costs three times as much and each
datagram that passes the gateway builds at least one: treat them as values all the same.

`qos` is -1, 0, 1 or 2. A `topic` in SUBSCRIBE and UNSUBSCRIBE is the name (normal and short) or the predefined id.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct as Layout
from typing import ClassVar, Protocol, Self

from protocol.structs import Struct

MAX_PACKET_BYTES = 65_535
MAX_UDP_PAYLOAD_BYTES = 65_507
"""What UDP over IPv4 carries: 65,535 less the IP and the UDP header."""
PUBLISH_OVERHEAD_BYTES = 9
"""What a PUBLISH adds to its payload, with the long header."""
PROTOCOL_ID = 0x01

DUP = 0x80
RETAIN = 0x10
WILL = 0x08
CLEAN = 0x04
_TOPIC_TYPE_MASK = 0x03

_QOS_OF_FLAGS = (0, 1, 2, -1)
_FLAGS_OF_QOS = {0: 0x00, 1: 0x20, 2: 0x40, -1: 0x60}

_U16 = Layout("!H")
_U16_U16 = Layout("!HH")
_FLAGS_U16_U16 = Layout("!BHH")
_U16_U16_CODE = Layout("!HHB")
_FLAGS_U16_U16_CODE = Layout("!BHHB")
_FLAGS_ID_U16 = Layout("!BBH")
_ID_U16 = Layout("!BH")
_FLAGS_U16 = Layout("!BH")


class MalformedPacket(ValueError):
    """The bytes are not an MQTT-SN packet. `reason` is short and stable: it labels a metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MessageType(IntEnum):
    """The message type octet."""

    ADVERTISE = 0x00
    SEARCHGW = 0x01
    GWINFO = 0x02
    CONNECT = 0x04
    CONNACK = 0x05
    WILLTOPICREQ = 0x06
    WILLTOPIC = 0x07
    WILLMSGREQ = 0x08
    WILLMSG = 0x09
    REGISTER = 0x0A
    REGACK = 0x0B
    PUBLISH = 0x0C
    PUBACK = 0x0D
    PUBCOMP = 0x0E
    PUBREC = 0x0F
    PUBREL = 0x10
    SUBSCRIBE = 0x12
    SUBACK = 0x13
    UNSUBSCRIBE = 0x14
    UNSUBACK = 0x15
    PINGREQ = 0x16
    PINGRESP = 0x17
    DISCONNECT = 0x18
    WILLTOPICUPD = 0x1A
    WILLTOPICRESP = 0x1B
    WILLMSGUPD = 0x1C
    WILLMSGRESP = 0x1D
    ENCAPSULATED = 0xFE


class TopicType(IntEnum):
    """How the topic field of a message is to be read."""

    NORMAL = 0
    PREDEFINED = 1
    SHORT = 2


class ReturnCode(IntEnum):
    """The answer of the receiver."""

    ACCEPTED = 0
    CONGESTION = 1
    INVALID_TOPIC = 2
    NOT_SUPPORTED = 3


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedPacket("not utf-8") from None


def _topic_type(flags: int) -> int:
    kind = flags & _TOPIC_TYPE_MASK
    if kind == _TOPIC_TYPE_MASK:
        raise MalformedPacket("reserved topic type")
    return kind


def _exactly(body: bytes, size: int) -> None:
    if len(body) != size:
        raise MalformedPacket("wrong length")


def _at_least(body: bytes, size: int) -> None:
    if len(body) < size:
        raise MalformedPacket("truncated")


def _u16(body: bytes) -> int:
    _exactly(body, 2)
    return body[0] << 8 | body[1]


def short_topic_id(name: str) -> int:
    """The 16 bits that stand for a two-octet topic name."""
    raw = name.encode()
    if len(raw) != 2:
        raise ValueError(f"a short topic name is two octets long, not {name!r}")
    return _u16(raw)


def short_topic_name(topic_id: int) -> str:
    """The two-octet topic name that the 16 bits spell."""
    return _text(_U16.pack(topic_id))


class Message(Protocol):
    """What all messages have in common."""

    TYPE: ClassVar[MessageType]

    def body(self) -> bytes: ...


class Advertise(Struct):
    TYPE: ClassVar[MessageType] = MessageType.ADVERTISE
    gateway_id: int
    duration_s: int

    def body(self) -> bytes:
        return _ID_U16.pack(self.gateway_id, self.duration_s)

    @staticmethod
    def unpack(body: bytes) -> Advertise:
        _exactly(body, 3)
        return Advertise(*_ID_U16.unpack(body))


class SearchGw(Struct):
    TYPE: ClassVar[MessageType] = MessageType.SEARCHGW
    radius: int = 0

    def body(self) -> bytes:
        return bytes((self.radius,))

    @staticmethod
    def unpack(body: bytes) -> SearchGw:
        _exactly(body, 1)
        return SearchGw(body[0])


class GwInfo(Struct):
    """`address` is empty when the gateway itself answers: its address is then the datagram's."""

    TYPE: ClassVar[MessageType] = MessageType.GWINFO
    gateway_id: int
    address: bytes = b""

    def body(self) -> bytes:
        return bytes((self.gateway_id,)) + self.address

    @staticmethod
    def unpack(body: bytes) -> GwInfo:
        _at_least(body, 1)
        return GwInfo(body[0], body[1:])


class Connect(Struct):
    TYPE: ClassVar[MessageType] = MessageType.CONNECT
    client_id: str
    keep_alive_s: int
    clean: bool = True
    will: bool = False
    protocol_id: int = PROTOCOL_ID

    def body(self) -> bytes:
        flags = (WILL if self.will else 0) | (CLEAN if self.clean else 0)
        return _FLAGS_ID_U16.pack(flags, self.protocol_id, self.keep_alive_s) + self.client_id.encode()

    @staticmethod
    def unpack(body: bytes) -> Connect:
        _at_least(body, 5)
        flags, protocol_id, keep_alive_s = _FLAGS_ID_U16.unpack_from(body)
        return Connect(_text(body[4:]), keep_alive_s, bool(flags & CLEAN), bool(flags & WILL), protocol_id)


class _Code(Struct):
    return_code: int

    def body(self) -> bytes:
        return bytes((self.return_code,))

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        _exactly(body, 1)
        return cls(body[0])


class ConnAck(_Code):
    TYPE: ClassVar[MessageType] = MessageType.CONNACK


class WillTopicResp(_Code):
    TYPE: ClassVar[MessageType] = MessageType.WILLTOPICRESP


class WillMsgResp(_Code):
    TYPE: ClassVar[MessageType] = MessageType.WILLMSGRESP


class _Empty(Struct):
    def body(self) -> bytes:
        return b""

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        _exactly(body, 0)
        return cls()


class WillTopicReq(_Empty):
    TYPE: ClassVar[MessageType] = MessageType.WILLTOPICREQ


class WillMsgReq(_Empty):
    TYPE: ClassVar[MessageType] = MessageType.WILLMSGREQ


class PingResp(_Empty):
    TYPE: ClassVar[MessageType] = MessageType.PINGRESP


class _WillTopic(Struct):
    """An empty topic is the message without flags and means "no will"."""

    topic: str
    qos: int = 0
    retain: bool = False

    def body(self) -> bytes:
        if not self.topic:
            return b""
        return bytes((_FLAGS_OF_QOS[self.qos] | (RETAIN if self.retain else 0),)) + self.topic.encode()

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        if not body:
            return cls("")
        _at_least(body, 2)
        qos = _QOS_OF_FLAGS[(body[0] >> 5) & 3]
        if qos < 0:
            raise MalformedPacket("bad qos")
        return cls(_text(body[1:]), qos, bool(body[0] & RETAIN))


class WillTopic(_WillTopic):
    TYPE: ClassVar[MessageType] = MessageType.WILLTOPIC


class WillTopicUpd(_WillTopic):
    TYPE: ClassVar[MessageType] = MessageType.WILLTOPICUPD


class _WillMsg(Struct):
    payload: bytes

    def body(self) -> bytes:
        return self.payload

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        return cls(body)


class WillMsg(_WillMsg):
    TYPE: ClassVar[MessageType] = MessageType.WILLMSG


class WillMsgUpd(_WillMsg):
    TYPE: ClassVar[MessageType] = MessageType.WILLMSGUPD


class Register(Struct):
    """Client to gateway: `topic_id` is 0. Gateway to client: it is the id the gateway gave to the name."""

    TYPE: ClassVar[MessageType] = MessageType.REGISTER
    topic_id: int
    msg_id: int
    topic: str

    def body(self) -> bytes:
        return _U16_U16.pack(self.topic_id, self.msg_id) + self.topic.encode()

    @staticmethod
    def unpack(body: bytes) -> Register:
        _at_least(body, 5)
        topic_id, msg_id = _U16_U16.unpack_from(body)
        return Register(topic_id, msg_id, _text(body[4:]))


class _TopicAck(Struct):
    topic_id: int
    msg_id: int
    return_code: int

    def body(self) -> bytes:
        return _U16_U16_CODE.pack(self.topic_id, self.msg_id, self.return_code)

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        _exactly(body, 5)
        return cls(*_U16_U16_CODE.unpack(body))


class RegAck(_TopicAck):
    TYPE: ClassVar[MessageType] = MessageType.REGACK


class PubAck(_TopicAck):
    TYPE: ClassVar[MessageType] = MessageType.PUBACK


class Publish(Struct):
    """`topic_id` is the registered or predefined id, or the two octets of a short name (`short_topic_name`)."""

    TYPE: ClassVar[MessageType] = MessageType.PUBLISH
    topic_type: int
    topic_id: int
    msg_id: int
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False

    def body(self) -> bytes:
        flags = _FLAGS_OF_QOS[self.qos] | self.topic_type
        if self.retain:
            flags |= RETAIN
        if self.dup:
            flags |= DUP
        return _FLAGS_U16_U16.pack(flags, self.topic_id, self.msg_id) + self.payload

    @staticmethod
    def unpack(body: bytes) -> Publish:
        _at_least(body, 5)
        flags, topic_id, msg_id = _FLAGS_U16_U16.unpack_from(body)
        return Publish(
            _topic_type(flags),
            topic_id,
            msg_id,
            body[5:],
            _QOS_OF_FLAGS[(flags >> 5) & 3],
            flags & RETAIN != 0,
            flags & DUP != 0,
        )


class _MsgId(Struct):
    msg_id: int

    def body(self) -> bytes:
        return _U16.pack(self.msg_id)

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        return cls(_u16(body))


class PubRec(_MsgId):
    TYPE: ClassVar[MessageType] = MessageType.PUBREC


class PubRel(_MsgId):
    TYPE: ClassVar[MessageType] = MessageType.PUBREL


class PubComp(_MsgId):
    TYPE: ClassVar[MessageType] = MessageType.PUBCOMP


class UnsubAck(_MsgId):
    TYPE: ClassVar[MessageType] = MessageType.UNSUBACK


def _topic_field(topic: str | int) -> bytes:
    return _U16.pack(topic) if isinstance(topic, int) else topic.encode()


def _topic_of(kind: int, raw: bytes) -> str | int:
    if kind == TopicType.PREDEFINED:
        return _u16(raw)
    if kind == TopicType.SHORT:
        _exactly(raw, 2)
    _at_least(raw, 1)
    return _text(raw)


class Subscribe(Struct):
    TYPE: ClassVar[MessageType] = MessageType.SUBSCRIBE
    topic_type: int
    topic: str | int
    msg_id: int
    qos: int = 0
    dup: bool = False

    def body(self) -> bytes:
        flags = _FLAGS_OF_QOS[self.qos] | self.topic_type | (DUP if self.dup else 0)
        return _FLAGS_U16.pack(flags, self.msg_id) + _topic_field(self.topic)

    @staticmethod
    def unpack(body: bytes) -> Subscribe:
        _at_least(body, 4)
        flags, msg_id = _FLAGS_U16.unpack_from(body)
        kind, qos = _topic_type(flags), _QOS_OF_FLAGS[(flags >> 5) & 3]
        if qos < 0:
            raise MalformedPacket("bad qos")
        return Subscribe(kind, _topic_of(kind, body[3:]), msg_id, qos, bool(flags & DUP))


class SubAck(Struct):
    """`topic_id` is 0 for wildcards and short names: the gateway registers each name as it comes."""

    TYPE: ClassVar[MessageType] = MessageType.SUBACK
    topic_id: int
    msg_id: int
    return_code: int
    qos: int = 0

    def body(self) -> bytes:
        return _FLAGS_U16_U16_CODE.pack(_FLAGS_OF_QOS[self.qos], self.topic_id, self.msg_id, self.return_code)

    @staticmethod
    def unpack(body: bytes) -> SubAck:
        _exactly(body, 6)
        flags, topic_id, msg_id, code = _FLAGS_U16_U16_CODE.unpack(body)
        return SubAck(topic_id, msg_id, code, _QOS_OF_FLAGS[(flags >> 5) & 3])


class Unsubscribe(Struct):
    TYPE: ClassVar[MessageType] = MessageType.UNSUBSCRIBE
    topic_type: int
    topic: str | int
    msg_id: int

    def body(self) -> bytes:
        return _FLAGS_U16.pack(self.topic_type, self.msg_id) + _topic_field(self.topic)

    @staticmethod
    def unpack(body: bytes) -> Unsubscribe:
        _at_least(body, 4)
        flags, msg_id = _FLAGS_U16.unpack_from(body)
        kind = _topic_type(flags)
        return Unsubscribe(kind, _topic_of(kind, body[3:]), msg_id)


class PingReq(Struct):
    """With a client id it is a sleeping client's "I am awake: send what you have"."""

    TYPE: ClassVar[MessageType] = MessageType.PINGREQ
    client_id: str = ""

    def body(self) -> bytes:
        return self.client_id.encode()

    @staticmethod
    def unpack(body: bytes) -> PingReq:
        return PingReq(_text(body))


class Disconnect(Struct):
    """With a duration it means "I sleep for so long"."""

    TYPE: ClassVar[MessageType] = MessageType.DISCONNECT
    duration_s: int | None = None

    def body(self) -> bytes:
        return b"" if self.duration_s is None else _U16.pack(self.duration_s)

    @staticmethod
    def unpack(body: bytes) -> Disconnect:
        return Disconnect(_u16(body) if body else None)


AnyMessage = (
    Advertise
    | SearchGw
    | GwInfo
    | Connect
    | ConnAck
    | WillTopicReq
    | WillTopic
    | WillMsgReq
    | WillMsg
    | Register
    | RegAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | WillTopicUpd
    | WillTopicResp
    | WillMsgUpd
    | WillMsgResp
)

MESSAGES: tuple[type[AnyMessage], ...] = AnyMessage.__args__

UNPACK: dict[int, Callable[[bytes], AnyMessage]] = {cls.TYPE: cls.unpack for cls in MESSAGES}

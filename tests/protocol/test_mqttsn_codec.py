"""The MQTT-SN codec against vectors written out by hand, against itself, and against bytes that mean nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqttsn import (
    MAX_PACKET_BYTES,
    MESSAGES,
    Advertise,
    AnyMessage,
    ConnAck,
    Connect,
    Disconnect,
    GwInfo,
    MalformedPacket,
    MessageType,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    SearchGw,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    WillMsg,
    WillMsgReq,
    WillMsgResp,
    WillMsgUpd,
    WillTopic,
    WillTopicReq,
    WillTopicResp,
    WillTopicUpd,
    decapsulate,
    decode,
    encapsulate,
    encode,
    is_encapsulated,
    short_topic_id,
    short_topic_name,
)
from tests.support.mqttsn_strategies import BY_TYPE, any_message, samples

# Length, type, then the fields of section 5.4 of the MQTT-SN 1.2 specification.
# Flags: DUP 80, QoS 60 (1: 20, 2: 40, -1: 60), Retain 10, Will 08, CleanSession 04, TopicIdType 03.
VECTORS: list[tuple[str, AnyMessage]] = [
    ("05 00  01 0384", Advertise(gateway_id=1, duration_s=900)),
    ("03 01  02", SearchGw(radius=2)),
    ("03 02  07", GwInfo(gateway_id=7)),
    ("07 02  07 c0a80001", GwInfo(gateway_id=7, address=b"\xc0\xa8\x00\x01")),
    ("08 04  00 01 003c 6162", Connect("ab", 60, clean=False)),
    ("08 04  04 01 003c 6162", Connect("ab", 60, clean=True)),
    ("08 04  08 01 003c 6162", Connect("ab", 60, clean=False, will=True)),
    ("08 04  0c 01 ffff 6162", Connect("ab", 65535, clean=True, will=True)),
    ("08 04  04 02 003c 6162", Connect("ab", 60, protocol_id=2)),
    ("03 05  00", ConnAck(0)),
    ("03 05  03", ConnAck(3)),
    ("02 06", WillTopicReq()),
    ("06 07  00 612f62", WillTopic("a/b", qos=0)),
    ("06 07  30 612f62", WillTopic("a/b", qos=1, retain=True)),
    ("06 07  40 612f62", WillTopic("a/b", qos=2)),
    ("02 07", WillTopic("")),
    ("02 08", WillMsgReq()),
    ("04 09  6869", WillMsg(b"hi")),
    ("02 09", WillMsg(b"")),
    ("09 0a  0000 0001 612f62", Register(topic_id=0, msg_id=1, topic="a/b")),
    ("08 0a  1234 0001 c3a4", Register(topic_id=0x1234, msg_id=1, topic="ä")),
    ("07 0b  0005 0001 00", RegAck(topic_id=5, msg_id=1, return_code=0)),
    ("0a 0c  00 0005 0000 616263", Publish(0, 5, 0, b"abc")),
    ("0a 0c  20 0005 0002 616263", Publish(0, 5, 2, b"abc", qos=1)),
    ("0a 0c  61 0005 0000 616263", Publish(1, 5, 0, b"abc", qos=-1)),
    ("0a 0c  d2 6162 0002 616263", Publish(2, 0x6162, 2, b"abc", qos=2, retain=True, dup=True)),
    ("07 0c  20 0005 0002", Publish(0, 5, 2, b"", qos=1)),
    ("07 0d  0005 0002 02", PubAck(topic_id=5, msg_id=2, return_code=2)),
    ("04 0e  0002", PubComp(2)),
    ("04 0f  0002", PubRec(2)),
    ("04 10  0002", PubRel(2)),
    ("08 12  20 0003 612f62", Subscribe(0, "a/b", 3, qos=1)),
    ("07 12  81 0003 0009", Subscribe(1, 9, 3, dup=True)),
    ("07 12  42 0003 6162", Subscribe(2, "ab", 3, qos=2)),
    ("08 13  20 0005 0003 00", SubAck(topic_id=5, msg_id=3, return_code=0, qos=1)),
    ("08 14  00 0004 612f23", Unsubscribe(0, "a/#", 4)),
    ("07 14  01 0004 0009", Unsubscribe(1, 9, 4)),
    ("07 14  02 0004 6162", Unsubscribe(2, "ab", 4)),
    ("04 15  0004", UnsubAck(4)),
    ("02 16", PingReq()),
    ("05 16  646576", PingReq("dev")),
    ("02 17", PingResp()),
    ("02 18", Disconnect()),
    ("04 18  003c", Disconnect(60)),
    ("04 18  0000", Disconnect(0)),
    ("06 1a  30 612f62", WillTopicUpd("a/b", qos=1, retain=True)),
    ("02 1a", WillTopicUpd("")),
    ("03 1b  00", WillTopicResp(0)),
    ("04 1c  6869", WillMsgUpd(b"hi")),
    ("03 1d  02", WillMsgResp(2)),
]


def long_header(datagram: bytes) -> bytes:
    """The same packet with the three-octet length."""
    size = len(datagram) + 2
    return bytes((0x01, size >> 8, size & 0xFF)) + datagram[1:]


@pytest.mark.parametrize(("octets", "message"), VECTORS, ids=[octets for octets, _ in VECTORS])
def test_a_message_has_the_octets_of_the_specification(octets: str, message: AnyMessage) -> None:
    assert encode(message) == bytes.fromhex(octets)
    assert decode(bytes.fromhex(octets)) == message


def test_the_vectors_and_the_strategies_leave_no_message_type_out() -> None:
    assert {type(message) for _, message in VECTORS} == set(MESSAGES) == set(BY_TYPE)
    assert {type(message) for message in samples()} == set(MESSAGES)
    assert {message.TYPE for message in MESSAGES} == set(MessageType) - {MessageType.ENCAPSULATED}


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_what_was_encoded_is_decoded_to_the_same_message(kind: type[AnyMessage], data: st.DataObject) -> None:
    message = data.draw(BY_TYPE[kind])
    datagram = encode(message)
    assert decode(datagram) == message
    assert datagram[0] == len(datagram) if len(datagram) < 256 else datagram[:1] == b"\x01"


@given(any_message)
def test_a_short_packet_may_come_with_the_long_header(message: AnyMessage) -> None:
    datagram = encode(message)
    if len(datagram) < 256:
        assert decode(long_header(datagram)) == message


@pytest.mark.parametrize(
    ("payload_bytes", "packet_bytes", "header"),
    [
        (247, 254, "fe0c"),
        (248, 255, "ff0c"),
        (249, 258, "0101020c"),  # two octets more for the longer header
        (250, 259, "0101030c"),
        (65_526, 65_535, "01ffff0c"),
    ],
)
def test_the_header_grows_when_the_length_does_not_fit_in_an_octet(
    payload_bytes: int, packet_bytes: int, header: str
) -> None:
    message = Publish(0, 1, 1, bytes(payload_bytes), qos=1)
    datagram = encode(message)
    assert len(datagram) == packet_bytes
    assert datagram.startswith(bytes.fromhex(header))
    assert decode(datagram) == message


@pytest.mark.parametrize(
    "message",
    [Publish(0, 1, 1, bytes(65_527)), WillMsg(bytes(65_532)), Register(0, 1, "x" * 65_528), PingReq("x" * 70_000)],
    ids=lambda message: type(message).__name__,
)
def test_a_message_larger_than_a_packet_cannot_be_encoded(message: AnyMessage) -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_PACKET_BYTES}"):
        encode(message)


@given(st.binary(max_size=64))
def test_whatever_the_bytes_are_only_malformed_packet_is_raised(datagram: bytes) -> None:
    try:
        message = decode(datagram)
    except MalformedPacket as error:
        assert error.reason
    else:
        assert decode(encode(message)) == message


@given(st.sampled_from(sorted(set(MessageType))), st.binary(max_size=40), st.booleans())
def test_a_body_of_random_bytes_decodes_or_is_malformed(kind: int, body: bytes, long: bool) -> None:
    datagram = bytes((len(body) + 2, kind)) + body
    try:
        message = decode(long_header(datagram) if long else datagram)
    except MalformedPacket as error:
        assert error.reason
    else:
        assert kind == message.TYPE
        assert decode(encode(message)) == message


@given(any_message, st.data())
def test_no_proper_prefix_of_a_packet_is_a_packet(message: AnyMessage, data: st.DataObject) -> None:
    datagram = encode(message)
    cut = data.draw(st.integers(0, len(datagram) - 1))
    with pytest.raises(MalformedPacket):
        decode(datagram[:cut])


@given(any_message, st.binary(min_size=1, max_size=8))
def test_bytes_after_the_packet_are_refused(message: AnyMessage, trailing: bytes) -> None:
    with pytest.raises(MalformedPacket, match="wrong length"):
        decode(encode(message) + trailing)


@pytest.mark.parametrize(
    "octets",
    [
        "",
        "00",
        "01",
        "0100",
        "010004",
        "0204",  # CONNECT without anything
        "030400",
        "020c",  # PUBLISH without anything
        "030c00",
        "050c000001",
        "06 04 04 01 003c",  # CONNECT with an empty client id
        "03 07 00",  # WILLTOPIC with flags and no topic
        "06 0a 0001 0001",  # REGISTER without a name
        "05 12 00 0001",  # SUBSCRIBE without a topic
        "05 14 00 0001",
        "02 02",  # GWINFO without an id
        "02 05",
    ],
)
def test_a_packet_that_ends_too_early_is_malformed(octets: str) -> None:
    with pytest.raises(MalformedPacket):
        decode(bytes.fromhex(octets))


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        ("02 03", "unknown type"),
        ("02 11", "unknown type"),
        ("02 1e", "unknown type"),
        ("02 ff", "unknown type"),
        ("00 16", "wrong length"),
        ("03 16", "wrong length"),
        ("01 0000 16", "wrong length"),
        ("01 0005 16", "wrong length"),
        ("03 17 00", "wrong length"),
        ("04 05 0000", "wrong length"),
        ("05 0f 000102", "wrong length"),
        ("05 18 000102", "wrong length"),
        ("03 18 00", "wrong length"),
        ("06 00 01 0384 00", "wrong length"),
        ("08 12 01 0003 000900", "wrong length"),  # a predefined id of three octets
        ("08 12 02 0003 616263", "wrong length"),  # a short name of three octets
        ("06 14 02 0003 61", "wrong length"),
        ("08 0c 03 0001 0001 00", "reserved topic type"),
        ("07 12 03 0001 6162", "reserved topic type"),
        ("07 14 03 0001 6162", "reserved topic type"),
        ("06 07 60 612f62", "bad qos"),
        ("06 1a 60 612f62", "bad qos"),
        ("08 12 60 0001 612f62", "bad qos"),
        ("08 04 04 01 003c ff62", "not utf-8"),
        ("05 07 00 c328", "not utf-8"),
        ("05 1a 00 eda0", "not utf-8"),
        ("08 0a 0000 0001 ffff", "not utf-8"),
        ("07 12 00 0001 ff62", "not utf-8"),
        ("07 12 02 0001 c3c3", "not utf-8"),
        ("07 14 00 0001 c080", "not utf-8"),
        ("04 16 edb0", "not utf-8"),
    ],
)
def test_a_packet_is_refused_with_its_reason(octets: str, reason: str) -> None:
    with pytest.raises(MalformedPacket) as error:
        decode(bytes.fromhex(octets))
    assert error.value.reason == reason


def test_a_short_topic_is_the_two_octets_of_its_name() -> None:
    assert short_topic_id("ab") == 0x6162
    assert short_topic_name(0x6162) == "ab"
    assert short_topic_id("ä") == 0xC3A4
    with pytest.raises(ValueError, match="two octets"):
        short_topic_id("abc")
    with pytest.raises(MalformedPacket, match="not utf-8"):
        short_topic_name(0xFFFF)


# Forwarder encapsulation (section 5.4.22): length of the header alone, type FE, radius, node id, then the message.


def test_an_encapsulated_message_has_the_octets_of_the_specification() -> None:
    octets = bytes.fromhex("05 fe 02 abcd  02 16")
    assert encapsulate(encode(PingReq()), b"\xab\xcd", radius=2) == octets
    assert decapsulate(octets) == (b"\xab\xcd", bytes.fromhex("02 16"))


@given(st.lists(st.binary(max_size=252), max_size=4), any_message)
def test_nested_encapsulation_is_undone_from_the_outside(route: list[bytes], message: AnyMessage) -> None:
    datagram = encode(message)
    for node_id in route:
        datagram = encapsulate(datagram, node_id)
    for node_id in reversed(route):
        assert is_encapsulated(datagram)
        outer, datagram = decapsulate(datagram)
        assert outer == node_id
    assert decode(datagram) == message


@pytest.mark.parametrize("octets", ["05 fe 00 abcd", "03 fe 00", "06 fe 00 abcd 02", "ff fe 00 0216", "03 fe"])
def test_an_encapsulation_without_a_message_is_malformed(octets: str) -> None:
    with pytest.raises(MalformedPacket):
        decapsulate(bytes.fromhex(octets))


@pytest.mark.parametrize("octets", ["", "fe", "02 fe", "00 fe 00", "02 fe 00 0216", "01 fe 00 0216", "04 16 fe00"])
def test_what_has_no_forwarder_header_is_not_taken_for_one(octets: str) -> None:
    assert not is_encapsulated(bytes.fromhex(octets))
    with pytest.raises(MalformedPacket, match="not encapsulated"):
        decapsulate(bytes.fromhex(octets))


@given(st.binary(max_size=32))
def test_decapsulating_random_bytes_raises_nothing_else(datagram: bytes) -> None:
    try:
        node_id, inner = decapsulate(datagram)
    except MalformedPacket:
        return
    assert inner
    assert datagram.endswith(node_id + inner)


def test_a_node_id_that_does_not_fit_is_refused() -> None:
    assert decapsulate(encapsulate(b"\x02\x16", bytes(252))) == (bytes(252), b"\x02\x16")
    with pytest.raises(ValueError, match="at most 252"):
        encapsulate(b"\x02\x16", bytes(253))


def test_an_encapsulated_message_is_not_decoded_as_a_message() -> None:
    with pytest.raises(MalformedPacket, match="unknown type"):
        decode(bytes.fromhex("05 fe 02 00 01"))

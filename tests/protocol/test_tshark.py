"""Our packets as Wireshark reads them: an implementation of MQTT-SN 1.2 that shares nothing with ours."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from protocol.mqttsn import (
    AnyMessage,
    Connect,
    Disconnect,
    MessageType,
    PingReq,
    Publish,
    Register,
    TopicType,
    WillTopic,
    WillTopicUpd,
    encapsulate,
    encode,
)
from tests.support.mqttsn_strategies import samples

PORT = 1884


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def frame(datagram: bytes) -> bytes:
    """Ethernet, IPv4 and UDP around a datagram."""
    source, target = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))
    size = len(datagram) + 8
    udp = struct.pack("!HHHH", 40_000, PORT, size, 0) + datagram
    udp_sum = checksum(source + target + struct.pack("!BBH", 0, 17, size) + udp) or 0xFFFF
    udp = udp[:6] + struct.pack("!H", udp_sum) + udp[8:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, len(udp) + 20, 1, 0, 64, 17, 0) + source + target
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return b"\2\0\0\0\0\2" + b"\2\0\0\0\0\1" + b"\x08\0" + ip + udp


def pcap(datagrams: list[bytes]) -> bytes:
    """A capture file, one frame per second."""
    out = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 0x40000, 1)]
    for second, datagram in enumerate(datagrams):
        data = frame(datagram)
        out += [struct.pack("<IIII", second, 0, len(data), len(data)), data]
    return b"".join(out)


def dissect(folder: Path, datagrams: list[bytes]) -> list[dict[str, Any]]:
    """The layers of every frame, as tshark sees them."""
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("tshark is not installed: Wireshark cannot be asked about our packets")
    file = folder / "packets.pcap"
    file.write_bytes(pcap(datagrams))
    checks = [part for name in ("ip", "udp") for part in ("-o", f"{name}.check_checksum:TRUE")]
    command = [tshark, "-r", str(file), "-d", f"udp.port=={PORT},mqttsn", *checks, "-T", "json", "--no-duplicate-keys"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return [packet["_source"]["layers"] for packet in json.loads(done.stdout)]


def names_in(tree: Any) -> set[str]:
    """Every field name anywhere in a dissection."""
    if isinstance(tree, dict):
        return set(tree).union(*map(names_in, tree.values()))
    if isinstance(tree, list):
        return set[str]().union(*map(names_in, tree))
    return set()


def find(tree: Any, name: str) -> list[str]:
    """Every value of a field, in order."""
    found = []
    if isinstance(tree, dict):
        for key, value in tree.items():
            found += [value] if key == name and isinstance(value, str) else find(value, name)
    elif isinstance(tree, list):
        for value in tree:
            found += find(value, name)
    return found


def long_header(datagram: bytes) -> bytes:
    size = len(datagram) + 2
    return bytes((0x01, size >> 8, size & 0xFF)) + datagram[1:]


@dataclass(slots=True)
class Packet:
    """A datagram, the message types on the way into it, and what Wireshark should read in it."""

    datagram: bytes
    types: list[int]
    fields: dict[str, str]
    beyond_wireshark: str = ""
    """Why Wireshark calls this legal packet malformed; the types in it are checked all the same."""


def fields_of(message: AnyMessage) -> dict[str, str]:
    """Fields by Wireshark's names. Its dissector does not show the flags of WILLTOPIC, SUBSCRIBE's QoS and the like."""
    fields: dict[str, str] = {}
    for attribute, name in (("msg_id", "msg.id"), ("topic_id", "topic.id"), ("keep_alive_s", "keep.alive")):
        if hasattr(message, attribute):
            fields[f"mqttsn.{name}"] = str(getattr(message, attribute))
    if hasattr(message, "return_code"):
        fields["mqttsn.return.code"] = f"0x{message.return_code:02x}"
    if isinstance(message, (Connect, PingReq)) and message.client_id:
        fields["mqttsn.client.id"] = message.client_id
    if isinstance(message, Connect):
        fields |= {"mqttsn.will": str(int(message.will)), "mqttsn.clean.session": str(int(message.clean))}
        fields["mqttsn.protocol.id"] = "0x01"
    if isinstance(message, Publish):
        fields |= {"mqttsn.dup": str(int(message.dup)), "mqttsn.retain": str(int(message.retain))}
        fields |= {"mqttsn.qos": f"0x{message.qos % 4:02x}", "mqttsn.topic.id.type": f"0x{message.topic_type:02x}"}
        if message.topic_type == TopicType.SHORT:  # shown as text
            fields.pop("mqttsn.topic.id")
    if isinstance(message, Register) and message.topic.isascii():
        fields["mqttsn.topic"] = message.topic
    if isinstance(message, Disconnect) and message.duration_s is not None:
        fields["mqttsn.sleep.timer"] = str(message.duration_s)
    return fields


def packets() -> list[Packet]:
    """Every sample with both length headers, and some through one and two forwarders."""
    empty_will = "an empty WILLTOPIC is two octets long (5.4.7, 5.4.23); Wireshark wants its flags"
    found = []
    for message in samples():
        why = empty_will if message in (WillTopic(""), WillTopicUpd("")) else ""
        datagram = encode(message)
        found.append(Packet(datagram, [message.TYPE], fields_of(message), why))
        if len(datagram) < 256:
            found.append(Packet(long_header(datagram), [message.TYPE], fields_of(message), why))
            node = f"node{len(found) % 10}".encode()[-4:]
            found.append(Packet(encapsulate(datagram, node), [0xFE, message.TYPE], fields_of(message), why))
    ping = PingReq("sensor-7")
    once = encapsulate(encode(ping), b"\x12\x34", radius=3)
    found.append(Packet(encapsulate(once, b"\x56", radius=1), [0xFE, 0xFE, ping.TYPE], fields_of(ping)))
    for node in (b"", b"12345", bytes(252)):
        why = "a wireless node id has any length (5.4.22); Wireshark reads a number of one to four octets"
        types = [0xFE, int(ping.TYPE)] if node else [0xFE]
        found.append(Packet(encapsulate(encode(ping), node), types, {}, why))
    return found


def test_wireshark_reads_every_packet_as_it_was_meant(tmp_path: Path) -> None:
    sent = packets()
    seen = dissect(tmp_path, [packet.datagram for packet in sent])
    assert len(seen) == len(sent)
    for packet, layers in zip(sent, seen, strict=True):
        where = f"{packet.datagram[:40].hex(' ')}: {layers.get('mqttsn')}"
        types = [int(each, 16) for each in find(layers.get("mqttsn"), "mqttsn.msg.type")]
        assert types == packet.types, where
        # Not counted: "trailing stray characters" in binary payloads and predefined ids, which it takes for text.
        malformed = any("malformed" in name for name in names_in(layers))
        assert malformed is bool(packet.beyond_wireshark), where
        for name, value in packet.fields.items():
            assert find(layers["mqttsn"], name) == [value], f"{name} in {where}"


def test_no_message_type_is_missing_from_what_wireshark_was_asked() -> None:
    assert {kind for packet in packets() for kind in packet.types} == set(MessageType)


def test_wireshark_is_able_to_complain(tmp_path: Path) -> None:
    """The check above is worth something only if a broken packet would be seen."""
    (layers,) = dissect(tmp_path, [bytes.fromhex("07 0c 20 0005")])
    assert any("malformed" in name for name in names_in(layers))

"""Gateways in the field crash on two octets from a stranger."""

from __future__ import annotations

from random import Random

import pytest

from protocol.mqttsn import (
    Connect,
    Disconnect,
    GwInfo,
    PingReq,
    Publish,
    PubRel,
    RegAck,
    Register,
    SearchGw,
    Subscribe,
    TopicType,
    WillTopic,
    encapsulate,
    encode,
)
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto

KILLERS = {
    "nothing at all": "",
    "one octet": "02",
    "a zero": "00",
    "CONNECT without a body": "0204",
    "CONNECT with flags only": "030400",
    "CONNECT without a client id": "06040401003c",
    "PUBLISH without a body": "020c",
    "PUBLISH with flags only": "030c00",
    "PUBLISH with half a topic id": "040c0000",
    "PUBLISH with the reserved topic type": "080c0300010001ff",
    "SUBSCRIBE without a topic": "0512000001",
    "REGISTER without a name": "060a00000001",
    "PUBACK cut short": "040d0001",
    "a length of zero": "000c000001000168",
    "a length larger than the datagram": "ff0c0000010001",
    "a length smaller than the datagram": "030c00000100016869",
    "a long header cut short": "0100",
    "a long header with a length of zero": "0100000c",
    "a long header larger than the datagram": "01ffff0c0000010001",
    "an unknown type": "02ff",
    "a reserved type": "0203",
    "CONNECT with a client id that is not UTF-8": "08040401003cfffe",
    "WILLTOPIC with QoS 3": "04076061",
    "DISCONNECT with half a duration": "031801",
    "a forwarder's header and nothing behind it": "04fe0001",
    "a forwarder's header longer than the datagram": "fffe000102030405",
}


@pytest.mark.parametrize("sender", ["a stranger", "a connected client"])
def test_killer_datagrams_are_counted_and_the_gateway_goes_on_serving(
    sender: str, gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "still/alive")
    one = device(gateway)
    if sender == "a connected client":
        one.connect()
    before = scrape(gateway).value("datagrams_malformed")
    for number, (name, killer) in enumerate(KILLERS.items(), start=1):
        one.send_bytes(bytes.fromhex(killer))
        # One socket's datagrams come in order: with this answer the killer has been worked off.
        one.send(SearchGw())
        assert one.expect(GwInfo).gateway_id == 1, name
        assert scrape(gateway).value("datagrams_malformed") == before + number, name
    if sender == "a stranger":
        one.connect()
    one.publish(one.register("still/alive"), sender.encode(), qos=2)
    recording.wait_for_message("still/alive", sender.encode())


def test_a_chain_of_forwarders_without_end_is_refused(gateway: GatewayService, device: NewDevice) -> None:
    one = device(gateway)
    before = scrape(gateway).value("datagrams_malformed", reason="too many forwarders")
    datagram = encode(SearchGw())
    for node in range(5_000):
        datagram = encapsulate(datagram, node.to_bytes(2))
    one.send_bytes(datagram)
    one.send(SearchGw())
    one.expect(GwInfo)
    assert scrape(gateway).value("datagrams_malformed", reason="too many forwarders") == before + 1


def test_random_and_damaged_datagrams_leave_the_gateway_serving(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    random = Random(20_261_116)
    victim = device(gateway).connect()
    sound = [
        encode(message)
        for message in (
            Connect(victim.client_id, 60, clean=False, will=True),
            WillTopic("w/t", 1),
            Register(0, 1, "some/topic"),
            Publish(TopicType.NORMAL, 1, 2, b"payload", 2),
            Subscribe(TopicType.NORMAL, "some/#", 3, 2),
            PubRel(2),
            RegAck(1, 1, 0),
            PingReq(victim.client_id),
            Disconnect(600),
        )
    ]
    for number in range(3_000):
        if number % 3 == 0:
            datagram = random.randbytes(random.randrange(40))
        else:
            damaged = bytearray(random.choice(sound))
            for _ in range(random.randrange(1, 4)):
                damaged[random.randrange(1, len(damaged))] = random.randrange(256)
            datagram = bytes(damaged[: random.randrange(1, len(damaged) + 1)])
            datagram = bytes((len(datagram),)) + datagram[1:]
        victim.send_bytes(datagram)
        if number % 100 == 0:
            victim.send(SearchGw())
            victim.skip_to(GwInfo)
    victim.send(SearchGw())
    victim.skip_to(GwInfo)
    victim.pending()

    recording = recorder(mosquitto, "after/noise")
    calm = device(gateway).connect()
    calm.publish(calm.register("after/noise"), b"fine", qos=2)
    recording.wait_for_message("after/noise", b"fine")
    assert "Traceback" not in gateway.output()

"""What MQTT-SN gateways in the field are known to get wrong, tried on ours: a running process and a real Mosquitto."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from random import Random

import pytest

from protocol.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    GwInfo,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SearchGw,
    SubAck,
    Subscribe,
    TopicType,
    WillTopic,
    encapsulate,
    encode,
    short_topic_id,
)
from tests.support.peers import Delivered, retained, wait_until
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto

SIZES = (*range(248, 261), 300, 1_000, 10_000, 60_000)
"""Around the largest packet with a one-octet length (a payload of 248), and far beyond."""


def payload_of(name: str, size: int) -> bytes:
    """Bytes that no other device and no other size has."""
    return Random(f"{name} {size}").randbytes(size)


# ---------------------------------------------------------------------- packets with the three-octet length header


def test_large_payloads_of_interleaved_devices_reach_mqtt_byte_for_byte(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "large/up/#")
    devices = [device(gateway).connect() for _ in range(3)]
    ids = [each.register(f"large/up/{each.client_id}") for each in devices]
    for number, size in enumerate(SIZES, start=1):
        for qos, (each, topic_id) in enumerate(zip(devices, ids, strict=True)):
            msg_id = number if qos else 0
            each.send(Publish(TopicType.NORMAL, topic_id, msg_id, payload_of(each.client_id, size), qos))
        assert devices[1].expect(PubAck) == PubAck(ids[1], number, ReturnCode.ACCEPTED)
        assert devices[2].expect(PubRec) == PubRec(number)
        devices[2].send(PubRel(number))
        assert devices[2].expect(PubComp) == PubComp(number)
    recording.wait_for_count(3 * len(SIZES))
    for each in devices:
        expected = [payload_of(each.client_id, size) for size in SIZES]
        assert recording.payloads(f"large/up/{each.client_id}") == expected


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_large_payloads_from_mqtt_reach_each_device_byte_for_byte(
    qos: int, gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    devices = [device(gateway).connect() for _ in range(3)]
    for each in devices:
        each.subscribe(f"large/down/{each.client_id}", qos)
    for size in SIZES:
        for each in devices:
            sender.publish(f"large/down/{each.client_id}", payload_of(each.client_id, size), qos=max(qos, 1))
        for each in devices:
            came = each.deliver()
            assert came == Delivered(
                f"large/down/{each.client_id}", payload_of(each.client_id, size), qos, retain=False, dup=False
            )


def test_a_topic_name_that_needs_the_long_header_works_in_both_directions(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    topic = "long/" + "x" * 700
    recording = recorder(mosquitto, "long/#")
    one = device(gateway).connect()
    one.publish(one.register(topic), b"up", qos=1)
    recording.wait_for_message(topic, b"up")

    wildcard = device(gateway).connect()
    wildcard.subscribe("long/+", qos=1)
    recording.publish(topic, b"down")
    assert wildcard.deliver()[:2] == (topic, b"down")


def test_a_message_larger_than_a_datagram_is_dropped_and_what_comes_after_it_is_delivered(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    one = device(gateway).connect()
    one.subscribe("too/large", qos=1)
    before = scrape(gateway).value("messages_dropped", reason="larger than a datagram")
    for size in (65_500, 65_520, 70_000):
        sender.publish("too/large", bytes(size))
    sender.publish("too/large", b"small")
    assert one.deliver().payload == b"small"
    assert scrape(gateway).value("messages_dropped", reason="larger than a datagram") == before + 3


# ---------------------------------------------------------------------- killer datagrams

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


# ---------------------------------------------------------------------- wills, retransmission, sessions that last


def test_the_wills_of_silent_clients_and_of_sleepers_that_do_not_come_back_are_published(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "wills/#")
    wills = [WillTopic("wills/0", 0), WillTopic("wills/1", 1, retain=True), WillTopic("wills/2", 2)]
    silent = [device(gateway).connect(keep_alive_s=1, will=will) for will in wills]
    sleeper = device(gateway).connect(will=WillTopic("wills/sleeper", 1))
    sleeper.sleep(1)
    for will, each in zip(wills, silent, strict=True):
        recording.wait_for_message(will.topic, f"gone: {each.client_id}".encode(), timeout_s=5)
        each.expect(Disconnect)
    recording.wait_for_message("wills/sleeper", f"gone: {sleeper.client_id}".encode(), timeout_s=5)
    assert len(recording.received) == 4
    assert retained(mosquitto.port, "wills/#") == {"wills/1": f"gone: {silent[1].client_id}".encode()}


def test_a_client_that_takes_its_leave_or_stays_alive_has_no_will_published(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "wills/never/#", "wills/witness")
    leaving = device(gateway).connect(keep_alive_s=1, will=WillTopic("wills/never/left", 1))
    leaving.disconnect()
    alive = device(gateway).connect(keep_alive_s=1, will=WillTopic("wills/never/alive", 1))
    silent = device(gateway).connect(keep_alive_s=1, will=WillTopic("wills/witness", 1))

    def witness() -> bool:
        alive.send(PingReq())
        alive.expect(PingResp)
        return b"gone: " + silent.client_id.encode() in recording.payloads("wills/witness")

    wait_until(witness, "the will of the silent client", every_s=0.2)
    assert [each.topic for each in recording.received] == ["wills/witness"]


def test_a_client_that_does_not_acknowledge_is_sent_everything_again(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    deaf = device(gateway).connect()
    deaf.subscribe("deaf/+", qos=2)
    sender.publish("deaf/test", b"hears well so far: the gateway learns how fast this link is")
    deaf.deliver()

    sender.publish("deaf/ears", b"qos 1", qos=1)
    sender.publish("deaf/ears", b"qos 2", qos=2)
    register = deaf.expect(Register)
    assert deaf.expect(Register) == register
    deaf.send(RegAck(register.topic_id, register.msg_id, ReturnCode.ACCEPTED))
    first, second = deaf.expect(Publish), deaf.expect(Publish)
    assert not first.dup and not second.dup and first.msg_id != second.msg_id

    copies: dict[int, list[Publish]] = {first.msg_id: [], second.msg_id: []}
    while min(len(each) for each in copies.values()) < 2:
        copy = deaf.expect(Publish)
        copies[copy.msg_id].append(copy)
    for original in (first, second):
        assert all(each == replace(original, dup=True) for each in copies[original.msg_id])

    deaf.send(PubAck(first.topic_id, first.msg_id, ReturnCode.ACCEPTED))
    deaf.send(PubRec(second.msg_id))
    for _ in range(3):
        assert deaf.skip_to(PubRel) == PubRel(second.msg_id)
    deaf.send(PubComp(second.msg_id))
    sender.publish("deaf/ears", b"enough")
    assert deaf.skip_to(Publish).payload == b"enough"
    counted = scrape(gateway)
    for packet, times in (("register", 1), ("publish", 4), ("pubrel", 2)):
        assert counted.value("retransmissions", packet=packet) >= times


def test_a_persistent_session_keeps_subscriptions_and_messages_while_its_client_is_away(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    one = device(gateway).connect(clean=False)
    one.subscribe("away/#", qos=2)
    one.disconnect()
    sent = [f"message {number}".encode() for number in range(50)]
    sender.publish_all("away/news", sent)
    wait_until(lambda: scrape(gateway).value("buffered_bytes") > 0, "messages kept for the client")

    one.connect(clean=False)
    assert [one.deliver().payload for _ in sent] == sent
    sender.publish("away/news", b"the subscription is still there")
    assert one.deliver().payload == b"the subscription is still there"


def test_a_clean_start_ends_the_session_that_was_kept(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    one = device(gateway).connect(clean=False)
    one.subscribe("before/#", qos=1)
    one.disconnect()
    one.connect(clean=True)
    one.subscribe("after", qos=1)
    sender.publish("before/x", b"must not come")
    sender.publish("after", b"comes")
    assert one.deliver().payload == b"comes"
    assert one.pending() == []


# ---------------------------------------------------------------------- many clients come and go


def test_the_slots_of_thousands_of_clients_that_came_and_went_are_free_again(
    own_gateway: GatewayService, device: NewDevice
) -> None:
    seats = [device(own_gateway) for _ in range(20)]
    for round_ in range(150):
        for number, seat in enumerate(seats):
            seat.send(Connect(f"visitor-{round_}-{number}", 60))
        for seat in seats:
            assert seat.expect(ConnAck).return_code == ReturnCode.ACCEPTED
            seat.send(PingReq())
        for seat in seats:
            seat.expect(PingResp)
        if round_ == 0:
            assert scrape(own_gateway).sessions == len(seats)
        for seat in seats:
            seat.send(Disconnect())
        for seat in seats:
            seat.expect(Disconnect)
    assert scrape(own_gateway).sessions == 0
    assert scrape(own_gateway).value("sessions_ended", reason="disconnect") == 3_000


def test_the_slots_of_clients_that_vanished_are_freed(own_gateway: GatewayService, device: NewDevice) -> None:
    for _ in range(50):
        device(own_gateway).connect(keep_alive_s=1)
    assert scrape(own_gateway).sessions == 50
    wait_until(lambda: scrape(own_gateway).sessions == 0, "the sessions of vanished clients to end", every_s=0.1)
    assert scrape(own_gateway).value("sessions_lost", reason="keep-alive") == 50


# ---------------------------------------------------------------------- sleeping clients


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_sleeper_fetches_hundreds_of_messages_with_one_pingreq_and_then_gets_its_pingresp(
    qos: int, gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    sleeper = device(gateway).connect()
    sleeper.subscribe("night/mail", qos)
    sleeper.sleep()
    sent = [f"letter {number}".encode() for number in range(200)]
    sender.publish_all("night/mail", sent)
    size = sum(len(each) for each in sent)
    wait_until(lambda: scrape(gateway).value("buffered_bytes") >= size, "all letters at the gateway")
    assert sleeper.pending() == []

    sleeper.send(PingReq(sleeper.client_id))
    came = [sleeper.deliver() for _ in sent]
    assert [each.payload for each in came] == sent
    assert {each.qos for each in came} == {qos}
    sleeper.expect(PingResp)

    # It sleeps on: the next message waits for the next PINGREQ.
    sender.publish("night/mail", b"another", qos=1)
    wait_until(lambda: scrape(gateway).value("buffered_bytes") > 0, "the letter at the gateway")
    assert sleeper.pending() == []
    sleeper.send(PingReq(sleeper.client_id))
    assert sleeper.deliver().payload == b"another"
    sleeper.expect(PingResp)
    sleeper.send(PingReq(sleeper.client_id))
    sleeper.expect(PingResp)


def test_messages_a_sleeper_has_no_room_for_are_counted_and_the_newest_are_kept(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    sleeper = device(gateway).connect()
    sleeper.subscribe("night/flood", qos=1)
    sleeper.sleep()
    dropped = scrape(gateway).value("messages_dropped", reason="buffer full, client asleep")
    sent = [f"{number:05d}".encode() for number in range(1_100)]
    sender.publish_all("night/flood", sent)
    wait_until(
        lambda: scrape(gateway).value("messages_dropped", reason="buffer full, client asleep") == dropped + 100,
        "one hundred drops counted",
    )
    sleeper.send(PingReq(sleeper.client_id))
    assert [sleeper.deliver().payload for _ in range(1_000)] == sent[100:]
    sleeper.expect(PingResp)


def test_a_sleeper_that_wakes_up_for_good_gets_what_was_kept(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    sleeper = device(gateway).connect(clean=False)
    sleeper.subscribe("night/+", qos=1)
    sleeper.sleep()
    sender.publish("night/one", b"kept")
    wait_until(lambda: scrape(gateway).value("buffered_bytes") > 0, "the message at the gateway")
    sleeper.connect(clean=False)
    assert sleeper.deliver()[:2] == ("night/one", b"kept")
    sender.publish("night/two", b"at once")
    assert sleeper.deliver()[:2] == ("night/two", b"at once")


# ---------------------------------------------------------------------- a client comes back from another port


def test_a_client_that_reconnects_from_another_port_keeps_session_topics_and_messages(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "nat/up")
    roamer = device(gateway).connect(clean=False)
    topic_id = roamer.register("nat/up")
    roamer.subscribe("nat/down", qos=1)
    roamer.move()
    recording.publish("nat/down", b"sent to the port it has left")

    roamer.connect(clean=False)
    assert roamer.deliver()[:2] == ("nat/down", b"sent to the port it has left")
    roamer.publish(topic_id, b"same topic id", qos=1)
    recording.wait_for_message("nat/up", b"same topic id")


def test_a_sleeper_that_wakes_behind_another_port_gets_its_messages_there(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    rebound = scrape(gateway).value("sessions_rebound")
    sleeper = device(gateway).connect()
    sleeper.subscribe("nat/sleeper", qos=1)
    sleeper.sleep()
    sent = [f"message {number}".encode() for number in range(30)]
    sender.publish_all("nat/sleeper", sent)
    wait_until(lambda: scrape(gateway).value("buffered_bytes") > 0, "messages at the gateway")

    sleeper.move()
    sleeper.send(PingReq(sleeper.client_id))
    assert [sleeper.deliver().payload for _ in sent] == sent
    sleeper.expect(PingResp)
    assert scrape(gateway).value("sessions_rebound") == rebound + 1


def test_two_clients_that_swap_ports_are_not_mixed_up(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    pair = [device(gateway).connect(clean=False) for _ in range(2)]
    for each in pair:
        each.subscribe(f"nat/{each.client_id}", qos=1)
    pair[0].swap_ports(pair[1])
    for each in pair:
        each.send(Connect(each.client_id, 60, clean=False))
        each.skip_to(ConnAck)
    for each in pair:
        each.send(PingReq())
        each.skip_to(PingResp)  # after a DISCONNECT for the client that was at this port before
        sender.publish(f"nat/{each.client_id}", each.client_id.encode())
    for each in pair:
        assert each.deliver()[:2] == (f"nat/{each.client_id}", each.client_id.encode())


# ---------------------------------------------------------------------- QoS -1, predefined topics, GWINFO, refusals


def test_qos_minus_one_needs_no_connection_with_predefined_and_short_topics(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "plant/alarm", "al")
    stranger = device(gateway)
    stranger.publish(1, b"predefined", qos=-1, topic_type=TopicType.PREDEFINED)
    stranger.publish(short_topic_id("al"), b"short", qos=-1, topic_type=TopicType.SHORT)
    recording.wait_for_message("plant/alarm", b"predefined")
    recording.wait_for_message("al", b"short")
    dropped = scrape(gateway).value("messages_dropped", reason="unknown topic at qos -1")
    stranger.publish(99, b"nobody knows this id", qos=-1, topic_type=TopicType.PREDEFINED)
    stranger.publish(1, b"nobody registered this id", qos=-1)
    stranger.send(SearchGw())
    stranger.expect(GwInfo)
    assert scrape(gateway).value("messages_dropped", reason="unknown topic at qos -1") == dropped + 2
    assert len(recording.received) == 2


def test_topics_of_the_predefined_file_work_in_both_directions_and_per_client(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "plant/#")
    pump = device(gateway, "pump-7").connect()
    pump.predefined = {1: "plant/alarm", 2: "plant/level", 3: "plant/pumps/7"}
    pump.publish(2, b"for all clients", qos=1, topic_type=TopicType.PREDEFINED)
    recording.wait_for_message("plant/level", b"for all clients")
    pump.publish(3, b"for this client", qos=2, topic_type=TopicType.PREDEFINED)
    recording.wait_for_message("plant/pumps/7", b"for this client")
    assert pump.subscribe(3, qos=1).topic_id == 3
    recording.publish("plant/pumps/7", b"down")
    assert pump.expect(Publish).topic_type == TopicType.PREDEFINED

    other = device(gateway).connect()
    other.send(Publish(TopicType.PREDEFINED, 3, 1, b"not mine", 1))
    assert other.expect(PubAck) == PubAck(3, 1, ReturnCode.INVALID_TOPIC)
    other.send(Subscribe(TopicType.PREDEFINED, 3, 2, 1))
    assert other.expect(SubAck).return_code == ReturnCode.INVALID_TOPIC


def test_short_topic_names_work_in_both_directions(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "up")
    one = device(gateway).connect()
    one.publish(short_topic_id("up"), b"short", qos=1, topic_type=TopicType.SHORT)
    recording.wait_for_message("up", b"short")
    one.subscribe("dn", qos=1, topic_type=TopicType.SHORT)
    recording.publish("dn", b"down")
    assert one.deliver()[:2] == ("dn", b"down")


def test_searchgw_is_answered_to_the_one_who_asks(gateway: GatewayService, device: NewDevice) -> None:
    stranger = device(gateway)
    stranger.send(SearchGw(radius=1))
    assert stranger.expect(GwInfo) == GwInfo(1, b"")
    connected = device(gateway).connect()
    connected.send(SearchGw())
    assert connected.expect(GwInfo) == GwInfo(1, b"")


@pytest.mark.parametrize("topic_type", [TopicType.NORMAL, TopicType.PREDEFINED])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_to_an_unknown_topic_is_answered_invalid_topic(
    qos: int, topic_type: TopicType, gateway: GatewayService, device: NewDevice
) -> None:
    one = device(gateway).connect()
    msg_id = 77 if qos else 0
    one.send(Publish(topic_type, 500, msg_id, b"where to?", qos))
    assert one.expect(PubAck) == PubAck(500, msg_id, ReturnCode.INVALID_TOPIC)


# ---------------------------------------------------------------------- the broker goes away and comes back


def test_devices_are_told_of_congestion_while_mosquitto_is_away_and_go_on_when_it_is_back(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(own_mosquitto, "outage/#")
    one = device(own_gateway).connect()
    topic_id = one.register("outage/up")
    one.subscribe("outage/down", qos=1)
    own_mosquitto.stop()
    wait_until(lambda: not scrape(own_gateway).value("mqtt_connected"), "the gateway to notice")

    newcomer = device(own_gateway)
    newcomer.send(Connect(newcomer.client_id, 60))
    assert newcomer.expect(ConnAck).return_code == ReturnCode.CONGESTION
    for qos in (0, 1, 2):
        msg_id = 40 + qos if qos else 0
        one.send(Publish(TopicType.NORMAL, topic_id, msg_id, b"during the outage", qos))
        assert one.expect(PubAck) == PubAck(topic_id, msg_id, ReturnCode.CONGESTION)
    one.send(Subscribe(TopicType.NORMAL, "outage/other", 50, 1))
    answer = one.expect(SubAck)
    assert (answer.msg_id, answer.return_code) == (50, ReturnCode.CONGESTION)
    one.send(PingReq())
    one.expect(PingResp)

    own_mosquitto.start()
    wait_until(lambda: scrape(own_gateway).value("mqtt_connected"), "the gateway to come back", timeout_s=5)
    recording.wait_until_connected()
    for qos in (0, 1, 2):
        one.publish(topic_id, f"after it, qos {qos}".encode(), qos)
        recording.wait_for_message("outage/up", f"after it, qos {qos}".encode())
    assert b"during the outage" not in recording.payloads()
    newcomer.connect()
    recording.publish("outage/down", b"the old subscription")
    assert one.deliver().payload == b"the old subscription"
    one.subscribe("outage/other", qos=1)
    recording.publish("outage/other", b"the new subscription")
    assert one.deliver().payload == b"the new subscription"


# ---------------------------------------------------------------------- the gateway is killed and comes back


def test_registrations_survive_a_killed_gateway_and_the_client_is_told(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(own_mosquitto, "survive/#")
    lasting = device(own_gateway).connect(clean=False)
    ids = [lasting.register(f"survive/{number}") for number in range(20)]
    lasting.publish(ids[0], b"before", qos=1)
    lasting.subscribe("survive/down", qos=1)
    fleeting = device(own_gateway).connect(clean=True)
    fleeting_id = fleeting.register("survive/fleeting")

    own_gateway.kill()
    recording.publish("survive/down", b"while the gateway was dead")
    own_gateway.start()

    lasting.expect(Disconnect)  # the notice
    lasting.send(Publish(TopicType.NORMAL, ids[0], 900, b"did not see it", 1))
    lasting.expect(Disconnect)  # and again on the next packet
    fleeting.send(Publish(TopicType.NORMAL, fleeting_id, 900, b"a session that is gone", 1))
    fleeting.expect(Disconnect)

    lasting.connect(clean=False)
    assert lasting.deliver()[:2] == ("survive/down", b"while the gateway was dead")
    for number, topic_id in enumerate(ids):
        lasting.publish(topic_id, f"after {number}".encode(), qos=1)
        recording.wait_for_message(f"survive/{number}", f"after {number}".encode())
    assert lasting.register("survive/7") == ids[7]
    payloads = recording.payloads()
    assert b"did not see it" not in payloads and b"a session that is gone" not in payloads


# ---------------------------------------------------------------------- latency


def test_qos_0_through_the_gateway_is_not_held_back_by_nagle_and_delayed_acknowledgements(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "latency", qos=0)
    direct = recorder(mosquitto)
    one = device(gateway).connect()
    topic_id = one.register("latency")

    def through_the_gateway(payload: bytes) -> None:
        one.publish(topic_id, payload)

    def straight(payload: bytes) -> None:
        direct.publish("latency", payload, qos=0)

    medians = {}
    for name, publish in (("gateway", through_the_gateway), ("direct", straight)):
        took = []
        for number in range(50):
            payload = f"{name} {number}".encode()
            start = time.perf_counter()
            publish(payload)
            recording.wait_for_message("latency", payload)
            took.append(time.perf_counter() - start)
        medians[name] = statistics.median(took)
    assert medians["gateway"] < 0.020, medians
    assert medians["gateway"] < 10 * medians["direct"] + 0.002, medians

"""The thread and the socket around a session: what only they can get wrong."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from edge_agent.transport import (
    Client,
    ClientClosed,
    ClientSession,
    Delivery,
    DeliveryFailed,
    Message,
    Pending,
    QueueFull,
    Refused,
    RetryPolicy,
    TransportError,
    Will,
)
from edge_agent.transport import client as client_module
from protocol.address import parse_address
from protocol.mqttsn import ConnAck, Connect, Disconnect, PingReq, Publish, ReturnCode
from tests.edge_agent.transport.reference_gateway import UdpGateway
from threadline.lossy_link import LossyLink

IMPATIENT = RetryPolicy(first_s=0.05, least_s=0.05, most_s=0.2, attempts=3)


@pytest.fixture
def gateway() -> Iterator[UdpGateway]:
    with UdpGateway() as gateway:
        yield gateway


@pytest.fixture
def client(gateway: UdpGateway) -> Iterator[Client]:
    with Client(gateway.address, "car-7") as client:
        client.wait_connected(10)
        yield client


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{silent.getsockname()[1]}"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_every_quality_arrive(gateway: UdpGateway, client: Client, qos: int) -> None:
    for number in range(100):
        client.publish("cars/7", b"%d" % number, qos=qos)
    client.flush(10)
    gateway.wait_for(lambda: len(gateway.gateway.taken) == 100)
    assert gateway.gateway.taken == [("cars/7", b"%d" % number, qos) for number in range(100)]
    assert client.stats().delivered[qos] == 100


def test_large_and_small_messages_arrive_unharmed(gateway: UdpGateway, client: Client) -> None:
    sizes = (0, 1, 247, 248, 249, 255, 256, 1_400, 9_000, 65_498)
    for size in sizes:
        client.publish("ab", bytes(size), qos=1).result(10)
    assert [len(payload) for _, payload, _ in gateway.gateway.taken] == list(sizes)


def test_a_payload_may_be_changed_after_the_call(gateway: UdpGateway, client: Client) -> None:
    payload = bytearray(b"before")
    delivery = client.publish("ab", payload)
    payload[:] = b"after!"
    delivery.result(10)
    assert gateway.gateway.taken[0][1] == b"before"


@pytest.mark.parametrize("payload", ["text", 5, None])
def test_what_is_not_bytes_is_refused(client: Client, payload: object) -> None:
    with pytest.raises(TypeError):
        client.publish("ab", payload)  # type: ignore[arg-type]


def test_many_threads_may_publish(gateway: UdpGateway, client: Client) -> None:
    def publish(name: int) -> None:
        for number in range(50):
            client.publish(f"cars/{name}", b"%d" % number, qos=1, timeout=10)

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.flush(10)
    taken = Counter(gateway.gateway.taken)
    assert set(taken) == {(f"cars/{name}", b"%d" % number, 1) for name in range(8) for number in range(50)}


def test_a_subscription_receives_and_its_callback_may_publish(gateway: UdpGateway, client: Client) -> None:
    answered: list[Delivery] = []

    def answer(message: Message) -> None:
        answered.append(client.publish("up/x", message.payload + b"!", qos=2))

    assert client.subscribe("down/#", answer, qos=2).result(10) == 2
    gateway.hand_out("down/a", b"hello", 2)
    gateway.wait_for(lambda: gateway.gateway.taken)
    answered[0].result(10)
    assert gateway.gateway.taken == [("up/x", b"hello!", 2)]
    client.unsubscribe("down/#").result(10)


def test_an_error_in_a_callback_is_logged_and_counted_and_the_next_message_comes(
    gateway: UdpGateway, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    came = threading.Event()

    def broken(message: Message) -> None:
        if message.payload == b"1":
            raise ZeroDivisionError("in the application")
        came.set()

    client.subscribe("down/#", broken).result(10)
    with caplog.at_level(logging.ERROR):
        gateway.hand_out("down/a", b"1", 1)
        gateway.hand_out("down/a", b"2", 1)
        assert came.wait(10)
    assert client.stats().callback_errors == 1
    assert "in the application" in caplog.text


def test_an_error_in_a_delivery_callback_is_counted_too(gateway: UdpGateway) -> None:
    def broken(delivery: Delivery) -> None:
        raise ZeroDivisionError

    client = Client(gateway.address, "car-7")
    client.publish("ab", b"1").add_done_callback(broken)
    with client:
        client.flush(10)
        client.publish("ab", b"2").result(10)
        assert client.stats().callback_errors == 1


def test_a_callback_must_not_wait(gateway: UdpGateway, client: Client) -> None:
    errors: list[BaseException] = []
    tried = threading.Event()

    def wait(message: Message) -> None:
        for call in (client.flush, client.wait_connected, client.publish("ab", b"").result):
            try:
                call()
            except RuntimeError as error:
                errors.append(error)
        tried.set()

    client.subscribe("down/#", wait).result(10)
    gateway.hand_out("down/a", b"1", 1)
    assert tried.wait(10)
    assert len(errors) == 3


def test_a_client_may_be_closed_in_a_callback(gateway: UdpGateway, client: Client) -> None:
    client.subscribe("down/#", lambda message: client.close()).result(10)
    gateway.hand_out("down/a", b"1", 1)
    client._thread.join(10) if client._thread else None
    assert client.stats().state == "closed"


def test_a_full_queue_raises_at_once_or_waits_for_room(gateway: UdpGateway) -> None:
    gateway.silent = True
    with Client(gateway.address, "car-7", max_queued=3, retry=IMPATIENT) as client:
        for _ in range(3):
            client.publish("ab", b"")
        with pytest.raises(QueueFull):
            client.publish("ab", b"")
        with pytest.raises(QueueFull):
            client.publish("ab", b"", timeout=0.05)
        gateway.silent = False
        client.publish("ab", b"", timeout=10).result(10)


def test_an_unanswered_connect_is_told_by_wait_connected(nobody: str) -> None:
    with Client(nobody, "car-7", retry=IMPATIENT) as client:
        with pytest.raises(TimeoutError, match=r"not connected after 0\.05 s: connecting"):
            client.wait_connected(0.05)
        assert not client.connected


def test_a_host_name_that_cannot_be_one_is_told_by_wait_connected() -> None:
    with Client("ä..b:1884", "car-7") as client:
        with pytest.raises(TimeoutError, match="no host name"):
            client.wait_connected(0.3)
        client.close(0)


def test_a_window_wider_than_the_message_ids_allow_is_refused() -> None:
    with pytest.raises(ValueError, match="window is at most 32768"):
        Client("127.0.0.1:1884", "car-7", window=65_536)


def test_a_callback_that_exits_does_not_end_the_client(gateway: UdpGateway, client: Client) -> None:
    came = threading.Event()

    def leave(message: Message) -> None:
        if message.payload == b"1":
            sys.exit(1)
        came.set()

    client.subscribe("down/#", leave).result(10)
    gateway.hand_out("down/a", b"1", 1)
    gateway.hand_out("down/a", b"2", 1)
    assert came.wait(10)
    assert client.stats().callback_errors == 1


def test_requests_do_not_pile_up_while_there_is_no_gateway(nobody: str) -> None:
    with Client(nobody, "car-7") as client:
        with pytest.raises(QueueFull):
            for number in range(1_100):
                client.subscribe(f"a/{number}", print)
        client.close(0)


def test_a_refusal_is_told_by_wait_connected(gateway: UdpGateway) -> None:
    gateway.gateway._welcome = lambda: [ConnAck(ReturnCode.NOT_SUPPORTED)]  # type: ignore[method-assign]
    with Client(gateway.address, "car-7") as client, pytest.raises(Refused, match="not supported"):
        client.wait_connected(10)


def test_a_host_name_is_looked_up_at_every_attempt(gateway: UdpGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = gateway.address.split(":")
    asked: list[str] = []

    def resolve(name: str, _: int) -> list[tuple[int, tuple[str, int]]]:
        asked.append(name)
        if len(asked) == 1:
            raise OSError("no such host")
        return [(socket.AF_INET, (host, int(port)))]

    monkeypatch.setattr(client_module, "resolve", resolve)
    with Client("gateway.example:1884", "car-7") as client:
        client.wait_connected(10)
        assert asked == ["gateway.example"] * 2
        gateway.send(Disconnect())
        client.publish("ab", b"").result(10)
        assert len(asked) == 3


def test_another_address_of_the_same_name_is_tried(
    gateway: UdpGateway, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [(socket.AF_INET, parse_address(address)) for address in (nobody, gateway.address, nobody)]
    monkeypatch.setattr(client_module, "resolve", lambda host, port: addresses)
    with Client("gateway.example:1884", "car-7", retry=IMPATIENT) as client:
        client.wait_connected(10)
        gateway.send(Disconnect())
        client.publish("ab", b"").result(10)
        assert client.stats().reconnects == 1


def test_a_second_gateway_takes_over(gateway: UdpGateway, nobody: str) -> None:
    with Client([nobody, gateway.address], "car-7", retry=IMPATIENT) as client:
        client.publish("ab", b"1", qos=2).result(10)
        assert gateway.gateway.taken == [("ab", b"1", 2)]


def test_a_restarted_gateway_loses_nothing(gateway: UdpGateway, client: Client) -> None:
    for number in range(300):
        client.publish("cars/7", b"%d" % number, qos=2)
        if number in (100, 200):
            gateway.gateway.restart()
            gateway.send(Disconnect())
    client.flush(20)
    assert Counter(gateway.gateway.taken) == Counter(("cars/7", b"%d" % number, 2) for number in range(300))
    assert client.stats().reconnects >= 1


def test_datagrams_from_strangers_are_counted_and_ignored(gateway: UdpGateway, client: Client) -> None:
    assert client._socket is not None
    port = client._socket.getsockname()[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for datagram in (b"\x02\x18", b"", b"\xff" * 50):
            stranger.sendto(datagram, ("127.0.0.1", port))
        client.publish("ab", b"").result(10)
        client.publish("ab", b"").result(10)
    assert client.stats().foreign == 3
    assert client.stats().reconnects == 0


def test_garbage_from_the_gateway_is_counted_by_reason(gateway: UdpGateway, client: Client) -> None:
    assert gateway._peer is not None
    for datagram in (b"\x02", b"\x03\x18", b"\x02\xfd", b""):
        gateway._socket.sendto(datagram, gateway._peer)
    client.publish("ab", b"").result(10)
    assert client.stats().malformed == {"truncated": 2, "wrong length": 1, "unknown type": 1}


def test_qos_minus_1_needs_no_connection(gateway: UdpGateway) -> None:
    with Client(gateway.address, "car-7", predefined={"cars/7": 5}, connect=False) as client:
        client.publish("cars/7", b"1", qos=-1).result(10)
        gateway.wait_for(lambda: gateway.gateway.taken)
        assert gateway.gateway.taken == [(5, b"1", -1)]
        assert not any(isinstance(packet, Connect) for packet in gateway.gateway.heard)
        client.publish("cars/7", b"2", qos=1).result(10)
        assert any(isinstance(packet, Connect) for packet in gateway.gateway.heard)


def test_a_will_is_handed_over(gateway: UdpGateway) -> None:
    with Client(gateway.address, "car-7", will=Will("cars/7/state", b"gone")) as client:
        client.wait_connected(10)
        assert gateway.gateway.will == ("cars/7/state", b"gone")


def test_a_client_sleeps_checks_and_wakes(gateway: UdpGateway, client: Client) -> None:
    messages: list[Message] = []
    client.subscribe("down/#", messages.append).result(10)
    client.sleep(60).result(10)
    assert client.stats().state == "asleep"
    for number in range(3):
        gateway.gateway.hand_out("down/a", b"%d" % number, number)
    assert client.check().result(10) == 3
    assert [message.payload for message in messages] == [b"0", b"1", b"2"]
    client.publish("ab", b"from a sleeper").result(10)
    client.wake().result(10)
    assert client.connected
    with pytest.raises(TransportError):
        client.check()


def test_an_idle_client_does_nothing_but_wait(gateway: UdpGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    tick = ClientSession.tick

    def counted(session: ClientSession, now: float) -> None:
        nonlocal turns
        turns += 1
        tick(session, now)

    monkeypatch.setattr(ClientSession, "tick", counted)
    with Client(gateway.address, "car-7", keep_alive_s=1) as client:
        client.wait_connected(10)
        gateway.wait_for(lambda: any(isinstance(packet, PingReq) for packet in gateway.gateway.heard))
    assert turns < 20


def test_closing_says_goodbye_ends_the_thread_and_may_be_done_twice(gateway: UdpGateway) -> None:
    client = Client(gateway.address, "car-7").start()
    delivery = client.publish("cars/7", b"1", qos=2)
    client.close(10)
    assert delivery.result(0) is None
    assert not gateway.gateway.connected
    assert client._thread is not None and not client._thread.is_alive()
    client.close()
    with pytest.raises(ClientClosed):
        client.publish("ab", b"")
    with pytest.raises(TransportError, match="closed"):
        client.wait_connected(1)
    assert client.stats().state == "closed"


def test_what_is_undelivered_at_the_end_says_so(nobody: str) -> None:
    with Client(nobody, "car-7", retry=IMPATIENT) as client:
        deliveries = [client.publish("cars/7", b"%d" % number) for number in range(3)]
        with pytest.raises(TimeoutError, match="3 messages are undelivered"):
            client.flush(0.05)
        client.close(0.1)
    for delivery in deliveries:
        with pytest.raises(DeliveryFailed, match="message to cars/7, QoS 1: the client was closed"):
            delivery.result(0)


def test_a_client_that_was_never_started_can_be_closed() -> None:
    client = Client("127.0.0.1:1884", "car-7")
    delivery = client.publish("ab", b"")
    client.close()
    assert isinstance(delivery.exception(0), DeliveryFailed)
    client.close()


def test_a_defect_fails_what_is_pending_instead_of_hanging(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def defect(session: ClientSession, now: float) -> None:
        raise AssertionError("a defect")

    monkeypatch.setattr(ClientSession, "tick", defect)
    delivery = client.publish("ab", b"")
    with pytest.raises(DeliveryFailed, match="defect"):
        delivery.result(10)
    assert "a defect" in caplog.text


def test_what_the_socket_does_not_take_is_kept_and_other_errors_are_counted() -> None:
    class Socket:
        sent: list[bytes] = []  # noqa: RUF012

        def sendto(self, datagram: bytes, peer: object) -> None:
            if datagram == b"unreachable":
                raise OSError("network is unreachable")
            if datagram == b"full":
                raise BlockingIOError
            self.sent.append(datagram)

    client = Client("127.0.0.1:1884", "car-7")
    client._socket, client._peer = Socket(), ("127.0.0.1", 1884)  # type: ignore[assignment]
    assert client._transmit([b"1", b"unreachable", b"2", b"full", b"3"]) == [b"full", b"3"]
    assert Socket.sent == [b"1", b"2"]
    assert client.stats().send_errors == 1
    client._socket = None
    client.close()


def test_what_the_socket_did_not_take_is_sent_when_it_does(
    gateway: UdpGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    transmit = Client._transmit
    refused: list[bytes] = []

    def once_full(client: Client, datagrams: list[bytes]) -> list[bytes]:
        if not refused:
            refused.extend(datagrams)
            client._seek_unconnected()
            return datagrams
        return transmit(client, datagrams)

    monkeypatch.setattr(Client, "_transmit", once_full)
    with Client(gateway.address, "car-7", connect=False) as client:
        client.publish("ab", b"once", qos=-1)
        gateway.wait_for(lambda: gateway.gateway.taken == [("ab", b"once", -1)])
    assert len(refused) == 1


def test_a_bad_network_loses_nothing_and_doubles_no_qos_2_message(gateway: UdpGateway) -> None:
    host, port = gateway.address.split(":")
    with (
        LossyLink((host, int(port)), loss=0.15, duplicate=0.15, delay_s=(0.0, 0.01), seed=5) as link,
        Client(link.url, "car-7", retry=RetryPolicy(0.05, 0.05, 0.5, 12)) as client,
    ):
        for number in range(150):
            client.publish(f"cars/{number % 5}", b"%d" % number, qos=1 + number % 2)
        client.flush(30)
        taken = Counter((topic, payload) for topic, payload, _ in gateway.gateway.taken)
        assert set(taken) == {(f"cars/{number % 5}", b"%d" % number) for number in range(150)}
        assert all(taken[(f"cars/{number % 5}", b"%d" % number)] == 1 for number in range(1, 150, 2))
        assert client.stats().resent > 0 and link.up.dropped > 0


def test_ipv6_works() -> None:
    try:
        silent = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        silent.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with silent, Client(f"[::1]:{silent.getsockname()[1]}", "car-7", connect=False) as client:
        silent.settimeout(10)
        client.publish("ab", b"1", qos=-1).result(10)
        datagram, peer = silent.recvfrom(100)
        assert datagram.endswith(b"1")
        client.publish("ab", b"2", qos=1)
        assert silent.recvfrom(100)[0][1] == Connect.TYPE
        silent.sendto(b"\x03\x05\x00", peer)
        client.wait_connected(10)
        assert silent.recvfrom(100)[0][1] == Publish.TYPE
        client.close(0)


def test_pendings_share_the_face_of_a_future() -> None:
    pending: Pending[int] = Pending()
    with pytest.raises(TimeoutError):
        pending.result(0)
    seen: list[Pending[int]] = []
    pending.add_done_callback(seen.append)
    assert pending.settle(5, None)
    assert not pending.settle(6, None)
    assert pending.done() and pending.result() == 5 and pending.exception() is None
    for callback in pending.take_callbacks():
        callback(pending)
    assert seen == [pending] and pending.take_callbacks() == []


@pytest.mark.parametrize("gateways", ["", "host", "host:", ":1884", "host:0", "host:70000", "::1:1884", "h:x", []])
def test_an_address_that_cannot_be_is_refused(gateways: str | list[str]) -> None:
    with pytest.raises(ValueError):
        Client(gateways, "car-7")


def test_addresses_are_taken_as_text_or_pairs() -> None:
    for gateways in ("[::1]:1884", ("::1", 1884), [("::1", 1884)], ["[::1]:1884"]):
        client = Client(gateways, "car-7")
        assert client._gateways == [("::1", 1884)]
        client.close()

"""Searching for gateways."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from edge_agent.transport import Gateway, search_gateways
from edge_agent.transport.discovery import _gateway_address
from protocol.mqttsn import Advertise, GwInfo, Message, SearchGw, decode, encode
from tests.edge_agent.transport.reference_gateway import UdpGateway
from threadline.lab import free_port

Answer = Callable[[SearchGw, int], list[bytes]]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Somebody at a UDP port who answers the n-th SEARCHGW."""
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    endpoint.bind(("127.0.0.1", 0))

    def run() -> None:
        count = 0
        while True:
            datagram, peer = endpoint.recvfrom(100)
            if not datagram:
                return
            count += 1
            message = decode(datagram)
            assert isinstance(message, SearchGw)
            for packet in answer(message, count):
                endpoint.sendto(packet, peer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{endpoint.getsockname()[1]}"
    finally:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stopper:
            stopper.sendto(b"", endpoint.getsockname())
        thread.join()
        endpoint.close()


def packets(*messages: Message) -> Answer:
    return lambda search, count: [encode(message) for message in messages]


def test_a_gateway_that_answers_is_found_at_the_address_it_answers_from() -> None:
    with UdpGateway() as gateway:
        assert search_gateways(gateway.address) == [Gateway(1, gateway.address)]


def test_an_advertisement_is_as_good_as_an_answer() -> None:
    with answering(packets(Advertise(9, 900))) as address:
        assert search_gateways(address) == [Gateway(9, address)]


def test_another_client_may_tell_the_gateways_address() -> None:
    with answering(packets(GwInfo(3, bytes((10, 0, 0, 1)) + (1884).to_bytes(2, "big")))) as address:
        assert search_gateways(address) == [Gateway(3, "10.0.0.1:1884")]


def test_the_question_is_repeated_and_nonsense_ignored() -> None:
    def late(search: SearchGw, count: int) -> list[bytes]:
        return [b"\x00\x01", encode(SearchGw(1)), encode(GwInfo(7, b"?"))] if count == 1 else [encode(GwInfo(7))]

    with answering(late) as address:
        assert search_gateways(address) == [Gateway(7, address)]


def test_all_that_answer_in_time_are_returned_when_asked_for() -> None:
    with answering(packets(GwInfo(1), GwInfo(2), GwInfo(1))) as address:
        assert search_gateways(address, timeout_s=0.2, first=False) == [Gateway(1, address), Gateway(2, address)]


def test_silence_is_an_empty_list() -> None:
    with answering(packets()) as address:
        assert search_gateways(address, timeout_s=0.1) == []


def test_a_multicast_group_is_asked_and_listened_to() -> None:
    """The gateway here answers to the group, not to the one who asks: only who listens to the group hears it."""
    group, port = "239.255.76.67", free_port(socket.SOCK_DGRAM)
    with socket.socket(type=socket.SOCK_DGRAM) as gateway:
        try:
            gateway.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            gateway.bind((group, port))
            everywhere = struct.pack("4sI", socket.inet_aton(group), socket.INADDR_ANY)
            gateway.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, everywhere)
            gateway.settimeout(2)
            gateway.sendto(b"probe", (group, port))
            gateway.recv(100)
        except OSError as error:
            pytest.skip(f"no multicast on this machine: {error}")
        asked: list[Message] = []

        def answer() -> None:
            datagram = gateway.recv(100)
            asked.append(decode(datagram))
            gateway.sendto(encode(Advertise(9, 900)), (group, port))

        thread = threading.Thread(target=answer)
        thread.start()
        found = search_gateways(f"{group}:{port}", timeout_s=5)
        thread.join()
    assert asked == [SearchGw(1)]
    assert [each.gateway_id for each in found] == [9]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (bytes((10, 0, 0, 1)), "10.0.0.1:99"),
        (bytes((4, 10, 0, 0, 1)), "10.0.0.1:99"),
        (bytes((10, 0, 0, 1, 7, 92)), "10.0.0.1:1884"),
        (bytes((6, 10, 0, 0, 1, 7, 92)), "10.0.0.1:1884"),
        (bytes(15) + b"\x01", "[::1]:99"),
        (bytes(15) + b"\x01\x07\x5c", "[::1]:1884"),
        (b"\x01\x02", None),
        (bytes((10, 0, 0, 1, 0, 0)), None),
    ],
)
def test_addresses_in_gwinfo_are_read_in_every_usual_form(raw: bytes, text: str | None) -> None:
    assert _gateway_address(raw, 99) == text

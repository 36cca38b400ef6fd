"""The gateway makes itself known: ADVERTISE, and SEARCHGW on a multicast group."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from protocol.mqttsn import (
    Advertise,
    GwInfo,
    SearchGw,
    decode,
    encode,
)
from tests.support.multicast import multicast_listener, multicast_on_loopback_works, multicast_sender
from threadline.lab import GatewayService, Mosquitto, free_port


def test_the_gateway_advertises_itself_and_answers_searchgw_on_a_multicast_group(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    if not multicast_on_loopback_works():
        pytest.skip("multicast does not work on this machine's loopback interface")
    group, port = "239.83.84.2", free_port(socket.SOCK_DGRAM)
    options = ["--advertise", f"{group}:{port}", "--advertise-every", "1", "--gateway-id", "42"]
    with (
        multicast_listener(group, port) as listener,
        GatewayService(tmp_path, mosquitto, *options) as gateway,
        multicast_sender() as searcher,
    ):
        listener.settimeout(5)
        for _ in range(2):
            datagram, sender = listener.recvfrom(100)
            assert (decode(datagram), sender) == (Advertise(42, 1), gateway.address)
        searcher.settimeout(5)
        searcher.sendto(encode(SearchGw()), (group, port))
        answer, sender = searcher.recvfrom(100)
        assert (decode(answer), sender) == (GwInfo(42), gateway.address)


def test_the_gateway_advertises_itself_to_a_plain_address(mosquitto: Mosquitto, tmp_path: Path) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(5)
        options = ["--advertise", f"127.0.0.1:{listener.getsockname()[1]}", "--advertise-every", "1"]
        with GatewayService(tmp_path, mosquitto, *options) as gateway:
            for _ in range(2):
                datagram, sender = listener.recvfrom(100)
                assert (decode(datagram), sender) == (Advertise(1, 1), gateway.address)

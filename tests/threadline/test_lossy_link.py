"""The bad network that other tests rely on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from threadline.lossy_link import LossyLink

Peer = tuple[str, int]


@contextmanager
def endpoint() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        one.bind(("127.0.0.1", 0))
        one.settimeout(10)
        yield one


def heard(one: socket.socket, last: bytes = b"end") -> list[bytes]:
    """Everything that comes until the last datagram does."""
    datagrams = []
    while (datagram := one.recv(100)) != last:
        datagrams.append(datagram)
    return datagrams


def test_datagrams_pass_in_both_directions_and_every_client_has_a_port_of_its_own() -> None:
    with endpoint() as gateway, endpoint() as a, endpoint() as b, LossyLink(gateway.getsockname()) as link:
        peers = []
        for client in (a, b):
            client.sendto(b"up", link.address)
            datagram, peer = gateway.recvfrom(100)
            assert datagram == b"up"
            peers.append(peer)
            gateway.sendto(b"down", peer)
            assert client.recv(100) == b"down"
        assert len(set(peers)) == 2
        assert link.up.forwarded == link.down.forwarded == 2


def test_loss_and_duplication_are_as_asked_and_repeatable() -> None:
    def run() -> tuple[int, int]:
        with (
            endpoint() as gateway,
            endpoint() as client,
            LossyLink(gateway.getsockname(), loss=0.2, duplicate=0.1, seed=4) as link,
        ):
            for count in range(1, 1_001):
                client.sendto(b"?", link.address)
                if count % 50 == 0:
                    while link.up.dropped + link.up.forwarded - link.up.duplicated < count:
                        link.rebind()
            return link.up.dropped, link.up.duplicated

    dropped, duplicated = run()
    assert 150 < dropped < 250 and 40 < duplicated < 120
    assert run() == (dropped, duplicated)


def test_random_delay_reorders() -> None:
    with (
        endpoint() as gateway,
        endpoint() as client,
        LossyLink(gateway.getsockname(), delay_s=(0.0, 0.05), seed=1) as link,
    ):
        for number in range(50):
            client.sendto(b"%02d" % number, link.address)
        came = [gateway.recv(100) for _ in range(50)]
        assert came != sorted(came) and len(set(came)) == 50


def test_a_rate_is_kept_in_each_direction_and_nothing_is_lost() -> None:
    with endpoint() as gateway, endpoint() as client, LossyLink(gateway.getsockname(), rate_bps=80_000) as link:
        client.sendto(b"?", link.address)
        _, peer = gateway.recvfrom(10)
        datagrams = [b"%02d" % number + bytes(120) for number in range(10)]  # with headers 150 bytes each, 15 ms
        for sender, to, receiver in ((client, link.address, gateway), (gateway, peer, client)):
            begun = monotonic()
            for datagram in datagrams:
                sender.sendto(datagram, to)
            assert [receiver.recv(200) for _ in datagrams] == datagrams
            assert 0.149 < monotonic() - begun < 1.0


def test_corruption_changes_datagrams() -> None:
    with (
        endpoint() as gateway,
        endpoint() as client,
        LossyLink(gateway.getsockname(), corrupt=1.0, seed=1) as link,
    ):
        for _ in range(20):
            client.sendto(b"abcdef", link.address)
            assert gateway.recv(100) != b"abcdef"


def test_a_partition_lets_nothing_through_until_it_is_over() -> None:
    with endpoint() as gateway, endpoint() as client, LossyLink(gateway.getsockname()) as link:
        link.partitioned = True
        client.sendto(b"lost", link.address)
        link.rebind()
        client.sendto(b"lost too", link.address)
        while link.up.dropped < 2:
            link.rebind()
        link.partitioned = False
        client.sendto(b"end", link.address)
        assert heard(gateway) == []


def test_on_a_one_way_link_answers_are_lost() -> None:
    with endpoint() as gateway, endpoint() as client, LossyLink(gateway.getsockname()) as link:
        link.one_way = True
        client.sendto(b"heard", link.address)
        datagram, peer = gateway.recvfrom(100)
        assert datagram == b"heard"
        gateway.sendto(b"lost", peer)
        while link.down.dropped < 1:
            link.rebind()
        link.one_way = False
        client.sendto(b"again", link.address)
        _, peer = gateway.recvfrom(100)
        gateway.sendto(b"end", peer)
        assert heard(client) == []


def test_rebinding_gives_clients_new_ports_and_a_new_target_is_used_at_once() -> None:
    with (
        endpoint() as gateway,
        endpoint() as other,
        endpoint() as client,
        LossyLink(gateway.getsockname()) as link,
    ):
        client.sendto(b"1", link.address)
        _, before = gateway.recvfrom(100)
        link.rebind()
        client.sendto(b"2", link.address)
        _, after = gateway.recvfrom(100)
        assert before != after
        gateway.sendto(b"back", after)
        assert client.recv(100) == b"back"
        link.target = other.getsockname()
        client.sendto(b"3", link.address)
        assert other.recv(100) == b"3"

from __future__ import annotations

import socket

import pytest

from broker.server import CannotListen, is_loopback


@pytest.mark.parametrize(
    ("host", "wanted"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)],
)
def test_who_can_reach_an_address(host: str, wanted: bool) -> None:
    assert is_loopback((host, 1884)) is wanted


def test_a_name_of_this_machine_and_of_others_is_not_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, 0, 0, "", (host, 1)) for host in ("127.0.0.1", "198.51.100.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert not is_loopback(("both.example", 1))


@pytest.mark.parametrize("host", ["nohost.invalid", "a..b"])
def test_a_name_that_nobody_knows_is_told(host: str) -> None:
    with pytest.raises(CannotListen, match=f"cannot listen on udp {host}:1884 .--listen.: "):
        is_loopback((host, 1884))

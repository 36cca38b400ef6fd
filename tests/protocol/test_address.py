"""Addresses as people write them."""

from __future__ import annotations

import re

import pytest

from protocol.address import format_address, is_this_machine, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("gateway.local:1884", ("gateway.local", 1884)),
        ("[::1]:1884", ("::1", 1884)),
        (("127.0.0.1", 65_535), ("127.0.0.1", 65_535)),
    ],
)
def test_an_address_is_read_in_every_form(text: str | tuple[str, int], address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert parse_address(format_address(*address)) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gateway", "'gateway' is not HOST:PORT"),
        (":1884", "':1884' is not HOST:PORT"),
        ("gateway:x", "'gateway:x' is not HOST:PORT"),
        ("gateway:\u0661", "is not HOST:PORT"),
        ("::1:1884", "an IPv6 address is written [ADDRESS]:PORT"),
        ("gateway:0", "a port is 1 to 65535"),
        ("gateway:65536", "a port is 1 to 65535"),
    ],
)
def test_what_is_no_address_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_address(text)


def test_port_zero_means_any_free_one_where_that_makes_sense() -> None:
    assert parse_address("127.0.0.1:0", least_port=0) == ("127.0.0.1", 0)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1"])
def test_some_addresses_are_always_of_this_machine(host: str) -> None:
    assert is_this_machine(host)
    assert not is_this_machine(f"1{host}")

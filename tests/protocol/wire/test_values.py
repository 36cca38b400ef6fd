"""Reading values: of any bytes, nothing but a value or the typed error comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.errors import MalformedBatch
from protocol.wire.values import Shape, decode, unpacked
from tests.protocol.wire.odd_values import nested


def test_a_deep_value_that_somebody_else_wrote_is_refused() -> None:
    for data in (b"\x91" * 101 + b"\xc0", b"\x81\x01" * 500 + b"\xc0", b"\x91" * 100_000, b"\x81" * 5000):
        with pytest.raises(MalformedBatch):
            decode(data)
    assert decode(b"\x91" * 100 + b"\x01") == nested(100, lambda part: [part])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\x01",
        b"\xc6\xff\xff\xff\xff",
        b"\xa2\xc3\x28",
        b"\xd4\x05\x00",  # an extension that there is not
        b"\xc7\x03\xff\x00\x00\x00",  # times of 3 bytes,
        b"\xc7\x0c\xff" + b"\xff" * 12,  # and in no year
        b"\xd7\xff" + b"\xff" * 8,
        b"\xd4\x01\xc0",  # arrays without a type,
        b"\xc7\x06\x01\x92\xa3<f9\x90",  # of none that there is,
        b"\xc7\x07\x01\x92\xa3<f8\x91\x02",  # and of another size
        b"\xc7\x0c\x01\x92\xa3<f8\x92\xce\xff\xff\xff\xff\x00",  # a list per row that is empty
        b"\xc7\x08\x01\x92\xa3|b1\x91\xd4\x02\x01",
        b"\xc8\x04\x01\x02" + b"\x01" * 1025,  # a number of too many digits
    ],
)
def test_bytes_that_are_no_value(data: bytes) -> None:
    with pytest.raises(MalformedBatch):
        decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except MalformedBatch:
        pass


def test_parts_that_do_not_fit_their_shape() -> None:
    for data in (b"\x91\x01", b"\xc0", b"\x81\x01\x02"):
        with pytest.raises(MalformedBatch, match="2 parts"):
            unpacked(Shape("", ("a", "b")), data)

"""Batches: what goes in comes out, whatever they are compressed with; what was changed on the way is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.ids import StreamId
from protocol.records import BEGINNING, END_OF_TIME, Delivery, End, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.batch import (
    MOST_BATCH_BYTES,
    Header,
    close_batch,
    decode_batch,
    encode_batch,
    frame,
    read_header,
    recoded,
    unframe,
)
from protocol.wire.compression import Codec
from protocol.wire.errors import MalformedBatch, UnknownCodec
from protocol.wire.packer import Packer
from protocol.wire.sections import DeliveryColumns, decode_section, encode_sections, in_parts, pending, records
from tests.protocol.wire.strategies import AGENT, EPOCH, EVENT, EVENTS, NONCE, RECORD, facts, row_of

HEADER = Header(EPOCH, NONCE, 42)
OWN = StreamId(AGENT, EPOCH, "", NONCE)


def sent(told: list[Any], codec: Codec | None = None, first_event: int = 0) -> list[Any]:
    """What arrives of records."""
    packer = Packer()
    batch = encode_batch(HEADER, [row_of(each, packer) for each in told], AGENT, codec=codec, first_event=first_event)
    assert packer.replaced == 0
    return list(decode_batch(batch, AGENT).records())


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(RECORD | EVENT, max_size=12), st.sampled_from(Codec), st.integers(0, 2**40))
def test_what_goes_in_comes_out(told: list[Any], codec: Codec, first_event: int) -> None:
    arrived = sent(told, codec, first_event)
    kinds = [row_of(each, Packer())[0] for each in told]
    in_order = [each for _, each in sorted(zip(kinds, told, strict=True), key=lambda pair: pair[0])]
    assert [facts(each) for each in arrived] == [facts(each) for each in in_order]
    events = [each for each in arrived if isinstance(each, EVENTS)]
    assert [each.number for each in events] == list(range(first_event, first_event + len(events)))


@pytest.mark.parametrize("codec", Codec)
def test_many_records(codec: Codec) -> None:
    stream, source = OWN._replace(name="stopped"), OWN._replace(name="reports")
    told: list[Any] = []
    for number in range(500):
        origins = tuple(Origin(OriginKind.SOURCE, source, 4 * number + at, 1000 * at) for at in range(4))
        told.append(SourcePayload(source, number, 1000 * number, {"car": number % 7, "speed": number / 3}))
        told.append(Delivery(stream, number, 1000 * number, {"car": number % 7}, origins))
    told += [Progress(stream, BEGINNING, END_OF_TIME), Progress(source, END_OF_TIME, BEGINNING)]
    in_order = sorted(told, key=lambda each: (SourcePayload, Delivery, Progress).index(type(each)))
    assert [facts(each) for each in sent(told, codec)] == [facts(each) for each in in_order]


@pytest.mark.parametrize(
    ("origins", "most", "parts"), [(0, 2, 1), (2, 2, 1), (3, 2, 2), (600, 2, 200), (1_000, 1, 250)]
)
def test_a_delivery_of_many_origins_goes_in_parts(origins: int, most: int, parts: int) -> None:
    every = tuple(Origin(OriginKind.SOURCE, OWN, seq, seq) for seq in range(origins))
    rows = in_parts(pending(Delivery(OWN, 1, 2, None, every), Packer()), most)
    batch = decode_batch(encode_batch(HEADER, rows, AGENT), AGENT)
    section = batch.sections[0][1]
    assert isinstance(section, DeliveryColumns)
    assert len(section.part) == parts
    assert list(section.part) == [place << 8 | len(rows) - 1 for place in range(len(rows))]
    assert list(section.origin_seq) == list(range(origins))


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(RECORD | EVENT, min_size=1, max_size=8))
def test_sections_can_be_kept_and_read_by_themselves(told: list[Any]) -> None:
    packer = Packer()
    batch = decode_batch(encode_batch(HEADER, [row_of(each, packer) for each in told], AGENT), AGENT)
    again = [record for kind, _, raw in batch.sections for record in records(decode_section(kind, raw, OWN))]
    assert [facts(each) for each in again] == [facts(each) for each in batch.records()]


@given(st.integers(0, 2**62), st.integers(0, 2**64 - 1), st.integers(0, 2**61), st.integers(1, 2**61))
def test_headers(epoch: int, nonce: int, seq: int, covers: int) -> None:
    header = Header(epoch, nonce, seq, covers, Codec.ZLIB)
    assert read_header(header.encode() + b"rest") == (header, b"rest")
    assert header.next_seq == seq + covers


@pytest.mark.parametrize("codec", Codec)
def test_for_a_reader_who_cannot_read_the_codec(codec: Codec) -> None:
    batch = encode_batch(HEADER, [pending(End(7), Packer())], AGENT, codec=codec)
    for readable in (frozenset({Codec.NONE}), frozenset({Codec.NONE, Codec.ZLIB}), frozenset(Codec)):
        again = recoded(batch, readable)
        assert read_header(again)[0].codec in readable
        assert (again == batch) == (codec in readable)
        assert list(decode_batch(again, AGENT).records()) == [End(7)]


def test_a_codec_of_the_future_is_told_apart_from_damage() -> None:
    with pytest.raises(UnknownCodec, match="codec 9"):
        decode_batch(Header(1, 2, 3, 1, 9).encode() + b"body", AGENT)


# Frames


@pytest.mark.parametrize("oldest", [False, True])
def test_a_frame_says_whether_anything_older_is_held(oldest: bool) -> None:
    assert unframe(frame(b"batch", AGENT, oldest), AGENT) == (oldest, b"batch")


def test_any_bit_that_was_flipped_is_noticed() -> None:
    data = frame(encode_batch(HEADER, [pending(End(7), Packer())], AGENT), AGENT, oldest=True)
    for place in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(MalformedBatch):
            unframe(bytes(damaged), AGENT)


def test_a_batch_of_another_agent_is_refused() -> None:
    with pytest.raises(MalformedBatch, match="'car-8'"):
        unframe(frame(b"batch", AGENT, True), "car-8")


@pytest.mark.parametrize("data", [b"", b"\x11", b"\x11\0\0\0\0", bytes(MOST_BATCH_BYTES + 1), b"\x21" + bytes(20)])
def test_no_frames(data: bytes) -> None:
    with pytest.raises(MalformedBatch):
        unframe(data, AGENT)


# What no agent writes


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x63\x00", "no section 99"),
        (b"\x20\x00", "no section 32"),  # the cloud's own
        (b"\x03\x05\x01", "at most 2"),
        (b"\x04\x01\x00", "without records"),
        (b"\x06\x09\x01\x00\x05\x81\xa2ts\x07\xff", "1 bytes follow"),
        (b"\x04\x06\x01\x00\x00\x00\x00\x00", "less than 0"),  # a stream, of a table without any
        (b"\x06\x04\x01\x00\x01\xc0", "no End"),
        (b"\x02\x11\x01" + b"\x01\0\0\0\0" + b"\x01\0\0\0\0" + bytes(6), "no names"),
    ],
)
def test_bodies_that_are_none(body: bytes, why: str) -> None:
    with pytest.raises(MalformedBatch, match=why):
        decode_batch(close_batch(HEADER, body, Codec.NONE), AGENT)


def test_a_header_that_stands_for_nothing() -> None:
    with pytest.raises(MalformedBatch, match="none"):
        read_header(Header(1, 2, 3, 0).encode())


@pytest.mark.parametrize("seq", [-1, 2**36])
def test_numbers_of_tuples_have_a_range(seq: int) -> None:
    for record in (SourcePayload(OWN, seq, 0, 1), Delivery(OWN, 1, 0, 1, (Origin(OriginKind.SOURCE, OWN, seq, 0),))):
        with pytest.raises(MalformedBatch, match="2\\^36"):
            sent([record])


def test_sections_too_many() -> None:
    piece = encode_sections([pending(End(1), Packer())], AGENT, NONCE, 0)
    with pytest.raises(MalformedBatch, match="sections"):
        decode_batch(close_batch(HEADER, piece * 1025), AGENT)

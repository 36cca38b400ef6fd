"""Codecs, and the dictionary that makes small batches smaller."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import protocol.wire
from protocol.wire.compression import MOST_BODY_BYTES, READABLE, SMALL_BYTES, Codec, best, compress, decompress
from protocol.wire.errors import MalformedBatch, UnknownCodec
from protocol.wire.packer import Packer
from protocol.wire.sections import EventKind, Kind, encode_sections

DICTIONARY = (Path(protocol.wire.__file__).parent / "batch.dict").read_bytes()


def single_event() -> bytes:
    """A task of ProvLight's Listing 1 that has begun, as a body."""
    packed = Packer().pack({"in": [1] * 10})
    item = ("in_17", "1", (), *packed)
    row = (Kind.EVENT, EventKind.TASK_BEGUN, 1_763_280_123_456, 33, 0, "0-16", "0", (("0-15", 31),), (item,))
    return encode_sections([row], "car-7", 0, 32)


@pytest.mark.parametrize("codec", Codec)
@given(body=st.binary(max_size=3000) | st.integers(0, 3000).map(lambda size: b"text " * size))
def test_what_is_compressed_comes_out(codec: Codec, body: bytes) -> None:
    assert decompress(compress(body, codec), codec) == body


@pytest.mark.parametrize("codec", Codec)
def test_bodies_of_all_sizes(codec: Codec) -> None:
    """The window of zlib grows with the body."""
    for size in (0, 1, 200, 250, 1024, 5000, 20_000, 40_000, 200_000, MOST_BODY_BYTES):
        body = (b"%d " % size * (size // 2 + 1))[:size]
        assert decompress(compress(body, codec), codec) == body


def test_the_shipped_dictionary_is_the_one_that_is_used() -> None:
    body = single_event()
    inflater = zlib.decompressobj(-15, zdict=DICTIONARY)
    assert inflater.decompress(compress(body, Codec.ZLIB_DICTIONARY)) == body
    known = zstandard.ZstdCompressionDict(DICTIONARY)
    reader = zstandard.ZstdDecompressor(dict_data=known, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    assert reader.decompress(compress(body, Codec.ZSTD_DICTIONARY)) == body
    assert len(DICTIONARY) <= 8192


@pytest.mark.parametrize(
    ("codec", "without"), [(Codec.ZLIB_DICTIONARY, Codec.ZLIB), (Codec.ZSTD_DICTIONARY, Codec.ZSTD)]
)
def test_a_single_event_is_much_smaller_with_the_dictionary(codec: Codec, without: Codec) -> None:
    body = single_event()
    assert 1.5 * len(compress(body, codec)) <= len(compress(body, without))


def test_the_dictionary_is_for_small_bodies() -> None:
    assert best(SMALL_BYTES) is Codec.ZSTD_DICTIONARY
    assert best(SMALL_BYTES + 1) is Codec.ZSTD
    without_zstd = frozenset({Codec.NONE, Codec.ZLIB, Codec.ZLIB_DICTIONARY})
    assert best(SMALL_BYTES, without_zstd) is Codec.ZLIB_DICTIONARY
    assert best(SMALL_BYTES + 1, without_zstd) is Codec.ZLIB
    assert best(100, frozenset({77})) is Codec.NONE
    assert frozenset(Codec) == READABLE


def test_many_threads() -> None:
    """Neither a compressor nor a decompressor of zstd may serve two threads at once."""

    def work(letter: int) -> bool:
        bodies = [bytes((letter,)) * 100 * size + single_event() for size in range(1, 150)]
        codecs = (Codec.ZSTD, Codec.ZSTD_DICTIONARY)
        return all(decompress(compress(body, codec), codec) == body for body in bodies for codec in codecs)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, b"abcd"))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_body_that_is_damaged(codec: Codec) -> None:
    data = compress(single_event() * 3, codec)
    for bad in (b"", data[:-1], data + b"x", data[:4], b"\xff" + data, b"\x00" * 40):
        with pytest.raises(MalformedBatch):
            decompress(bad, codec)


@pytest.mark.parametrize("codec", Codec)
def test_a_body_of_more_bytes_than_there_may_be(codec: Codec) -> None:
    """However few bytes it came in, and whatever it says of its size."""
    data = compress(bytes(100 * MOST_BODY_BYTES), codec)
    with pytest.raises(MalformedBatch, match="more than"):
        decompress(data, codec)


def test_zstd_that_does_not_say_how_large_it_is() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=0
    )
    data = zstandard.ZstdCompressor(compression_params=parameters).compress(bytes(100))
    with pytest.raises(MalformedBatch):
        decompress(data, Codec.ZSTD)


@pytest.mark.parametrize("codec", [5, 200, -1])
def test_a_codec_that_there_is_not(codec: int) -> None:
    with pytest.raises(UnknownCodec):
        decompress(b"", codec)

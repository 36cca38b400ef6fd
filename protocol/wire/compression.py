"""How the body of a batch is compressed. A byte in front says how, so both ends may know different ways.

Small batches are alike, and a compressor that begins with nothing has to learn that every time. So one begins with a
dictionary: pieces of typical batches, made by `scripts/train_dictionary.py` and shipped with the code.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from protocol.wire.errors import MalformedBatch, UnknownCodec

try:
    import zstandard
except ImportError:  # no wheel for armv7l
    zstandard = None  # type: ignore[assignment]

MOST_BODY_BYTES = 1 << 20
SMALL_BYTES = 16 * 1024  # a body of more than this gains little from the dictionary
_LEVEL = 3


class Codec(IntEnum):
    """What stands in the byte. A number is never given a new meaning: another dictionary is another codec."""

    NONE = 0
    ZLIB = 1
    ZLIB_DICTIONARY = 2
    ZSTD = 3
    ZSTD_DICTIONARY = 4


READABLE = frozenset(Codec) if zstandard is not None else frozenset({Codec.NONE, Codec.ZLIB, Codec.ZLIB_DICTIONARY})


def best(size: int, readable: frozenset[int] = READABLE) -> Codec:
    """The codec for a body of so many bytes that the reader can read too."""
    small = size <= SMALL_BYTES
    order = [Codec.ZSTD_DICTIONARY, Codec.ZSTD] if small else [Codec.ZSTD]
    order += [Codec.ZLIB_DICTIONARY, Codec.ZLIB] if small else [Codec.ZLIB]
    return next((codec for codec in order if codec in READABLE and codec in readable), Codec.NONE)


def compress(body: bytes, codec: Codec) -> bytes:
    """The body, smaller."""
    if codec is Codec.NONE:
        return body
    if codec in (Codec.ZLIB, Codec.ZLIB_DICTIONARY):
        compressor = _zlib(codec is Codec.ZLIB_DICTIONARY)
        return bytes(compressor.compress(body) + compressor.flush())
    return _zstd(codec is Codec.ZSTD_DICTIONARY)[0](body)


def decompress(data: bytes, codec: int) -> bytes:
    """The body again: MOST_BODY_BYTES at most, whatever was promised."""
    if codec not in READABLE:
        raise UnknownCodec(f"compressed with codec {codec}, which cannot be read here")
    if codec == Codec.NONE:
        body = data
    elif codec in (Codec.ZLIB, Codec.ZLIB_DICTIONARY):
        body = _inflate(data, codec == Codec.ZLIB_DICTIONARY)
    else:
        body = _zstd(codec == Codec.ZSTD_DICTIONARY)[1](data)
    if len(body) > MOST_BODY_BYTES:
        raise MalformedBatch(f"a body of more than {MOST_BODY_BYTES} bytes")
    return body


def _zlib(with_dictionary: bool) -> Any:
    # No header and no checksum: the batch has its own.
    if with_dictionary:
        return zlib.compressobj(6, zlib.DEFLATED, -15, zdict=_dictionary())
    return zlib.compressobj(6, zlib.DEFLATED, -15)


def _inflate(data: bytes, with_dictionary: bool) -> bytes:
    decompressor = zlib.decompressobj(-15, **({"zdict": _dictionary()} if with_dictionary else {}))
    try:
        body = decompressor.decompress(data, MOST_BODY_BYTES + 1)
    except zlib.error as error:
        raise MalformedBatch(f"the body cannot be decompressed: {error}") from None
    if decompressor.unconsumed_tail:
        raise MalformedBatch(f"a body of more than {MOST_BODY_BYTES} bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise MalformedBatch("the body ends too soon or goes on after its end")
    return body


@cache
def _zstd(with_dictionary: bool) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Both ways, with what they need made once. Frames without the magic number, which says nothing here."""
    dictionary = zstandard.ZstdCompressionDict(_dictionary()) if with_dictionary else None
    # The window covers the dictionary and a small body; a larger one would only cost memory.
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        window_log=17,
        write_content_size=1,
        write_checksum=0,
        write_dict_id=0,
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters, dict_data=dictionary)
    decompressor = zstandard.ZstdDecompressor(dict_data=dictionary, format=zstandard.FORMAT_ZSTD1_MAGICLESS)

    def read(data: bytes) -> bytes:
        try:
            size = zstandard.get_frame_parameters(data, format=zstandard.FORMAT_ZSTD1_MAGICLESS).content_size
            if size > MOST_BODY_BYTES:
                raise MalformedBatch(f"a body of more than {MOST_BODY_BYTES} bytes")
            body = decompressor.decompress(data, max_output_size=MOST_BODY_BYTES, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise MalformedBatch(f"the body cannot be decompressed: {error}") from None
        return body

    return compressor.compress, read


@cache
def _dictionary() -> bytes:
    return (Path(__file__).parent / "batch.dict").read_bytes()

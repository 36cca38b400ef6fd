"""How the body of a batch is compressed. A byte in front says how, so both ends may know different ways.

Small batches are alike, and a compressor that begins with nothing has to learn that every time. So one begins with a
dictionary: pieces of typical batches, made by `scripts/train_dictionary.py` and shipped with the code.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from threading import Lock

from protocol.wire.errors import MalformedBatch, UnknownCodec

try:
    import zstandard
except ImportError:  # no wheel for armv7l
    zstandard = None  # type: ignore[assignment]

MOST_BODY_BYTES = 512 * 1024
SMALL_BYTES = 16 * 1024  # a body of more than this gains little from the dictionary


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
        return deflate(body, _dictionary() if codec is Codec.ZLIB_DICTIONARY else b"")
    return _zstd_writer(codec is Codec.ZSTD_DICTIONARY)(body)


def decompress(data: bytes, codec: int) -> bytes:
    """The body again: MOST_BODY_BYTES at most, whatever was promised."""
    if codec not in READABLE:
        raise UnknownCodec(f"compressed with codec {codec}, which cannot be read here")
    if codec == Codec.NONE:
        body = data
    elif codec in (Codec.ZLIB, Codec.ZLIB_DICTIONARY):
        body = _inflate(data, codec == Codec.ZLIB_DICTIONARY)
    else:
        body = _zstd_reader(codec == Codec.ZSTD_DICTIONARY)(data)
    if len(body) > MOST_BODY_BYTES:
        raise MalformedBatch(f"a body of more than {MOST_BODY_BYTES} bytes")
    return body


def deflate(body: bytes, dictionary: bytes) -> bytes:
    """The body after zlib, without header and checksum: the batch has its own."""
    # A window for no more than there is: to clear the usual 256 KB takes longer than all the rest of a small body.
    bits = min(15, (len(dictionary) + len(body) + 262).bit_length())
    compressor = zlib.compressobj(6, zlib.DEFLATED, -bits, bits - 7, zdict=dictionary)
    return compressor.compress(body) + compressor.flush()


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


def zstd_writer(dictionary: bytes) -> Callable[[bytes], bytes]:
    """What compresses with zstd and a dictionary, made once for many bodies."""
    # With a dictionary bodies are small. Then a high level takes no more time, and from level 6 on zstd looks whether
    # the dictionary's tables fit at all. Sizes are told for the sake of memory: 0.2 MB, and 0.5 MB without one.
    parameters = zstandard.ZstdCompressionParameters.from_level(
        7 if dictionary else 3,
        source_size=4096 if dictionary else 128 * 1024,
        dict_size=len(dictionary),
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,  # the magic number says nothing here
        write_content_size=1,
        write_checksum=0,
        write_dict_id=0,
    )
    known = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    compressor, lock = zstandard.ZstdCompressor(compression_params=parameters, dict_data=known), Lock()

    def write(body: bytes) -> bytes:
        with lock:  # one of these works for one thread at a time
            return compressor.compress(body)

    return write


@cache
def _zstd_writer(with_dictionary: bool) -> Callable[[bytes], bytes]:
    return zstd_writer(_dictionary() if with_dictionary else b"")


@cache
def _zstd_reader(with_dictionary: bool) -> Callable[[bytes], bytes]:
    known = zstandard.ZstdCompressionDict(_dictionary()) if with_dictionary else None
    decompressor, lock = zstandard.ZstdDecompressor(dict_data=known, format=zstandard.FORMAT_ZSTD1_MAGICLESS), Lock()

    def read(data: bytes) -> bytes:
        try:
            size = zstandard.get_frame_parameters(data, format=zstandard.FORMAT_ZSTD1_MAGICLESS).content_size
            if size > MOST_BODY_BYTES:
                raise MalformedBatch(f"a body of more than {MOST_BODY_BYTES} bytes")
            with lock:
                return decompressor.decompress(data, max_output_size=MOST_BODY_BYTES, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise MalformedBatch(f"the body cannot be decompressed: {error}") from None

    return read


@cache
def _dictionary() -> bytes:
    from os.path import dirname, join

    with open(join(dirname(__file__), "batch.dict"), "rb") as file:
        return file.read()


# A process may be forked while another thread holds one of the locks: it makes its own.
os.register_at_fork(after_in_child=_zstd_writer.cache_clear)
os.register_at_fork(after_in_child=_zstd_reader.cache_clear)

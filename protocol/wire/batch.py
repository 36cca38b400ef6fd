"""A batch: what an agent publishes at a time, numbered within its epoch, and complete in itself.

On the way it is framed: a byte that says whether the agent holds anything older, and a checksum over that, the batch
and the agent's name, so that a batch on another agent's topic is as wrong as a damaged one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

from protocol.ids import StreamId
from protocol.structs import Struct, replaced
from protocol.wire.columns import Allowance, Reader, put_varint
from protocol.wire.compression import Codec, best, compress, decompress
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, Pending, Section, decode_section, encode_sections, read_sections, records

VERSION = 1
MOST_BATCH_BYTES = 60 * 1024
_OLDEST, _NOT_OLDEST = 0x11, 0x10  # the version is in the upper half
_FRAME_BYTES = 5


class Header(Struct):
    """Which batch it is. `covers` is 1, but for one that stands for several that were given up."""

    epoch: int
    nonce: int
    seq: int
    covers: int = 1
    codec: int = Codec.NONE

    @property
    def next_seq(self) -> int:
        return self.seq + self.covers

    def encode(self) -> bytes:
        out = bytearray((self.codec,))
        out += self.nonce.to_bytes(8, "little")
        put_varint(out, self.epoch)
        put_varint(out, self.seq)
        put_varint(out, self.covers)
        return bytes(out)


def encode_batch(
    header: Header,
    records: Sequence[Pending],
    agent: str,
    *,
    first_event: int = 0,
    codec: Codec | None = None,
    readable: frozenset[int] = frozenset(Codec),
) -> bytes:
    """Records as one batch, compressed as well as it can be for a reader who reads only some codecs."""
    return close_batch(header, encode_sections(records, agent, header.nonce, first_event), codec, readable)


def close_batch(
    header: Header, body: bytes, codec: Codec | None = None, readable: frozenset[int] = frozenset(Codec)
) -> bytes:
    """A body as a batch."""
    chosen = best(len(body), readable) if codec is None else codec
    return replaced(header, codec=chosen).encode() + compress(body, chosen)


def recoded(batch: bytes, readable: frozenset[int]) -> bytes:
    """The same batch for a reader who cannot read its codec."""
    header, data = read_header(batch)
    return batch if header.codec in readable else close_batch(header, decompress(data, header.codec), None, readable)


def frame(batch: bytes, whose: str, oldest: bool) -> bytes:
    """A batch as it is published, with a checksum that holds only for its agent. `oldest`: the agent holds nothing that
    has to come before it."""
    first = bytes((_OLDEST if oldest else _NOT_OLDEST,))
    return first + crc32(batch, crc32(first, crc32(whose.encode()))).to_bytes(4, "little") + batch


def unframe(data: bytes, whose: str) -> tuple[bool, bytes]:
    """Whether it is the oldest that its agent holds, and the batch."""
    if len(data) <= _FRAME_BYTES:
        raise MalformedBatch("too short for a batch")
    if len(data) > MOST_BATCH_BYTES:
        raise MalformedBatch(f"{len(data)} bytes are too many for a batch")
    if data[0] not in (_OLDEST, _NOT_OLDEST):
        raise MalformedBatch(f"no batch begins with {data[0]:#x}")
    batch = data[_FRAME_BYTES:]
    if crc32(batch, crc32(data[:1], crc32(whose.encode()))) != int.from_bytes(data[1:_FRAME_BYTES], "little"):
        raise MalformedBatch(f"the checksum is wrong for a batch of agent {whose!r}")
    return data[0] == _OLDEST, batch


def read_header(batch: bytes) -> tuple[Header, bytes]:
    """The header, and what follows it."""
    reader = Reader(batch)
    codec = reader.byte()
    nonce = int.from_bytes(reader.take(8), "little")
    epoch, seq, covers = reader.varint(2**62), reader.varint(2**62), reader.varint(2**62)
    if covers < 1:
        raise MalformedBatch("a batch that stands for none")
    return Header(epoch, nonce, seq, covers, codec), reader.take(reader.left)


class Batch(Struct):
    """A batch that was read. Sections come with their bytes as they stand, for whoever wants to keep them."""

    header: Header
    sections: list[tuple[Kind, Section, bytes]]

    def records(self) -> Iterator[Any]:
        """All of it, section by section."""
        for _, section, _ in self.sections:
            yield from records(section)


def decode_batch(batch: bytes, agent: str) -> Batch:
    """Everything in a batch, checked. MalformedBatch says what is wrong with it."""
    header, data = read_header(batch)
    own = StreamId(agent, header.epoch, "", header.nonce)
    sections = read_sections(decompress(data, header.codec))
    allowance = Allowance()
    return Batch(header, [(kind, decode_section(kind, section, own, allowance), section) for kind, section in sections])

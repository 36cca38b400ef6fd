"""What crosses from the Send of one agent to the Receive of others: tuples with their origins, then a promise.

Crossings of a stream are numbered for as long as the sender keeps its disk, over its restarts, and so is what a
receiver has taken. Values keep the names of their types: a receiver that knows a type of that name makes values of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from protocol.ids import StreamId
from protocol.records import Origin, OriginKind
from protocol.structs import Struct
from protocol.wire.columns import Reader, put_ints, put_signed, put_small, put_varint
from protocol.wire.compression import Codec, best, compress, decompress
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer, names_of
from protocol.wire.sections import MOST_RECORDS, Names, read_seqs, read_shapes, read_streams
from protocol.wire.values import Packed, Payloads, Shape, put_payloads

Crossed = tuple[int, Any, Origin]
PackedTuple = tuple[int, Packed, Origin]
# Every agent can read these, whatever it could install.
_COMMON = frozenset({Codec.NONE, Codec.ZLIB, Codec.ZLIB_DICTIONARY})


class Crossing(Struct):
    """Tuples as (ts, payload, origin), and what the sender promises after them. `stream` is the delivering stream that
    they come from, `spool` what the number `seq` counts in, `lost` how many tuples before these were given up."""

    stream: StreamId
    spool: int
    seq: int
    tuples: list[Crossed]
    watermark: int
    hold: int
    idle: bool
    lost: int = 0


def whose_crossing(agent: str, stream: str) -> str:
    """What the checksum of a crossing is bound to: on another topic, for a damaged topic id, it is neither a batch of
    the agent nor a crossing of another stream. No agent's name has a slash."""
    return f"{agent}/{stream}"


def packed(tuples: Sequence[Crossed], packer: Packer) -> list[PackedTuple]:
    """Tuples whose values are bytes from now on."""
    return [(ts, packer.pack(value), origin) for ts, value, origin in tuples]


def encode_crossing(crossing: Crossing, tuples: Sequence[PackedTuple]) -> bytes:
    """A crossing as the body of a publish, with these tuples for its own."""
    stream = crossing.stream
    names = Names(stream.agent, stream.nonce)
    columns = bytearray()
    put_ints(columns, [ts for ts, _, _ in tuples])
    put_payloads(columns, [names.shape(shape) for _, (shape, _), _ in tuples], [data for _, (_, data), _ in tuples])
    origins = [origin for _, _, origin in tuples]
    remote = OriginKind.REMOTE
    put_small(columns, [names.stream(origin.stream) << 1 | (origin.kind is remote) for origin in origins])
    put_ints(columns, [origin.seq for origin in origins])
    put_ints(columns, [origin.ts for origin in origins])
    body = bytearray()
    put_signed(body, crossing.watermark)
    put_signed(body, crossing.hold)
    body.append(crossing.idle)
    put_varint(body, crossing.lost)
    put_varint(body, len(tuples))
    names.put_streams(body)
    names.put_shapes(body)
    body += columns
    codec = best(len(body), _COMMON)
    out = bytearray((codec,))
    out += stream.nonce.to_bytes(8, "little")
    put_varint(out, stream.epoch)
    out += crossing.spool.to_bytes(8, "little")
    put_varint(out, crossing.seq)
    return bytes(out) + compress(bytes(body), codec)


def decode_crossing(data: bytes, agent: str, name: str) -> Crossing:
    """A crossing of an agent's stream. MalformedBatch says what is wrong with it."""
    reader = Reader(data)
    codec = reader.byte()
    nonce = int.from_bytes(reader.take(8), "little")
    own = StreamId(agent, reader.varint(2**62), name, nonce)
    spool = int.from_bytes(reader.take(8), "little")
    seq = reader.varint(2**62)
    reader = Reader(decompress(reader.take(reader.left), codec))
    watermark, hold, idle, lost = reader.signed(), reader.signed(), reader.byte(), reader.varint(2**62)
    count = reader.varint(MOST_RECORDS)
    streams, shapes = read_streams(reader, own), read_shapes(reader)
    stamps = reader.ints(count)
    payloads = Payloads(reader, count, shapes)
    of, seqs, origin_ts = reader.small(count, 2 * len(streams)), read_seqs(reader, count), reader.ints(count)
    if reader.left:
        raise MalformedBatch("something follows a crossing")
    kinds = (OriginKind.SOURCE, OriginKind.REMOTE)
    makers = [_maker(shape) for shape in shapes]
    tuples = [
        (ts, makers[place](value), Origin(kinds[each & 1], streams[each >> 1], number, at))
        for ts, place, value, each, number, at in zip(
            stamps, payloads.places(), payloads.values(), of, seqs, origin_ts, strict=True
        )
    ]
    return Crossing(own, spool, seq, tuples, watermark, hold, bool(idle), lost)


def _maker(shape: Shape | None) -> Any:
    """What makes a value of this shape, of its type, from what was read."""
    kind = None if shape is None or not shape.type else _known_type(shape)
    if shape is None or kind is None:
        return lambda value: value

    # As pickle does: a remote agent must not choose code of ours to run, and a constructor is code.
    def make(fields: dict[str, Any]) -> Any:
        if tuple(fields) != shape.names:  # it was too large
            return fields
        if issubclass(kind, tuple):
            return tuple.__new__(kind, fields.values())
        made = object.__new__(kind)
        try:
            for name, value in fields.items():
                object.__setattr__(made, name, value)
        except AttributeError:  # a field that nobody may set
            return fields
        return made

    return make


def _known_type(shape: Shape) -> type | None:
    """The dataclass or NamedTuple of that name and those fields, if the program has it already; nothing is imported."""
    module, _, qualname = shape.type.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        # Not by getattr: a module may import when it is asked for a name.
        found = getattr(found, "__dict__", {}).get(part)
    if not isinstance(found, type) or names_of(found) != shape.names or hasattr(found, "__del__"):
        return None
    try:
        # An abstract class, or one that a dataclass made of a dict or an exception, cannot be made like this.
        tuple.__new__(found, ()) if issubclass(found, tuple) else object.__new__(found)
    except TypeError:
        return None
    return found

"""What comes down to an agent: that its batches are in the log, or that its tuples have been taken over.

Acknowledgements are cumulative, so any of them may be lost.
"""

from __future__ import annotations

from zlib import crc32

from protocol.structs import Struct
from protocol.wire.columns import Reader, put_texts, put_varint
from protocol.wire.errors import MalformedBatch

MOST_ANSWER_BYTES = 1024
MOST_EARLY = 64
_LOGGED, _TAKEN = 0x11, 0x12


class Logged(Struct):
    """All batches of an epoch below `next_seq` are in the log. `early` has bit i set if the one at next_seq + 1 + i has
    come too soon and waits. `codecs` are those that can be read, as bits; `duplicate`: somebody else uses the name."""

    nonce: int
    next_seq: int
    early: int = 0
    codecs: int = 0
    duplicate: bool = False

    def has_early(self, seq: int) -> bool:
        """Whether this batch waits for those before it."""
        place = seq - self.next_seq - 1
        return place >= 0 and bool(self.early >> place & 1)


class Taken(Struct):
    """An agent has taken over all crossings of a stream below `next_seq`."""

    receiver: str
    stream: str
    nonce: int
    next_seq: int


Answer = Logged | Taken


def encode_answer(answer: Answer, agent: str) -> bytes:
    """An answer for an agent; the checksum includes its name, so no other takes it for its own."""
    out = bytearray()
    if isinstance(answer, Logged):
        out.append(_LOGGED)
        out += answer.nonce.to_bytes(8, "little")
        put_varint(out, answer.next_seq)
        put_varint(out, answer.early)
        out += bytes((answer.codecs, answer.duplicate))
    else:
        out.append(_TAKEN)
        out += answer.nonce.to_bytes(8, "little")
        put_varint(out, answer.next_seq)
        put_texts(out, [answer.receiver, answer.stream])
    return bytes(out) + _checksum(bytes(out), agent)


def decode_answer(data: bytes, agent: str) -> Answer:
    """The answer again."""
    if not 4 < len(data) <= MOST_ANSWER_BYTES or data[-4:] != _checksum(data[:-4], agent):
        raise MalformedBatch(f"no answer for agent {agent!r}")
    reader = Reader(data[:-4])
    kind = reader.byte()
    if kind not in (_LOGGED, _TAKEN):
        raise MalformedBatch(f"no answer begins with {kind:#x}")
    nonce = int.from_bytes(reader.take(8), "little")
    next_seq = reader.varint(2**62)
    answer: Answer
    if kind == _LOGGED:
        answer = Logged(nonce, next_seq, reader.varint(2**MOST_EARLY - 1), reader.byte(), bool(reader.byte()))
    else:
        receiver, stream = reader.texts(2)
        answer = Taken(receiver, stream, nonce, next_seq)
    if reader.left:
        raise MalformedBatch("something follows an answer")
    return answer


def _checksum(data: bytes, agent: str) -> bytes:
    return crc32(data, crc32(agent.encode())).to_bytes(4, "little")

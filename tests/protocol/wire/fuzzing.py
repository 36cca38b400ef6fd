"""Mutated batches, crossings and answers, with their checksums put right, and bombs: few bytes that would be many.

    python -m tests.protocol.wire.fuzzing mutations 1000000 7    so many from that seed
    python -m tests.protocol.wire.fuzzing bombs maps streams     those with one of these words in their names

Whatever comes in, only MalformedBatch may come out. Both print what it took as a line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from protocol.events import DataItem, Dependency, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded
from protocol.ids import StreamId
from protocol.records import (
    Assertion,
    Declared,
    Delivery,
    End,
    Gap,
    Late,
    Lost,
    Origin,
    OriginKind,
    Progress,
    Received,
    Sketch,
    Skipped,
    SourcePayload,
    Status,
)
from protocol.wire.answers import Logged, Taken, decode_answer, encode_answer
from protocol.wire.batch import MOST_BATCH_BYTES, Header, close_batch, decode_batch, encode_batch, frame, unframe
from protocol.wire.columns import put_varint
from protocol.wire.compression import MOST_BODY_BYTES, Codec, compress, decompress
from protocol.wire.crossing import Crossing, decode_crossing
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind, encode_sections
from tests.protocol.wire.strategies import encoded_crossing, row_of

AGENT, NONCE = "car-7", 9
HEADER = Header(3, NONCE, 0)
OWN = StreamId(AGENT, 3, "stopped", NONCE)
MEMORY_BYTES = 1 << 30  # of the whole process, for the operating system to refuse more
_INTERESTING = (0, 1, 0x7F, 0x80, 0x81, 0x90, 0x91, 0xC0, 0xC1, 0xC7, 0xD4, 0xDC, 0xDD, 0xDF, 0xFE, 0xFF)


def records() -> list[Any]:
    """Some of each kind."""
    source, foreign = OWN._replace(name="reports"), StreamId("meter-1", 8, "totals", 2**63)
    origins = (Origin(OriginKind.SOURCE, source, 7, 1000), Origin(OriginKind.REMOTE, foreign, 2**30, 900))
    item = DataItem("in_1", "1", ("raw_1", "raw_2"), {"in": [1] * 10, "when": 1.5})
    values: list[Any] = [
        {"car": 7, "speed": 0.25},
        [1, [2, {"a": b"b"}]],
        2**70,
        None,
        "text",
        {"car": 8, "speed": 1.0},
    ]
    found: list[Any] = [Declared('{"name":"app","nodes":[]}'), Progress(OWN, 5000, 2**63 - 1), Progress(foreign, -1, 0)]
    for number, value in enumerate(values):
        found.append(SourcePayload(source, number, 1000 + number, value))
        found.append(Delivery(OWN, number, 2000 + number, value, origins[: number % 3]))
        found.append(Assertion(OWN, number, 2000, -number, value))
        found.append(Late(source, 3000, value, 4000))
    return [
        *found,
        WorkflowBegun(0, 1000, 0, "1", {"who": "me"}),
        TaskBegun(1, 1001, 1, 0, "0-0", "0", (Dependency("x", -1),), (item,)),
        TaskEnded(2, 1002, 1, "failed", "ValueError", (item, item)),
        WorkflowEnded(3, 1003, 0, "finished"),
        Gap("crash", 2, 8, (1, 2), (Lost("stopped", 3, 4),), (5, 6), (("stopped", 7, 8),), (("stopped", 9),), 10),
        Skipped("map", "app:f", None, {"a": 1}, "ValueError"),
        Status(1, 2, 3, 4, 5, 6, {"state": "active"}, {"per car": (1, 2, 3, 4)}),
        Sketch("edges", 4, 100, bytes(range(64))),
        Received("meter-1", "totals", 8, 9, 10),
        End(9000),
    ]


class Target(NamedTuple):
    """Something to mutate, how it is put right afterwards, and what reads it."""

    seed: bytes
    repair: Callable[[bytes, Random], bytes]
    read: Callable[[bytes], Any]


def targets() -> list[Target]:
    """Bodies reach the readers of sections, batches those of headers and of compressed data."""
    packer = Packer()
    rows = [row_of(record, packer) for record in records()]
    groups = [rows, *([row] for row in rows), rows[:9], rows[9:20], rows[20:]]
    bodies = [encode_sections(group, AGENT, NONCE, 7) for group in groups]
    batches = [encode_batch(HEADER, group, AGENT, codec=codec) for group in groups[-3:] for codec in Codec]
    tuples = [(ts, value, Origin(OriginKind.SOURCE, OWN, ts, ts)) for ts, value in enumerate([{"a": 1}, {"a": 2}, 3])]
    crossing = encoded_crossing(Crossing(OWN, 1, 2, tuples, 3, 4, False, 5), packer)
    head = len(crossing) - len(compress(decompress(crossing[19:], crossing[0]), Codec(crossing[0])))
    body = decompress(crossing[head:], crossing[0])
    answers = [encode_answer(Logged(1, 2, 3, 4), AGENT), encode_answer(Taken("meter-1", "totals", 1, 2), AGENT)]
    return [
        *(Target(body, _as_batch, _read_frame) for body in bodies),
        *(Target(batch, lambda data, _: frame(data, AGENT, True), _read_frame) for batch in batches),
        Target(crossing, lambda data, _: data, _read_crossing),
        *[Target(body, lambda data, _: crossing[:head] + compress(data, Codec(crossing[0])), _read_crossing)] * 5,
        *(Target(answer[:-4], lambda data, _: data + _checksum(data), _read_answer) for answer in answers),
    ]


def _as_batch(body: bytes, dice: Random) -> bytes:
    return frame(close_batch(HEADER, body, dice.choice(list(Codec))), AGENT, True)


def _checksum(data: bytes) -> bytes:
    return crc32(data, crc32(AGENT.encode())).to_bytes(4, "little")


def _read_frame(data: bytes) -> None:
    _, batch = unframe(data, AGENT)
    for _ in decode_batch(batch, AGENT).records():
        pass


def _read_crossing(data: bytes) -> None:
    decode_crossing(data, AGENT, "stopped")


def _read_answer(data: bytes) -> None:
    decode_answer(data, AGENT)


def mutated(data: bytes, dice: Random) -> bytes:
    """The data with one to four changes."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        at = dice.randrange(len(changed) + 1)
        size = dice.choice((1, 1, 1, 2, 4, 16))
        way = dice.randrange(7)
        if way == 0 and changed:
            changed[at % len(changed)] ^= 1 << dice.randrange(8)
        elif way == 1 and changed:
            changed[at % len(changed)] = dice.choice(_INTERESTING)
        elif way == 2:
            changed[at:at] = bytes(dice.choice(_INTERESTING) for _ in range(size))
        elif way == 3:
            del changed[at : at + size]
        elif way == 4:
            number = bytearray()
            put_varint(number, dice.choice((2**14, 2**16, 2**18, 2**32, 2**62, 2**63, 2**64 - 1)))
            changed[at : at + dice.randrange(2)] = number
        elif way == 5:
            other = dice.randrange(len(changed) + 1)
            changed[at:at] = changed[other : other + size * 4]
        else:
            changed[at : at + size] = dice.randbytes(size)
    return bytes(changed)


class Outcome(NamedTuple):
    """What became of hostile input."""

    read: int
    refused: int
    slowest_s: float
    seconds: float


def fuzz(count: int, seed: int, seeds: list[Target]) -> Outcome:
    """So many mutations. What comes out of a reader besides MalformedBatch is raised, with the input in its notes."""
    dice = Random(seed)
    read = refused = 0
    slowest = 0.0
    begun = before = time.perf_counter()
    for number in range(count):
        target = dice.choice(seeds)
        data = target.repair(mutated(target.seed, dice), dice)
        try:
            target.read(data)
            read += 1
        except MalformedBatch:
            refused += 1
        except BaseException as error:
            error.add_note(f"mutation {number} of seed {seed}, {target.read.__name__}: {data.hex()}")
            raise
        now = time.perf_counter()
        slowest, before = max(slowest, now - before), now
    return Outcome(read, refused, slowest, time.perf_counter() - begun)


# Bombs


def _section(kind: Kind, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((kind,)) + varint(len(body)) + body


def varint(number: int) -> bytes:
    """A number from 0 on, as columns write it."""
    out = bytearray()
    put_varint(out, number)
    return bytes(out)


_STREAM = b"\1\0\0\0\0"  # a table of one: this agent's, without a name
_ZEROS = b"\0\0\0"  # a column of numbers: the first, no differences, of which all are
_NOTHING = b"\0\0\0\0"  # a column of values that are all None


def bombs() -> Iterator[tuple[str, bytes]]:
    """Bodies that are as large in memory as a body can be, each in its way."""
    room = MOST_BODY_BYTES - 600
    for name, part in (("maps", b"\x80"), ("lists", b"\x90"), ("pairs", b"\x81\xc0\xc0"), ("texts", b"\xa2ab")):
        many = room // len(part)
        value = b"\xdd" + many.to_bytes(4, "big") + part * many
        yield f"a task with data of many {name}", _task_with(value)
        yield f"many {name}, after many streams", _streams(65_000) * 3 + _task_with(value)
        yield f"many {name}, after many shapes", _shapes(43_000) * 3 + _task_with(value)
        yield (
            f"a source payload of many {name}",
            _section(Kind.SOURCE, b"\1", _STREAM, b"\0", b"\0\0", b"\0", b"\0", _bytes_value(value)),
        )
    promises = _section(Kind.PROGRESS, varint(60_000), _STREAM, b"\0\0", _ZEROS, _ZEROS)
    yield "promises", promises
    yield "promises in many sections", promises * 1000
    yield (
        "origins",
        _section(
            Kind.DELIVERY,
            *(b"\1", _STREAM, b"\0", b"\0\0", b"\0", b"\0", _NOTHING, b"\0\0", b"\0" + varint(150_000)),
            *(b"\0\0", _ZEROS, _ZEROS),
        ),
    )
    yield "streams in many sections", _streams(65_000) * 1000
    yield "shapes in many sections", _shapes(60_000) * 1000
    rows = varint(60_000)
    sources = rows, _STREAM, _shape(7), b"\0\0", _ZEROS, _ZEROS, b"\0\2"
    yield "a table of nothing", _section(Kind.SOURCE, *sources, b"\0", b"\0" * 7)
    yield (
        "a table of zeros",
        _section(Kind.SOURCE, rows, _STREAM, _shape(3), b"\0\0", _ZEROS, _ZEROS, b"\0\2\0", (b"\2" + _ZEROS) * 3),
    )
    yield "a table of empty lists", _section(Kind.SOURCE, *sources, b"\0", b"\5\0\0\0" * 7)
    yield (
        "a table of lists in lists",
        _section(
            Kind.SOURCE,
            b"\1",
            _STREAM,
            _shape(1),
            b"\0\0",
            b"\0",
            b"\0",
            b"\0\2\0",
            b"\5\0\1" * 7,
            b"\5\0" + varint(200_000),
            b"\0",
        ),
    )
    yield "ended workflows", _section(Kind.EVENT, rows, b"\0", b"\0\1", _ZEROS, _ZEROS, b"\0", b"\0\0", b"\0\0")
    yield "ended tasks", _section(Kind.EVENT, rows, b"\0", b"\0\3", _ZEROS, _ZEROS, b"\0", b"\0\0", b"\0\0", b"\0\0")
    items = b"\0" + varint(60_000)
    yield "items", _section(Kind.EVENT, b"\1\0", b"\0\3", b"\0\0", b"\0", b"\0\0\0\0", items, b"\0\0" * 3, _NOTHING)
    yield "small sections", _section(Kind.END, b"\1", b"\0\x05", b"\x81\xa2ts\x07") * 40_000


def _streams(count: int) -> bytes:
    """A promise, and a table of so many streams without names."""
    return _section(Kind.PROGRESS, b"\1", varint(count) + b"\0\0\0\0", b"\0\0", b"\0", b"\0")


def _shapes(count: int) -> bytes:
    """A source payload, and a table of so many shapes of one field without a name."""
    shapes = varint(count) + b"\0\0" + b"\0\1" + b"\0\0"
    return _section(Kind.SOURCE, b"\1", _STREAM, shapes, b"\0\0", b"\0", b"\0", _NOTHING)


def _shape(names: int) -> bytes:
    return b"\1" + b"\0\0" + b"\0" + bytes((names,)) + b"\0\0"


def _bytes_value(value: bytes) -> bytes:
    return b"\0\1" + b"\0" + varint(len(value)) + value


def _task_with(value: bytes) -> bytes:
    """A task that has ended well, and generated one thing."""
    item = b"\0\1" + b"\0\0" + b"\0\0" + b"\0\0" + _bytes_value(value)
    return _section(Kind.EVENT, b"\1\0", b"\0\3", b"\0\0", b"\0", b"\0\0\0\0", item)


def hostile_batches() -> Iterator[tuple[str, bytes]]:
    """Bombs as they would come over the network: compressed, framed and no larger than a batch may be."""
    for name, body in bombs():
        data = frame(close_batch(HEADER, body, Codec.ZSTD), AGENT, True)
        assert len(data) <= MOST_BATCH_BYTES
        yield name, data


def explode(words: list[str]) -> Outcome:
    """Read the bombs whose names contain one of these words."""
    read = refused = 0
    slowest = 0.0
    begun = time.perf_counter()
    for name, data in hostile_batches():
        if not any(word in name for word in words):
            continue
        before = time.process_time()
        try:
            found = list(decode_batch(unframe(data, AGENT)[1], AGENT).records())
            read += 1
            del found
        except MalformedBatch:
            refused += 1
        slowest = max(slowest, time.process_time() - before)
    return Outcome(read, refused, slowest, time.perf_counter() - begun)


def main() -> None:
    what, *details = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seeds = targets()
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = explode(details) if what == "bombs" else fuzz(int(details[0]), int(details[1]), seeds)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    print(json.dumps(outcome._asdict() | {"grown_bytes": 1024 * grown_kb}))


if __name__ == "__main__":
    main()

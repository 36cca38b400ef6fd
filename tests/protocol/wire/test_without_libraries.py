"""A board that has Python and nothing else, and a server that has zstandard: each reads what the other wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.ids import StreamId
from protocol.records import Delivery, End, Late, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.batch import Header, decode_batch, encode_batch, frame, unframe
from protocol.wire.compression import Codec
from protocol.wire.errors import UnknownCodec
from protocol.wire.packer import Packer
from protocol.wire.sections import pending

ROOT = Path(__file__).resolve().parents[3]
STREAM = StreamId("car-7", 3, "stopped", 9)
ORIGINS = (Origin(OriginKind.SOURCE, STREAM._replace(name="reports"), 7, 100),)
RECORDS = [
    SourcePayload(STREAM._replace(name="reports"), 7, 100, {"car": 1, "speed": 0.5, "tags": [None, True, "a", b"b"]}),
    Delivery(STREAM, 1, 200, {"car": 1, "big": 2**70, "nested": {"a": [1, {"b": -1}]}}, ORIGINS),
    Progress(STREAM, 200, 2**63 - 1),
    End(300),
    Late(STREAM, 50, ["late"], 200),
]

# Says on its standard output what it wrote, after it has checked what it was given on its standard input.
BOARD = """
import sys
sys.modules["zstandard"] = None
before = {name.partition(".")[0] for name in sys.modules}
from protocol.wire import compression, crossing
assert compression.zstandard is None and compression.READABLE == {0, 1, 2}
allowed = {*sys.stdlib_module_names, "__main__", "protocol"}
assert {name.partition(".")[0] for name in sys.modules} - before <= allowed, sys.modules.keys()
import tests.protocol.wire.test_without_libraries as test
_, batch = test.unframe(sys.stdin.buffer.read(), "server")
test.check(batch, "server")
sys.stdout.buffer.write(test.frame(test.batch("car-7"), "car-7", True))
"""


def batch(agent: str, codec: Codec | None = None) -> bytes:
    packer = Packer()
    rows = [pending(record, packer) for record in RECORDS]
    assert packer.replaced == 0
    return encode_batch(Header(3, 9, 0), rows, agent, codec=codec)


def check(data: bytes, agent: str) -> None:
    arrived = list(decode_batch(data, agent).records())
    assert [(each, getattr(each, "payload", None)) for each in arrived] == [
        (each, getattr(each, "payload", None)) for each in RECORDS
    ]


def on_a_board(given: bytes) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", BOARD], input=given, capture_output=True, cwd=ROOT, env=environment, check=False
    )


@pytest.mark.parametrize("codec", [Codec.ZLIB, Codec.ZLIB_DICTIONARY, Codec.NONE])
def test_each_reads_what_the_other_wrote(codec: Codec) -> None:
    board = on_a_board(frame(batch("server", codec), "server", False))
    assert board.returncode == 0, board.stderr.decode()
    oldest, written = unframe(board.stdout, "car-7")
    assert oldest
    assert written[0] == Codec.ZLIB_DICTIONARY
    check(written, "car-7")


def test_a_board_says_what_it_cannot_read() -> None:
    board = on_a_board(frame(batch("server", Codec.ZSTD), "server", False))
    assert board.returncode == 1
    assert UnknownCodec.__name__ in board.stderr.decode()


def test_values_are_the_same() -> None:
    """Of the same records both make the same body."""
    board = on_a_board(frame(batch("server", Codec.NONE), "server", False))
    _, written = unframe(board.stdout, "car-7")
    assert [raw for _, _, raw in decode_batch(written, "car-7").sections] == [
        raw for _, _, raw in decode_batch(batch("car-7"), "car-7").sections
    ]

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.outbox.pieces import Piece, decode_piece, encode_piece
from edge_agent.outbox.recovery import close_journal
from edge_agent.spool import Spool
from protocol.wire.batch import Header, decode_batch, encode_batch
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from tests.edge_agent.records import AGENT, EPOCH, begun
from tests.protocol.wire.strategies import EVENT, NONCE, RECORD, row_of

HEADER = Header(3, NONCE, 5)


@given(st.lists(RECORD | EVENT, max_size=8), st.integers(0, 2**40))
def test_rows_come_back_as_what_makes_the_same_batch(told: list[Any], first_event: int) -> None:
    packer = Packer()
    rows = [row_of(each, packer) for each in told]
    piece = decode_piece(encode_piece(Piece(HEADER, first_event, rows)))
    assert (piece.header, piece.first_event) == (HEADER, first_event)
    again = encode_batch(piece.header, piece.rows, AGENT, first_event=piece.first_event)
    assert again == encode_batch(HEADER, rows, AGENT, first_event=first_event)


def test_names_that_come_again_are_written_once() -> None:
    packer = Packer()
    readings = [{f"name_{place}": float(number) for place in range(50)} for number in range(20)]
    rows = [(*begun(number)[:-1], [("d", "w", (), *packer.pack(each))]) for number, each in enumerate(readings)]
    data = encode_piece(Piece(HEADER, 0, rows))
    assert data.count(b"name_7") == 1


@pytest.mark.parametrize("data", [b"", b"\x09", b"[]", encode_piece(Piece(HEADER, 0, [begun(1)]))[:-1]])
def test_what_is_no_piece_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedBatch, match="no piece"):
        decode_piece(data)


def test_a_batch_may_be_made_of_very_many_pieces(tmp_path: Path) -> None:
    header = Header(EPOCH.counter, EPOCH.nonce, 0)
    with Spool.open(tmp_path, fsync="never") as spool:
        for number in range(1_500):
            spool.journal(encode_piece(Piece(header, number, [begun(number)])))
    with Spool.open(tmp_path, fsync="never") as spool:
        assert close_journal(spool, AGENT) == []
        (entry,) = spool.entries()
        assert [each.number for each in decode_batch(entry.data, AGENT).records()] == list(range(1_500))

"""Records that are in no batch yet, as the journal keeps them: row by row.

A piece holds few records and is read only after a crash, so it is made the quickest way there is: Python's own
`marshal`, which writes plain values, in a version of it that all our Pythons read. What is not plain is written as what
it is made of.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Sequence
from typing import Any

from protocol.ids import StreamId
from protocol.records import Origin, OriginKind
from protocol.structs import Struct
from protocol.wire.batch import Header
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import EventKind, Kind, Pending
from protocol.wire.values import Shape

_VERSION = 4
_EVENT = int(Kind.EVENT)
_WITH_PAYLOAD = (Kind.SOURCE, Kind.DELIVERY, Kind.ASSERTION)


class Piece(Struct):
    """Records of one batch, the first event among them numbered.

    `behind` is for a batch that is not the first one of a group that was divided: so many records of the group come
    before it. Such pieces repeat some of what those of the group hold, each something else.
    """

    header: Header
    first_event: int
    rows: list[Pending]
    behind: int = 0


def encode_piece(piece: Piece) -> bytes:
    """As bytes; nothing but `decode_piece` reads them."""
    header = piece.header
    rows = [_plain(row) for row in piece.rows]
    return marshal.dumps((header.epoch, header.nonce, header.seq, piece.first_event, rows, piece.behind), _VERSION)


def decode_piece(data: bytes) -> Piece:
    """The piece again. MalformedBatch if it is none."""
    try:
        epoch, nonce, seq, first_event, rows, *behind = marshal.loads(data)  # older versions divided otherwise
        return Piece(Header(epoch, nonce, seq), first_event, [_restored(row) for row in rows], *behind)
    except (EOFError, ValueError, TypeError, IndexError) as error:
        raise MalformedBatch(f"no piece of a journal: {error}") from error


def _plain(row: Pending) -> tuple[Any, ...]:
    kind = row[0]
    if kind is Kind.EVENT:
        what = row[1]
        if what >= EventKind.TASK_BEGUN:
            items = [(id, of, sources, shape and tuple(shape), value) for id, of, sources, shape, value in row[-1]]
            return (_EVENT, int(what), *row[2:-1], items)
        if what == EventKind.WORKFLOW_BEGUN:
            return (_EVENT, int(what), *row[2:5], row[5] and tuple(row[5]), row[6])
        return (_EVENT, int(what), *row[2:])
    if kind in _WITH_PAYLOAD:
        plain = (int(kind), tuple(row[1]), row[2], row[3], row[4] and tuple(row[4]), row[5])
        if kind is Kind.DELIVERY:
            return (*plain, *_plain_origins(row[6]), row[7])
        return (*plain, *row[6:])
    if kind is Kind.PROGRESS:
        return (int(kind), tuple(row[1]), *row[2:])
    return (int(kind), *row[1:])


def _restored(row: tuple[Any, ...]) -> Pending:
    kind = Kind(row[0])
    if kind is Kind.EVENT:
        what = row[1]
        if what >= EventKind.TASK_BEGUN:
            items = [(id, of, sources, _shape(shape), value) for id, of, sources, shape, value in row[-1]]
            return (kind, *row[1:-1], items)
        if what == EventKind.WORKFLOW_BEGUN:
            return (kind, *row[1:5], _shape(row[5]), row[6])
        return (kind, *row[1:])
    if kind in _WITH_PAYLOAD:
        pending = (kind, StreamId(*row[1]), row[2], row[3], _shape(row[4]), row[5])
        if kind is Kind.DELIVERY:
            return (*pending, _restored_origins(row[6], row[7]), row[8])
        return (*pending, *row[6:])
    if kind is Kind.PROGRESS:
        return (kind, StreamId(*row[1]), *row[2:])
    return (kind, *row[1:])


def _shape(plain: tuple[str, tuple[str, ...]] | None) -> Shape | None:
    return None if plain is None else Shape(*plain)


def _plain_origins(origins: Sequence[Origin]) -> tuple[list[tuple[Any, ...]], bytes]:
    """Their streams, and three numbers for each of them: there may be thousands, of few streams. These are told apart
    by what they are in memory: to hash them would take longer than all the rest."""
    streams = {id(each.stream): each.stream for each in origins}
    places = {known: place << 1 for place, known in enumerate(streams)}
    remote = OriginKind.REMOTE
    of = [places[id(each.stream)] | (each.kind is remote) for each in origins]
    numbers = array("q", [*of, *[each.seq for each in origins], *[each.ts for each in origins]])
    return [tuple(stream) for stream in streams.values()], numbers.tobytes()


def _restored_origins(streams: list[tuple[Any, ...]], data: bytes) -> list[Origin]:
    known = [StreamId(*each) for each in streams]
    kinds = (OriginKind.SOURCE, OriginKind.REMOTE)
    numbers = array("q", data)
    size = len(numbers) // 3
    columns = numbers[:size], numbers[size : 2 * size], numbers[2 * size :]
    return [Origin(kinds[of & 1], known[of >> 1], seq, ts) for of, seq, ts in zip(*columns, strict=True)]

"""Records as batches that can be sent: one as a rule, several if they turn out too large for one.

How large a batch is one knows only when it is compressed. What does not fit is cut by the share that was too much,
until it does: records may differ in size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocol.structs import Struct
from protocol.wire.batch import MOST_BATCH_BYTES, Header, close_batch
from protocol.wire.columns import MOST_NUMBERS
from protocol.wire.compression import MOST_BODY_BYTES
from protocol.wire.sections import Kind, Pending, encode_sections, numbers_in

_TOO_LARGE = 1.15  # times what a batch should have
_FRAME_BYTES = 64
LARGEST = int((MOST_BATCH_BYTES - _FRAME_BYTES) / _TOO_LARGE)
"""What a batch may have at most."""
_LIKE_THE_LAST = 2  # so many records are tried next, times those of the batch before
_READABLE_NUMBERS = MOST_NUMBERS // 4  # in a batch of these no single kind of number is too many either


class Part(Struct):
    """A batch, and the records in it besides what is promised."""

    header: Header
    first_event: int
    data: bytes
    rows: Sequence[Pending]


def events_in(rows: Sequence[Pending]) -> int:
    """How many of these are captured events."""
    return sum([row[0] is Kind.EVENT for row in rows])


def divided(
    header: Header,
    rows: Sequence[Pending],
    progress: Sequence[Pending],
    first_event: int,
    agent: str,
    batch_bytes: int,
    *,
    is_moderate: bool = False,
) -> Iterator[Part]:
    """Records in their order as batches from this one on, each of about so many bytes at most, and what is promised
    after all of them in the last one. `is_moderate`: they hold so little that anybody would read all of it."""
    most = len(rows)
    while True:
        some = rows[:most] if is_moderate else _readable(rows[:most])
        promised = progress if len(some) == len(rows) else ()
        part, excess = _encoded(header, some, promised, first_event, agent, batch_bytes)
        while excess > 1 and len(some) > 1:
            some = some[: max(1, int(len(some) / excess))]
            part, excess = _encoded(header, some, (), first_event, agent, batch_bytes)
        yield part
        if len(some) == len(rows):
            return
        first_event += events_in(some)
        header = Header(header.epoch, header.nonce, header.next_seq)
        rows, most = rows[len(some) :], _LIKE_THE_LAST * len(some)


def _readable(rows: Sequence[Pending]) -> Sequence[Pending]:
    """As many of them as one batch may hold, however well they can be compressed."""
    numbers = 0
    for place, row in enumerate(rows):
        numbers += numbers_in(row)
        if numbers > _READABLE_NUMBERS and place:
            return rows[:place]
    return rows


def _encoded(
    header: Header, rows: Sequence[Pending], progress: Sequence[Pending], first_event: int, agent: str, batch_bytes: int
) -> tuple[Part, float]:
    """All of these in one batch, and how many times too large that is."""
    body = encode_sections([*rows, *progress], agent, header.nonce, first_event)
    if len(body) > MOST_BODY_BYTES and len(rows) > 1:  # nobody would unpack it
        return Part(header, first_event, b"", rows), 2 * len(body) / MOST_BODY_BYTES
    data = close_batch(header, body)
    is_too_large = len(data) > batch_bytes * _TOO_LARGE
    return Part(header, first_event, data, rows), len(data) / batch_bytes if is_too_large else 1.0

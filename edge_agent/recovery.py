"""What the last process left behind: the beginning of a batch in the journal, and an epoch that may have no end."""

from __future__ import annotations

import logging

from edge_agent.memory import Progressed
from edge_agent.spool import Spool, SpoolFull
from protocol.records import Delivery, End, Gap, Progress, Received, SourcePayload
from protocol.wire.batch import close_batch, decode_batch, read_header
from protocol.wire.compression import decompress
from protocol.wire.errors import MalformedBatch

_LOG = logging.getLogger(__name__)
CRASH = "crash: what was not on disk yet is lost, and so are open windows"


def close_journal(spool: Spool, agent: str) -> None:
    """Records that were in the journal only become the batch that they were meant for."""
    pieces = spool.recovered_journal
    if not pieces:
        return
    try:
        header, _ = read_header(pieces[0])
        bodies: list[bytes] = []
        for piece in pieces:
            _, data = read_header(piece)
            bodies.append(decompress(data, read_header(piece)[0].codec))
        spool.append(close_batch(header, b"".join(bodies)))
    except SpoolFull:
        _LOG.error("no room for the last records before the crash agent=%s pieces=%d", agent, len(pieces))
    except MalformedBatch as error:
        _LOG.error("the journal cannot be read agent=%s error=%s", agent, error)


def gap_after_crash(spool: Spool, last: Progressed | None, agent: str) -> Gap | None:
    """How far the last epoch is known to have come, if it did not end as it should."""
    if last is None:
        return None
    for entry in spool.entries(spool.first):
        try:
            header, _ = read_header(entry.data)
            if header.nonce == last.nonce and header.seq >= last.next_seq:
                _go_on(last, entry.data, agent)
        except MalformedBatch as error:
            _LOG.error("an entry of the spool cannot be read agent=%s error=%s", agent, error)
    if last.ended:
        return None
    return Gap(
        CRASH,
        last.epoch,
        last.nonce,
        progress=tuple((name, watermark, hold) for name, (watermark, hold) in sorted(last.progress.items())),
        next_seqs=tuple(sorted(last.next_seqs.items())),
        next_event=last.next_event,
    )


def _go_on(last: Progressed, data: bytes, agent: str) -> None:
    """A batch that was written after the last time that its progress was noted."""
    batch = decode_batch(data, agent)
    for record in batch.records():
        if isinstance(record, Progress):
            last.progress[record.stream.name] = [record.watermark, record.hold]
        elif isinstance(record, (SourcePayload, Delivery)):
            last.next_seqs[record.stream.name] = record.seq + 1
        elif isinstance(record, Received):
            last.positions[f"{record.sender}/{record.stream}"] = [record.spool, record.next_seq]
        elif isinstance(record, End):
            last.ended = True
        elif hasattr(record, "number"):
            last.next_event = record.number + 1
    last.next_seq = batch.header.next_seq

"""What the last process left behind: the beginning of a batch in the journal, and an epoch that may have no end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from edge_agent.epoch import Epoch
from edge_agent.logger import Logger
from edge_agent.outbox.division import LARGEST, divided, events_in
from edge_agent.outbox.memory import Progressed
from edge_agent.outbox.pieces import Piece, decode_piece
from edge_agent.spool import Spool, SpoolError
from protocol.records import Assertion, Delivery, End, Gap, Progress, Received, SourcePayload
from protocol.wire.batch import Header, decode_batch, encode_batch, read_header
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind

_LOG = Logger(__name__)
CRASH = "crash: what was not on disk yet is lost, and so are open windows"
DAMAGE = "damaged spool: batches are gone, of this start or of earlier ones, unless they were sent before"
FORGOTTEN = "what the device had noted of its last start is gone: what was lost with it, or before, has no name"


def close_journal(spool: Spool, agent: str) -> list[bytes]:
    """Records that were in the journal only become the batches that they were meant for. These are returned if there is
    no room for them now: then they have to come before everything else."""
    spool.before_deleting = _not_yet
    if not spool.recovered_journal:
        return []
    try:
        batches = _recovered([decode_piece(piece) for piece in spool.recovered_journal], agent)
    except MalformedBatch as error:
        _LOG.error("the journal cannot be read agent=%s error=%s", agent, error)
        return []
    try:
        spool.append_recovered(batches)
    except SpoolError as error:
        _LOG.warning("the last records before the crash wait in the journal agent=%s error=%s", agent, error)
        return batches
    return []


def _recovered(pieces: Sequence[Piece], agent: str) -> list[bytes]:
    """The batches that pieces belong to, at least one for every number that there are pieces for.

    Pieces of a whole group come first, and hold all of it. Others tell how it was being divided; or else they repeat
    what the first batch was not going to hold. But once that is written, each of the others is all that another batch
    of the group holds.
    """
    first, *more = pieces
    if first.behind:
        return [encode_batch(each.header, each.rows, agent, first_event=each.first_event) for each in pieces]
    for piece in more:
        if piece.header == first.header:
            first.rows.extend(piece.rows)
    promised = [*{row[1].name: row for row in first.rows if row[0] is Kind.PROGRESS}.values()]
    rows = [row for row in first.rows if row[0] is not Kind.PROGRESS]
    parts = [piece for piece in more if piece.behind]
    ends = [piece.behind for piece in parts] + [piece.behind + len(piece.rows) for piece in parts[-1:]]
    found: list[bytes] = []
    header, begin, first_event = first.header, 0, first.first_event
    for end in [*ends, len(rows)]:
        if begin == end and found:  # all of it had been divided
            break
        for part in divided(header, rows[begin:end], promised if end == len(rows) else (), first_event, agent, LARGEST):
            found.append(part.data)
            header = Header(header.epoch, header.nonce, part.header.next_seq)
        first_event += events_in(rows[begin:end])
        begin = end
    return found


def _not_yet() -> None:
    """Before a batch is deleted, somebody has to have read how far it says that everything had come."""
    raise OSError("the last process's batches have not been read yet")


def gap_after_crash(spool: Spool, last: Progressed | None, agent: str, left: Sequence[bytes], now: Epoch) -> Gap | None:
    """How far the last epoch is known to have come, if it did not end as it should, or if the disk has lost what it had
    written. `left` are the batches that `close_journal` had no room for; `now` is the epoch that begins. If it is not
    the first one and nobody knows how the last one ended, that is said of the new one."""
    if last is None:
        if spool.lost:
            _LOG.error("the spool is damaged, batches cannot be read numbers=%s agent=%s", spool.lost, agent)
        is_first = now.counter <= 1 and not spool.count and not spool.lost
        return None if is_first else Gap(FORGOTTEN, now.counter, now.nonce)
    cut = max(0, last.spool_next - spool.next)
    held = 0  # the number after the last batch of the epoch that is there
    entries = (entry.data for entry in spool.kept())
    for data in chain(entries, left):
        try:
            header, _ = read_header(data)
            if header.epoch > last.epoch:
                _begin_anew(last, header)
            if header.nonce == last.nonce:
                held = header.next_seq
                if header.next_seq > last.next_seq:
                    _go_on(last, data, agent)
        except MalformedBatch as error:
            _LOG.error("an entry of the spool cannot be read agent=%s error=%s", agent, error)
    gone = cut + sum([len(numbers) for numbers in spool.lost])  # now that all of it was read
    if gone:
        _LOG.error("the spool is damaged, batches cannot be read count=%d agent=%s", gone, agent)
    reasons = [text for text, is_true in ((CRASH, not last.ended), (DAMAGE, gone)) if is_true]
    if not reasons:
        return None
    # Batches before others of their epoch are missed, and named, by the cloud when these arrive.
    at_the_end = gone > 0 and held < last.next_seq
    return Gap(
        "; ".join(reasons),
        last.epoch,
        last.nonce,
        batches=(max(held, last.next_seq - gone), last.next_seq - 1) if at_the_end else None,
        progress=tuple((name, watermark, hold) for name, (watermark, hold) in sorted(last.progress.items())),
        next_seqs=tuple(sorted(last.next_seqs.items())),
        next_event=last.next_event,
    )


def _begin_anew(last: Progressed, header: Header) -> None:
    """An epoch of which nothing was noted. What it wrote first was how the one before it had ended."""
    last.epoch, last.nonce = header.epoch, header.nonce
    last.next_seq, last.next_event, last.ended = header.seq, 0, False
    last.next_seqs.clear()
    last.progress.clear()


def _go_on(last: Progressed, data: bytes, agent: str) -> None:
    """A batch that was written after the last time that its progress was noted."""
    batch = decode_batch(data, agent)
    for record in batch.records():
        if isinstance(record, Progress):
            last.progress[record.stream.name] = [record.watermark, record.hold]
        elif isinstance(record, (SourcePayload, Delivery, Assertion)):
            last.next_seqs[record.stream.name] = record.seq + 1
        elif isinstance(record, Received):
            last.positions[f"{record.sender}/{record.stream}"] = [record.spool, record.next_seq]
        elif isinstance(record, End):
            last.ended = True
        elif isinstance(record, Gap):
            last.pass_over(record)
        elif hasattr(record, "number"):
            last.next_event = record.number + 1
    last.next_seq = batch.header.next_seq

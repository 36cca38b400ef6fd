"""Batches that are given up when the spool is full, and the one that takes their place: it names what they held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_agent.logger import Logger
from edge_agent.spool import Entry, Spool, SpoolFull, SpoolUnwritable
from protocol.records import Assertion, Declared, Delivery, End, Gap, Lost, Progress, Received, SourcePayload, Status
from protocol.structs import replaced
from protocol.wire.batch import Header, decode_batch, encode_batch
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from protocol.wire.sections import pending

_LOG = Logger(__name__)
REASON = "dropped: the spool was full"
_FOLDED = "dropped: the spool was full; no more is known of so many losses of starts in between: "
_MOST_GAPS = 200  # in one batch; what is folded is that of starts of which the cloud has hardly heard


class _Toll:
    """What was lost of one epoch. Numbers of a stream follow one another, so two of them name all in between."""

    def __init__(self, header: Header) -> None:
        self.first, self.end = header.seq, header.next_seq
        self.epoch, self.nonce = header.epoch, header.nonce
        self.tuples: dict[str, tuple[int, int]] = {}
        self.events: tuple[int, int] | None = None

    def add(self, name: str, first: int, last: int) -> None:
        known = self.tuples.get(name, (first, last))
        self.tuples[name] = min(known[0], first), max(known[1], last)

    def add_events(self, first: int, last: int) -> None:
        known = self.events or (first, last)
        self.events = min(known[0], first), max(known[1], last)

    def beyond(self, gap: Gap) -> Gap | None:
        """What a gap of the epoch names besides: some in between may have been lost before. None if that is all."""
        events = None if _is_within(gap.events, self.events) else gap.events
        tuples = tuple(
            [each for each in gap.tuples if not _is_within((each.first, each.last), self.tuples.get(each.name))]
        )
        if (events, tuples) == (gap.events, gap.tuples):
            return gap
        return replaced(gap, events=events, tuples=tuples) if events or tuples else None

    def gap(self) -> Gap:
        lost = tuple(Lost(name, first, last) for name, (first, last) in sorted(self.tuples.items()))
        return Gap(REASON, self.epoch, self.nonce, (self.first, self.end - 1), lost, self.events)


def give_up_oldest(spool: Spool, agent: str, packer: Packer) -> int:
    """Put a batch that names them in the place of the oldest ones, and return how many records they held. SpoolFull if
    there are none.

    What is no batch, though it was read, is left out of account instead: there may be room without it, or else others
    are to be given up. The cloud finds that it is missing, and names it.
    """
    oldest = spool.oldest()
    if not oldest:
        raise SpoolFull(f"the spool of {agent!r} is full")
    try:
        data, count = replacement([entry.data for entry in oldest], agent, packer)
    except MalformedBatch as error:
        bad = [entry for entry in oldest if not _is_batch(entry, agent)]
        if not bad:
            raise SpoolUnwritable(f"the spool of {agent!r} has no name for what it gives up: {error}") from error
        for entry in bad:
            spool.disbelieve(entry)
        return 0
    spool.replace_oldest(data)
    return count


def _is_batch(entry: Entry, agent: str) -> bool:
    try:
        decode_batch(entry.data, agent)
    except MalformedBatch as error:
        _LOG.error("no batch agent=%s entry=%d error=%s", agent, entry.first, error)
        return False
    return True


def replacement(batches: Sequence[bytes], agent: str, packer: Packer) -> tuple[bytes, int]:
    """A batch in the place of these, and how many records they held.

    It speaks for the newest epoch of theirs. It keeps that one's plan and end, which nothing could replace, what they
    said of other losses, and how much was taken from other agents, so that it is not taken again.
    """
    tolls: dict[int, _Toll] = {}
    gaps: list[Gap] = []
    framing: dict[tuple[int, type], Any] = {}
    taken: dict[tuple[str, str], Received] = {}
    count = 0
    for data in batches:
        batch = decode_batch(data, agent)
        header = batch.header
        toll = tolls.setdefault(header.nonce, _Toll(header))
        toll.first, toll.end = min(toll.first, header.seq), max(toll.end, header.next_seq)
        for record in batch.records():
            if isinstance(record, (Declared, End)):
                framing[header.nonce, type(record)] = record
            elif isinstance(record, Gap) and record.reason == REASON:
                _add_gap(tolls, record)
            elif isinstance(record, Gap):
                gaps.append(record)
            elif isinstance(record, Received):
                taken[record.sender, record.stream] = record
            else:
                count += not isinstance(record, (Progress, Status))  # the next ones say all that these said
                _add(toll, record)
    last = tolls[header.nonce]
    plan, end = framing.get((last.nonce, Declared)), framing.get((last.nonce, End))
    told = [tolls[gap.nonce].beyond(gap) if gap.nonce in tolls else gap for gap in gaps]
    gaps = _folded([gap for gap in told if gap is not None] + [toll.gap() for toll in tolls.values()], last)
    rows = [pending(record, packer) for record in (plan, *taken.values(), *gaps, end) if record is not None]
    covers = last.end - last.first
    return encode_batch(Header(last.epoch, last.nonce, last.first, covers), rows, agent), count


def _folded(gaps: list[Gap], last: _Toll) -> list[Gap]:
    """No more than one batch can hold, whose size would grow with every start of an agent that is cut off and dies
    again and again. Those of the first starts stay, of which the cloud may know something, and those of the last."""
    count = sum([int(gap.reason.removeprefix(_FOLDED)) for gap in gaps if gap.reason.startswith(_FOLDED)])
    gaps = [gap for gap in gaps if not gap.reason.startswith(_FOLDED)]
    starts = sorted({(gap.epoch, gap.nonce) for gap in gaps})
    if len(gaps) > _MOST_GAPS:
        kept = {*starts[: _MOST_GAPS // 4], *starts[-_MOST_GAPS // 4 :]}
        count += sum([(gap.epoch, gap.nonce) not in kept for gap in gaps])
        gaps = [gap for gap in gaps if (gap.epoch, gap.nonce) in kept]
    return gaps + ([Gap(f"{_FOLDED}{count}", last.epoch, last.nonce)] if count else [])


def _is_within(numbers: tuple[int, int] | None, others: tuple[int, int] | None) -> bool:
    return numbers is not None and others is not None and others[0] <= numbers[0] and numbers[1] <= others[1]


def _add(toll: _Toll, record: Any) -> None:
    if isinstance(record, (SourcePayload, Delivery, Assertion)):
        toll.add(record.stream.name, record.seq, record.seq)
    elif hasattr(record, "number"):
        toll.add_events(record.number, record.number)


def _add_gap(tolls: dict[int, _Toll], gap: Gap) -> None:
    first, last = gap.batches or (0, -1)
    toll = tolls.setdefault(gap.nonce, _Toll(Header(gap.epoch, gap.nonce, first)))
    toll.first, toll.end = min(toll.first, first), max(toll.end, last + 1)
    for lost in gap.tuples:
        toll.add(lost.name, lost.first, lost.last)
    if gap.events is not None:
        toll.add_events(*gap.events)

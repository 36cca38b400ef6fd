"""MU by itself: what a stage keeps, lets wait and lets go of. The scenarios test what comes of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.chunks import unpack
from protocol.graph import EdgeFlag, SinkFlag
from protocol.records import BEGINNING, END_OF_TIME, Gap, Lost
from protocol.row import Row
from spark_jobs.chunks import Chunk, Kind, joined
from spark_jobs.mu import Mu
from spark_jobs.split import split
from spark_jobs.waiting import Waiting
from tests.spark_jobs.rows import (
    Told,
    delivered,
    end,
    gap,
    plan,
    progress,
    receive,
    register,
    retire,
    send,
    sink,
    source,
    tuple_id,
    window,
)
from tests.support.plain_state import PlainState

READINGS, SENT, ALERTS = 1, 2, 3
EDGE = (source("readings"), window("minutes", "readings", 60), send("minutes", "minutes", "hub"))
HUB = (receive("in", "edge", "minutes"), window("hours", "in", 1_000), sink("alerts", "hours"))
NAMES = [register(READINGS, "edge", "readings"), register(SENT, "edge", "minutes"), register(ALERTS, "hub", "alerts")]
PLANS = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB)]
A, B = tuple_id(READINGS, 0), tuple_id(READINGS, 1)


def alert(seq: int, ts: int, *refers_to: tuple[int, int]) -> Row:
    """A sink tuple that comes from sent tuples (seq, ts)."""
    origins = tuple((tuple_id(SENT, sent), sent_ts, True) for sent, sent_ts in refers_to)
    return delivered("hub", Told(tuple_id(ALERTS, seq), ts, origins))


def minute(seq: int, ts: int, *origins: tuple[int, int], part: int = 0) -> Row:
    of = tuple((origin, origin_ts, False) for origin, origin_ts in origins)
    return delivered("edge", Told(tuple_id(SENT, seq), ts, of, sent=True, part=part))


class Stage:
    """One bucket of the first stage."""

    def __init__(self, levels: int = 1) -> None:
        self.state = PlainState()
        self._mu = Mu(1, levels, 1)

    def __call__(self, *rows: Row) -> list[Chunk]:
        return self._mu.run(self.state, 0, list(split(0, rows, 1)))


def told(chunks: Sequence[Chunk], kind: Kind) -> list[tuple[int, ...]]:
    found = joined(chunks, kind)
    return sorted(zip(*(column.tolist() for column in found), strict=True)) if found else []


def waiting(chunks: Sequence[Chunk]) -> Waiting:
    found = Waiting()
    for chunk in chunks:
        if chunk.kind == Kind.WAITING:
            found.read(chunk.data)
    return found


def figures(chunks: Sequence[Chunk]) -> list[int]:
    """Deliveries kept, references waiting."""
    (found,) = [unpack(chunk.data)[0] for chunk in chunks if chunk.kind == Kind.FIGURES]
    level, deliveries, references, size = found.tolist()
    assert level == 1
    assert (size > 0) == (deliveries + references > 0)
    return [deliveries, references]


def test_a_reference_becomes_edges() -> None:
    out = Stage()(*PLANS, minute(0, 60, (A, 10), (B, 20)), alert(0, 1_000, (0, 60)))
    k = tuple_id(ALERTS, 0)
    assert told(out, Kind.EDGE) == [(k, 1_000, A, 10, 0, 0), (k, 1_000, B, 20, 0, 0)]
    assert told(out, Kind.RESOLVED) == [(k, 1_000, -1, 0)]


@pytest.mark.parametrize("late_by", [1, 5])
def test_a_reference_waits_and_its_sink_with_it(late_by: int) -> None:
    stage = Stage()
    out = stage(*PLANS, alert(0, 1_000, (0, 60)), progress("hub", ALERTS, 5_000))
    for _ in range(late_by):
        assert told(out, Kind.EDGE) == []
        assert waiting(out).hold == {ALERTS: 1_000}
        out = stage(progress("hub", ALERTS, 9_000))
    out = stage(minute(0, 60, (A, 10)))
    assert len(told(out, Kind.EDGE)) == 1
    assert waiting(out).hold == {}


def test_what_a_length_window_brings_back_holds_its_sink_at_the_sent_tuple() -> None:
    out = Stage()(*PLANS, alert(0, 50_000, (0, 60)))
    assert waiting(out).hold == {ALERTS: 60 + 1_000}, "readings before it have ts >= 60 - 60: U of both is 1,060"
    assert waiting(out).oldest == {ALERTS: 50_000}


def test_deliveries_are_kept_until_no_sink_can_refer_to_them() -> None:
    stage = Stage()
    has_taken = register(SENT, "edge", "minutes", by="hub")
    stage(*PLANS, has_taken, minute(0, 60, (A, 10)), minute(1, 120, (B, 70)))
    assert figures(stage(progress("hub", ALERTS, 1_060))) == [2, 0]
    assert figures(stage(progress("hub", ALERTS, 1_061))) == [1, 0]
    assert figures(stage(progress("hub", ALERTS, END_OF_TIME))) == [0, 0]


def test_a_sink_tuple_that_waits_keeps_no_delivery_for_itself() -> None:
    """References are looked up when they come: only those yet to come need what is kept."""
    stage = Stage()
    stage(*PLANS, minute(0, 60, (A, 10)), alert(0, 1_000, (0, 60), (1, 120)))
    assert figures(stage(progress("hub", ALERTS, 5_000))) == [0, 1]


def test_a_reference_to_what_was_let_go_is_late() -> None:
    stage = Stage()
    stage(*PLANS, minute(0, 60, (A, 10)), progress("edge", SENT, 500))
    stage(retire("hub"))
    out = stage(alert(0, 1_000, (0, 60)))
    k, d = tuple_id(ALERTS, 0), tuple_id(SENT, 0)
    assert told(out, Kind.TOO_LATE) == [(k, 1_000, d, 60, 0)]
    assert told(out, Kind.RESOLVED) == [(k, 1_000, -1, 0)]
    assert told(out, Kind.LOST) == []


LOSSES = {
    "a gap that names it": [gap("edge", Gap("spool full", 1, 1, tuples=(Lost("minutes", 0, 3),)))],
    "the stream has passed it": [progress("edge", SENT, 61)],
    "its start has ended": [end("edge")],
    "its start was cut short": [gap("edge", Gap("killed", 1, 1, next_event=0), nonce=2)],
    "a newer start": [plan("edge", *EDGE, nonce=2)],
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("before", [True, False])
def test_what_will_never_come_is_not_waited_for(loss: list[Row], before: bool) -> None:
    stage = Stage()
    stage(*PLANS)
    refer = alert(0, 1_000, (0, 60))
    first, second = ([refer], loss) if before else (loss, [refer])
    assert figures(stage(*first)) == [0, int(before)]
    out = stage(*second)
    k = tuple_id(ALERTS, 0)
    assert told(out, Kind.LOST) == [(k, tuple_id(SENT, 0))]
    assert told(out, Kind.RESOLVED) == [(k, 1_000, -1, SinkFlag.INCOMPLETE)]
    assert figures(out) == [0, 0]


def test_what_is_not_lost_goes_on_waiting() -> None:
    stage = Stage()
    stage(*PLANS, alert(0, 1_000, (7, 60)))
    out = stage(gap("edge", Gap("spool full", 1, 1, tuples=(Lost("minutes", 0, 6), Lost("minutes", 8, 9)))))
    assert figures(out) == [0, 1]
    assert figures(stage(progress("edge", SENT, 60))) == [0, 1]


def test_an_agent_that_was_given_up_holds_nobody_back_but_may_return() -> None:
    stage = Stage()
    stage(*PLANS, alert(0, 1_000, (0, 60)))
    out = stage(retire("edge"))
    assert waiting(out).hold == {ALERTS: END_OF_TIME}
    assert waiting(out).oldest == {ALERTS: 1_000}
    assert len(told(stage(minute(0, 60, (A, 10)), progress("edge", SENT, 70)), Kind.EDGE)) == 1


# Parts


def test_a_delivery_in_parts_is_used_when_it_is_whole() -> None:
    stage = Stage()
    assert told(stage(*PLANS, minute(0, 60, (A, 10), part=0x001), alert(0, 1_000, (0, 60))), Kind.EDGE) == []
    out = stage(minute(0, 60, (B, 20), part=0x101))
    assert [edge[2] for edge in told(out, Kind.EDGE)] == [A, B]
    assert told(out, Kind.RESOLVED) == [(tuple_id(ALERTS, 0), 1_000, -1, 0)]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_of_a_delivery_of_which_a_part_is_lost_the_others_count(lost: int) -> None:
    stage = Stage()
    parts = [minute(0, 60, (tuple_id(READINGS, seq), 10), part=seq << 8 | 2) for seq in range(3) if seq != lost]
    out = stage(*PLANS, *parts, alert(0, 1_000, (0, 60)))
    assert told(out, Kind.EDGE) == []
    out = stage(progress("edge", SENT, 61))
    assert [edge[2] for edge in told(out, Kind.EDGE)] == [tuple_id(READINGS, seq) for seq in range(3) if seq != lost]
    assert told(out, Kind.LOST) == [(tuple_id(ALERTS, 0), tuple_id(SENT, 0))]
    assert told(out, Kind.RESOLVED) == [(tuple_id(ALERTS, 0), 1_000, -1, SinkFlag.INCOMPLETE)]


# Levels


def test_the_last_stage_ends_chains_that_are_too_deep() -> None:
    far = tuple_id(9, 4)
    rows = [register(9, "far", "x"), plan("far", source("s"), send("x", "s", "edge"))]
    sent = delivered("edge", Told(tuple_id(SENT, 0), 60, ((far, 30, True), (A, 10, False)), sent=True))
    k = tuple_id(ALERTS, 0)
    out = Stage()(*PLANS, *rows, sent, alert(0, 1_000, (0, 60)))
    assert told(out, Kind.EDGE) == [(k, 1_000, A, 10, 0, 0), (k, 1_000, far, 30, 0, EdgeFlag.TOO_DEEP)]
    assert told(out, Kind.RESOLVED) == [(k, 1_000, -1, 0)]
    out = Stage(levels=2)(*PLANS, *rows, sent, alert(0, 1_000, (0, 60)))
    assert told(out, Kind.EDGE) == [(k, 1_000, A, 10, 0, 0)]
    assert told(out, Kind.REFERENCE)[-1] == (k, 1_000, far, 30, 0, BEGINNING)
    assert told(out, Kind.RESOLVED) == [], "one reference instead of another"


def test_every_stage_but_the_last_passes_on_what_was_sent() -> None:
    for levels, passed_on in ((2, 1), (1, 0)):
        out = Stage(levels=levels)(*PLANS, minute(0, 60, (A, 10)))
        assert figures(out) == [1, 0]
        assert len(told(out, Kind.SENT)) == passed_on


def test_every_bucket_must_have_told_what_waits() -> None:
    with pytest.raises(RuntimeError, match="0 of 3 buckets"):
        Mu(2, 2, 3).run(PlainState(), 0, list(split(0, PLANS, 1)))

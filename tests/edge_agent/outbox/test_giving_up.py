from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.outbox.giving_up import REASON, replacement
from protocol.ids import StreamId
from protocol.records import Assertion, Declared, Delivery, End, Gap, Lost, Progress, Received, SourcePayload, Status
from protocol.wire.batch import Batch, Header, decode_batch, encode_batch
from protocol.wire.sections import Kind, pending
from tests.edge_agent.records import AGENT, PACKER, begun

CRASH = Gap("crash: ...", 1, 1, next_event=3)


def stream(nonce: int, name: str = "reports") -> StreamId:
    return StreamId(AGENT, nonce, name, nonce)


def batch(seq: int, *records: Any, nonce: int = 1, first_event: int = 0) -> bytes:
    rows = [each if isinstance(each, tuple) and each[0] is Kind.EVENT else pending(each, PACKER) for each in records]
    return encode_batch(Header(nonce, nonce, seq), rows, AGENT, first_event=first_event)


def replaced(*batches: bytes) -> tuple[Batch, list[Any], int]:
    data, count = replacement(batches, AGENT, PACKER)
    made = decode_batch(data, AGENT)
    return made, list(made.records()), count


def test_what_the_batches_held_is_named_exactly() -> None:
    made, records, count = replaced(
        batch(4, begun(0), begun(1), SourcePayload(stream(1), 10, 0, "x"), first_event=20),
        batch(5, Delivery(stream(1, "alerts"), 3, 0, "x", ()), SourcePayload(stream(1), 11, 0, "x")),
        batch(6, begun(2), Assertion(stream(1, "keys"), 8, 0, 0), first_event=22),
    )
    assert (made.header.epoch, made.header.nonce, made.header.seq, made.header.next_seq) == (1, 1, 4, 7)
    lost = (Lost("alerts", 3, 3), Lost("keys", 8, 8), Lost("reports", 10, 11))
    assert records == [Gap(REASON, 1, 1, (4, 6), lost, (20, 22))]
    assert count == 7


def test_what_the_next_one_says_again_is_not_counted() -> None:
    status = Status(0, 0, 0, 0, 0, 0, {}, {})
    _, _, count = replaced(batch(0, begun(0), Progress(stream(1), 5, 5), status), batch(1, Progress(stream(1), 9, 9)))
    assert count == 1


def test_plan_end_and_older_losses_are_kept() -> None:
    overflow = Gap("dropped: the disk could not keep up", 1, 1, events=(5, 6))
    _, records, count = replaced(batch(0, Declared("{}"), CRASH, begun(0)), batch(1, overflow), batch(2, End(9)))
    assert records == [Declared("{}"), CRASH, overflow, Gap(REASON, 1, 1, (0, 2), (), (0, 0)), End(9)]
    assert count == 1


def test_how_much_was_taken_from_others_is_kept() -> None:
    """Of each stream as far as the last one says; and it survives to be given up again."""
    taken = [
        Received("car-8", "sums", 77, 1, 5),
        Received("car-8", "sums", 77, 2, 5),
        Received("car-9", "sums", 3, 1, 6),
    ]
    data, _ = replacement([batch(0, begun(0), taken[0]), batch(1, taken[1], taken[2])], AGENT, PACKER)
    _, records, _ = replaced(data, batch(2, begun(1)))
    kept = [each for each in records if isinstance(each, Received)]
    assert sorted(kept, key=lambda each: each.sender) == taken[1:]


def test_what_was_lost_in_between_before_is_named_once() -> None:
    overflow = Gap("dropped: the disk could not keep up", 1, 1, tuples=(Lost("reports", 4, 6), Lost("alerts", 0, 2)))
    of_events = Gap("dropped: the disk could not keep up", 1, 1, events=(21, 80))
    _, records, _ = replaced(
        batch(0, begun(0), SourcePayload(stream(1), 3, 0, "x"), CRASH, first_event=20),
        batch(1, overflow, of_events, SourcePayload(stream(1), 7, 0, "x")),
        batch(2, begun(81), first_event=81),
    )
    left = Gap("dropped: the disk could not keep up", 1, 1, tuples=(Lost("alerts", 0, 2),))
    assert records == [CRASH, left, Gap(REASON, 1, 1, (0, 2), (Lost("reports", 3, 7),), (20, 81))]


def test_it_speaks_for_the_newest_epoch_and_tells_of_the_others() -> None:
    made, records, _ = replaced(
        batch(7, Declared("old"), begun(0), End(1), nonce=1, first_event=30),
        batch(0, Declared("new"), begun(0), nonce=2),
        batch(1, begun(1), nonce=2, first_event=1),
    )
    assert (made.header.nonce, made.header.seq, made.header.next_seq) == (2, 0, 2)
    assert records == [Declared("new"), Gap(REASON, 1, 1, (7, 7), (), (30, 30)), Gap(REASON, 2, 2, (0, 1), (), (0, 1))]


def test_a_replacement_that_is_replaced_loses_nothing_of_what_it_told() -> None:
    first, _ = replacement([batch(7, begun(0), nonce=1, first_event=30), batch(0, begun(0), nonce=2)], AGENT, PACKER)
    made, records, count = replaced(first, batch(1, begun(1), nonce=2, first_event=1))
    assert (made.header.nonce, made.header.seq, made.header.next_seq) == (2, 0, 2)
    gaps = {each.nonce: each for each in records}
    assert gaps == {1: Gap(REASON, 1, 1, (7, 7), (), (30, 30)), 2: Gap(REASON, 2, 2, (0, 1), (), (0, 1))}
    assert count == 1, "what was given up before was counted before"


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=12), st.data())
def test_in_whatever_steps_it_is_given_up_the_same_is_named(steps: list[tuple[int, bool]], data: st.DataObject) -> None:
    """Several epochs, in several steps or at once."""
    nonce, seq, event, batches = 1, 0, 0, []
    for events, restarts in steps:
        if restarts:
            nonce, seq, event = nonce + 1, 0, 0
        rows = [begun(event + each) for each in range(events)]
        batches.append(batch(seq, *rows, SourcePayload(stream(nonce), seq, 0, 0), nonce=nonce, first_event=event))
        seq, event = seq + 1, event + events
    at_once, records, _ = replaced(*batches)
    cut = data.draw(st.integers(1, len(batches) - 1))
    first, _ = replacement(batches[:cut], AGENT, PACKER)
    in_steps, records_in_steps, _ = replaced(first, *batches[cut:])
    assert in_steps.header.next_seq == at_once.header.next_seq
    assert (in_steps.header.nonce, in_steps.header.seq) == (at_once.header.nonce, at_once.header.seq)
    assert sorted(records, key=lambda gap: gap.nonce) == sorted(records_in_steps, key=lambda gap: gap.nonce)


def test_an_agent_that_is_cut_off_and_dies_again_and_again_makes_no_batch_that_nobody_reads() -> None:
    crashes = [Gap("crash: ...", nonce - 1, nonce - 1, next_event=3) for nonce in range(1, 3_001)]
    starts = [batch(0, crash, begun(0), nonce=nonce) for nonce, crash in enumerate(crashes, 1)]
    data, _ = replacement(starts[:1], AGENT, PACKER)
    for first in range(1, 3_000, 200):
        data, _ = replacement([data, *starts[first : first + 200]], AGENT, PACKER)
    records = list(decode_batch(data, AGENT).records())
    assert len(data) < 8_000
    gaps = [each for each in records if each.reason in (REASON, "crash: ...")]
    assert {each.nonce for each in gaps} >= {1, 2, 3, 2_998, 2_999, 3_000}, "of those the cloud may have heard"
    (folded,) = [each for each in records if each not in gaps]
    assert folded.reason.endswith(f": {6_000 - len(gaps)}")

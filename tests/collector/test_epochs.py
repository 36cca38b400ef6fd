from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.epochs import (
    MOST_EARLY_BYTES,
    MOST_EPOCHS,
    MOST_OTHER_STREAMS,
    MOST_OWN_STREAMS,
    NEVER_CAME,
    AgentEpochs,
    Arrival,
    EpochState,
    Tally,
)
from collector.log import Row
from protocol.records import Gap, Lost
from protocol.structs import replaced
from protocol.wire.answers import MOST_EARLY
from protocol.wire.batch import Header
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind, encode_section, pending

PACKER = Packer()
AGENT = "pump-7"


def arrival(seq: int, nonce: int = 1, *, oldest: bool = False, covers: int = 1, size: int = 10) -> Arrival:
    return Arrival(AGENT, oldest, Header(nonce, nonce, seq, covers), bytes(size))


def row(kind: Kind, seq: int, data: bytes = b"", nonce: int = 1) -> Row:
    return Row(kind, AGENT, nonce, seq, data)


def gap_row(seq: int, gap: Gap, nonce: int = 1) -> Row:
    return row(Kind.GAP, seq, bytes(encode_section(Kind.GAP, [pending(gap, PACKER)], AGENT, nonce, 0)), nonce)


class Bench:
    """Epochs whose arrivals are logged at once, one row each."""

    def __init__(self, tally: Tally | None = None) -> None:
        self.tally = tally or Tally()
        self.epochs = AgentEpochs(AGENT, self.tally)
        self.log: list[tuple[int, int]] = []
        self.gaps: list[Gap] = []

    def arrive(self, *arrivals: Arrival) -> list[tuple[int, int]]:
        """Nonces and seqs of what was logged because of these."""
        before = len(self.log)
        for each in arrivals:
            for ready, gap in self.epochs.arrived(each):
                header = ready.header
                state = self.epochs.find(header.nonce) or EpochState(AGENT, header.epoch, header.nonce)
                if gap is not None:
                    self.gaps.append(gap)
                self.epochs.follow(state, row(Kind.STATUS, header.next_seq - 1, nonce=header.nonce))
                self.log.append((header.nonce, header.seq))
        return self.log[before:]

    def early(self, nonce: int = 1) -> tuple[int, int]:
        answer = self.epochs.answer(nonce, 0, False)
        return answer.next_seq, answer.early


def test_batches_are_logged_in_order_and_early_ones_wait() -> None:
    bench = Bench()
    assert bench.arrive(arrival(2), arrival(1)) == []
    assert bench.early() == (0, 0b11)
    assert bench.arrive(arrival(0, oldest=True)) == [(1, 0), (1, 1), (1, 2)]
    assert bench.early() == (3, 0)


def test_the_first_batch_of_an_epoch_waits_until_it_is_the_oldest() -> None:
    bench = Bench()
    bench.arrive(arrival(0, oldest=True))
    assert bench.arrive(arrival(0, nonce=2), arrival(1, nonce=2)) == []
    assert bench.arrive(arrival(1)) == [(1, 1)]
    assert bench.arrive(arrival(0, nonce=2, oldest=True)) == [(2, 0), (2, 1)]


def test_copies_are_counted_and_dropped() -> None:
    bench = Bench()
    bench.arrive(arrival(0, oldest=True), arrival(0, oldest=True), arrival(0))
    bench.arrive(arrival(5), arrival(5))
    assert bench.tally.duplicates == 3
    assert bench.log == [(1, 0)]


def test_what_the_oldest_batch_does_not_follow_will_never_come() -> None:
    bench = Bench()
    bench.arrive(arrival(0, oldest=True))
    assert bench.arrive(arrival(4, oldest=True)) == [(1, 4)]
    assert bench.gaps == [Gap(NEVER_CAME, 1, 1, (1, 3))]
    assert bench.arrive(arrival(7, nonce=2, oldest=True)) == [(2, 7)]
    assert bench.gaps[1:] == [Gap(NEVER_CAME, 2, 2, (0, 6))]


def test_a_batch_for_several_may_overlap_what_is_there() -> None:
    bench = Bench()
    bench.arrive(arrival(0, oldest=True), arrival(1))
    assert bench.arrive(arrival(0, covers=5)) == [(1, 0)]
    assert bench.early() == (5, 0)
    assert bench.arrive(arrival(0, covers=5), arrival(3, covers=2)) == []


def test_a_batch_that_was_not_logged_is_not_passed_over() -> None:
    """The caller could not log it: everything stays as it was, and what waits goes on waiting."""
    bench = Bench()
    bench.arrive(arrival(1))
    ready = bench.epochs.arrived(arrival(0, oldest=True))
    assert next(ready)[0].header.seq == 0
    assert list(ready) == []
    assert bench.arrive(arrival(0, oldest=True)) == [(1, 0), (1, 1)]


def test_what_waits_is_bounded_by_count_and_by_bytes() -> None:
    bench = Bench()
    bench.arrive(*[arrival(seq) for seq in range(1, MOST_EARLY + 10)])
    assert bench.early() == (0, (1 << MOST_EARLY) - 1)
    assert bench.tally.early_dropped == 9
    bench = Bench()
    bench.arrive(*[arrival(seq, size=MOST_EARLY_BYTES // 4) for seq in range(1, 9)])
    assert (bench.early(), bench.tally.early_dropped) == ((0, 0b1111), 4)


def test_what_waits_of_all_agents_together_is_bounded() -> None:
    tally = Tally(early_left_bytes=100)
    benches = [Bench(tally) for _ in range(4)]
    for bench in benches:
        bench.arrive(arrival(1, size=40))
    assert tally.early_dropped == 2
    benches[0].arrive(arrival(0, oldest=True))
    assert tally.early_left_bytes == 60, "room is given back"
    benches[3].arrive(arrival(1, size=40))
    assert tally.early_dropped == 2
    for bench in benches:
        bench.epochs.forget_early()
    assert tally.early_left_bytes == 100


def test_what_waits_of_an_epoch_that_is_over_is_forgotten() -> None:
    bench = Bench()
    bench.arrive(arrival(0, oldest=True), arrival(5))
    bench.arrive(arrival(3, nonce=3))
    bench.arrive(arrival(0, nonce=2, oldest=True))
    assert bench.early() == (1, 0)
    assert bench.early(3) == (0, 0b100), "that one may be yet to come"


def test_only_the_last_epochs_are_kept() -> None:
    bench = Bench()
    for nonce in range(1, 10):
        bench.arrive(arrival(0, nonce=nonce, oldest=True))
    assert list(bench.epochs.known) == [8, 9]
    assert len(bench.epochs.known) == MOST_EPOCHS
    assert sorted(bench.epochs.closing) == list(range(1, 8))
    current = bench.epochs.current
    assert current is not None
    assert current.nonce == 9


def test_a_copy_of_a_batch_that_was_given_up_is_no_news() -> None:
    """Batches 1 to 3 of epoch 1, and all of epoch 2, were given up; epoch 3 says so."""
    bench = Bench()
    bench.arrive(arrival(0, oldest=True), arrival(0, nonce=3, oldest=True))
    state = bench.epochs.known[3]
    bench.epochs.follow(state, gap_row(0, Gap("dropped", 1, 1, (1, 3)), nonce=3))
    bench.epochs.follow(state, gap_row(0, Gap("dropped", 2, 2, (0, 4)), nonce=3))
    assert bench.arrive(arrival(1), arrival(3), arrival(0, nonce=2, oldest=True), arrival(4, nonce=2)) == []
    assert bench.tally.duplicates == 4


# What is known of an epoch


def follow(state: EpochState, *rows: Row) -> EpochState:
    for each in rows:
        state.follow(each)
    return state


def register(seq: int, number: int, name: str, agent: str = AGENT, nonce: int = 1) -> Row:
    return row(Kind.REGISTER, seq, PACKER.encode([number, agent, 1, name, nonce]))


def test_streams_that_were_registered_have_numbers() -> None:
    from protocol.ids import StreamId

    state = follow(EpochState(AGENT, 1, 1), register(0, 9, "alerts"), register(0, 10, "alerts", "other", 5))
    assert state.number_of(StreamId(AGENT, 1, "alerts", 1)) == 9
    assert state.number_of(StreamId("other", 77, "alerts", 5)) == 10
    assert state.number_of(StreamId("other", 77, "alerts", 6)) is None
    assert state.number_of(StreamId(AGENT, 1, "alerts", 2)) is None


def test_streams_of_others_are_forgotten_at_last_but_not_within_a_batch() -> None:
    state = EpochState(AGENT, 1, 1)
    for number in range(MOST_OTHER_STREAMS + 50):
        state.follow(register(0, number, f"s-{number}", "other", 5))
    assert len(state.other_streams) == MOST_OTHER_STREAMS + 50
    state.follow(row(Kind.STATUS, 1))
    assert len(state.other_streams) == MOST_OTHER_STREAMS
    assert ("other", 5, "s-49") not in state.other_streams
    assert ("other", 5, "s-50") in state.other_streams


def test_names_in_gaps_are_bounded() -> None:
    state = EpochState(AGENT, 1, 1)
    state.missed(Gap("x", 1, 1, tuples=tuple(Lost(f"s-{each}", 0, 1) for each in range(MOST_OWN_STREAMS + 50))))
    assert len(state.next_seqs) == MOST_OWN_STREAMS


def test_an_agent_that_returns_is_not_retired_any_more() -> None:
    state = follow(EpochState(AGENT, 1, 1), row(Kind.STATUS, 0), row(Kind.RETIRE, 1))
    assert (state.retired, state.next_seq) == (True, 1)
    assert not follow(state, row(Kind.STATUS, 1)).retired


def test_a_state_survives_a_snapshot() -> None:
    state = follow(
        EpochState(AGENT, 4, 2**64 - 1, 7, 8, {"a": 1}),
        register(7, 3, "mine", nonce=2**64 - 1),
        register(7, 4, "theirs", "other", 2**63),
        row(Kind.PLAN, 7, b"a plan"),
        row(Kind.END, 8),
    )
    assert state.plan
    assert state.ended
    assert EpochState.from_told(state.told()) == state


# Gaps


@pytest.mark.parametrize(
    ("gap", "left"),
    [
        (Gap("x", 1, 1, (2, 9)), Gap("x", 1, 1, (5, 9))),
        (Gap("x", 1, 1, (2, 4)), None),
        (Gap("x", 1, 1, (2, 4), events=(0, 50)), None),
        (Gap("x", 1, 1, (5, 6), events=(0, 9)), Gap("x", 1, 1, (5, 6))),
        (Gap("x", 1, 1, None, (Lost("a", 0, 9),), (0, 20)), Gap("x", 1, 1, None, (Lost("a", 3, 9),), (10, 20))),
        (Gap("x", 1, 1, None, (Lost("a", 0, 2), Lost("b", 0, 0)), (0, 9)), Gap("x", 1, 1, None, (Lost("b", 0, 0),))),
        (Gap("x", 1, 1, None, (Lost("a", 0, 2),), (0, 9)), None),
        (Gap("x", 1, 1), Gap("x", 1, 1)),
    ],
)
def test_a_gap_is_trimmed_to_what_is_missing(gap: Gap, left: Gap | None) -> None:
    assert EpochState(AGENT, 1, 1, 5, 10, {"a": 3}).trimmed(gap) == left


def test_a_crash_cannot_have_come_before_what_is_in_the_log() -> None:
    """The agent had forgotten more than it had sent."""
    state = EpochState(AGENT, 1, 1, 5, 10, {"a": 3, "c": 1})
    crash = Gap("crash", 1, 1, next_seqs=(("a", 1), ("b", 2)), next_event=4)
    assert state.trimmed(crash) == Gap("crash", 1, 1, next_seqs=(("a", 3), ("b", 2), ("c", 1)), next_event=10)
    lost = replaced(crash, batches=(2, 4))
    assert state.trimmed(lost) == state.trimmed(crash), "also if all that its disk has lost had been sent before"
    ahead = Gap("crash", 1, 1, next_seqs=(("a", 9), ("c", 1)), next_event=40)
    assert state.trimmed(ahead) == ahead


def test_a_start_whose_end_is_in_the_log_was_not_cut_short() -> None:
    """The disk has lost the batch that told it, and it had been sent before."""
    state = follow(EpochState(AGENT, 1, 1, 4), row(Kind.END, 4))
    assert state.trimmed(Gap("crash", 1, 1, (4, 4), next_event=0)) is None


# Any order of arrivals


@given(st.data())
def test_in_whatever_order_they_come_batches_are_logged_in_theirs(data: st.DataObject) -> None:
    """Batches of three epochs, copied and shuffled; then all of them again, each as the oldest in its turn."""
    batches = [(nonce, seq) for nonce in (1, 2, 3) for seq in range(data.draw(st.integers(1, 5)))]
    bench, done = Bench(), 0
    shuffled: list[Any] = data.draw(st.lists(st.sampled_from(batches), max_size=30))
    for nonce, seq in shuffled:
        oldest = batches[done] == (nonce, seq)
        bench.arrive(arrival(seq, nonce, oldest=oldest))
        while done < len(batches) - 1 and batches[done] in bench.log:
            done += 1
    for nonce, seq in batches:
        bench.arrive(arrival(seq, nonce, oldest=True))
    assert bench.log == batches
    assert bench.gaps == []

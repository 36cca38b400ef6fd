from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.exchange.crossing_lane import CrossingLane
from edge_agent.exchange.receiving import NOTHING_TAKEN
from edge_agent.spool import Spool
from protocol.ids import StreamId
from protocol.wire.answers import Taken
from protocol.wire.batch import unframe
from protocol.wire.crossing import whose_crossing
from protocol.wire.errors import MalformedBatch

AGENT = "pump-7"

STREAM = StreamId(AGENT, 1, "sums", 1)


class Bench:
    """A lane to two agents, with four crossings of which three may be in flight."""

    def __init__(self, spool: Spool) -> None:
        self.sent: list[bytes] = []
        self.lane = CrossingLane(STREAM, spool, 9, ["b", "c"], lambda data, number: self.sent.append(data), 3)
        self.lane.is_open = True

    def take(self) -> list[tuple[bool, bytes]]:
        """What was published since the last time, and whether it was said to be the oldest."""
        taken, self.sent = self.sent, []
        return [unframe(data, whose_crossing(AGENT, STREAM.name)) for data in taken]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Spool.open(tmp_path / "send") as spool:
        for number in range(4):
            spool.append(b"%d" % number)
        spool.sync()
        yield Bench(spool)


def test_nothing_leaves_that_a_power_cut_could_take_back(tmp_path: Path) -> None:
    """Its number would be given again, and what then has it would be taken for a copy."""
    with Spool.open(tmp_path / "send") as spool:
        bench = Bench(spool)
        spool.append(b"0")
        bench.lane.step(1.0)
        assert bench.take() == []
        spool.sync()
        bench.lane.step(2.0)
        assert bench.take() == [(True, b"0")]
    with Spool.open(tmp_path / "send") as spool:
        bench = Bench(spool)
        bench.lane.step(1.0)
        assert bench.take() == [], "nobody knows what the last process had synced"


def test_nothing_leaves_before_the_cloud_knows_this_start(bench: Bench) -> None:
    """Others would name a start that may be gone, with its card, before it has said anything itself."""
    bench.lane.is_open = False
    bench.lane.step(1.0)
    assert bench.take() == []
    bench.lane.is_open = True
    bench.lane.step(2.0)
    assert len(bench.take()) == 3


def test_on_another_topic_it_is_no_batch_and_no_crossing_of_another_stream(bench: Bench) -> None:
    """A bit of the topic id was flipped on its way to the gateway."""
    bench.lane.step(1.0)
    for whose in (AGENT, whose_crossing(AGENT, "other"), whose_crossing("other", STREAM.name)):
        with pytest.raises(MalformedBatch, match="checksum"):
            unframe(bench.sent[0], whose)


def test_the_slowest_receiver_decides(bench: Bench) -> None:
    lane = bench.lane
    lane.step(1.0)
    assert bench.take() == [(True, b"0"), (False, b"1"), (False, b"2")]
    lane.taken(Taken("b", "s", 9, 3), 2.0)
    assert lane.unacknowledged == 4
    lane.taken(Taken("c", "s", 9, 2), 2.0)
    assert lane.unacknowledged == 2
    lane.step(3.0)
    assert bench.take()[-1] == (False, b"3")


@pytest.mark.parametrize("answer", [Taken("d", "s", 9, 4), Taken("b", "s", 8, 4), Taken("b", "s", 9, 5)])
def test_answers_of_others_and_to_others_are_ignored(bench: Bench, answer: Taken) -> None:
    bench.lane.taken(Taken("c", "s", 9, 4), 1.0)
    bench.lane.taken(answer, 1.0)
    assert bench.lane.unacknowledged == 4


def sent_and_over(bench: Bench) -> float:
    """Three are with the receivers, as far as the transport is concerned, since then."""
    bench.lane.step(1.0)
    for number in range(3):
        bench.lane.over(number, 1.0)
    bench.take()
    return 1.0


def test_what_a_receiver_misses_is_sent_again(bench: Bench) -> None:
    sent_and_over(bench)
    bench.lane.taken(Taken("b", "s", 9, 1), 2.0)
    bench.lane.step(2.0)
    assert [data for _, data in bench.take()] == [b"1"]


def test_a_receiver_that_has_just_begun_is_sent_all_that_is_in_flight(bench: Bench) -> None:
    over_at = sent_and_over(bench)
    bench.lane.taken(Taken("b", "s", NOTHING_TAKEN, 0), over_at)
    bench.lane.step(over_at)
    assert [data for _, data in bench.take()] == [b"0", b"1", b"2"]


def test_what_a_receiver_says_it_misses_is_sent_again_soon_if_it_does_not_arrive(bench: Bench) -> None:
    over_at = sent_and_over(bench)
    bench.lane.taken(Taken("b", "s", 9, 1), over_at + 0.01)
    bench.lane.step(over_at + 0.01)
    assert bench.take() == [], "it may be under way"
    bench.lane.step(over_at + 0.2)
    assert [data for _, data in bench.take()] == [b"1"]


def test_a_receiver_that_is_silent_is_left_alone_for_a_while(bench: Bench) -> None:
    sent_and_over(bench)
    bench.lane.step(5.0)
    assert bench.take() == []
    bench.lane.step(60.0)
    assert [data for _, data in bench.take()] == [b"0", b"1", b"2"]

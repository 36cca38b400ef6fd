from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from edge_agent.lanes import Lane, Uplink
from edge_agent.spool import Spool
from edge_agent.transport import TransportError
from protocol.records import End, Gap
from protocol.wire.answers import Logged
from protocol.wire.batch import Header, encode_batch, read_header, unframe
from protocol.wire.compression import READABLE, Codec
from protocol.wire.packer import Packer
from protocol.wire.sections import pending

AGENT = "pump-7"
ALL = sum(1 << codec for codec in Codec)


def batch(seq: int, nonce: int = 1, covers: int = 1) -> bytes:
    return encode_batch(Header(nonce, nonce, seq, covers), [pending(End(seq), Packer())], AGENT)


class Wire:
    """What was published, and whether there is room for more."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.is_full = False

    def publish(self, data: bytes, number: int) -> None:
        if self.is_full:
            raise TransportError("full")
        self.sent.append((number, data))

    def take(self) -> list[tuple[int, int, bool]]:
        """Nonce, seq, and whether it was said to be the oldest."""
        taken, self.sent = self.sent, []
        found = []
        for _, data in taken:
            oldest, framed = unframe(data, AGENT)
            header, _ = read_header(framed)
            found.append((header.nonce, header.seq, oldest))
        return found


class Bench:
    def __init__(self, folder: Path, window: int = 4) -> None:
        self.wire = Wire()
        self.spool = Spool.open(folder)
        self.uplink = Uplink(AGENT, self.spool, self.wire.publish, window, Random(1))
        self.now = 50.0

    def send(self, *batches: bytes) -> list[tuple[int, int, bool]]:
        for each in batches:
            self.spool.append(each)
        self.uplink.step(self.now)
        return self.wire.take()

    def over(self) -> None:
        """The transport has done its part for all that was sent."""
        for number in list(self.uplink.sending.flights):
            self.uplink.over(number, self.now)
        self.now += 0.5

    def logged(self, next_seq: int, nonce: int = 1, **more: int | bool) -> list[tuple[int, int, bool]]:
        self.uplink.logged(Logged(nonce, next_seq, **more), self.now)  # type: ignore[arg-type]
        self.uplink.step(self.now)
        return self.wire.take()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "up")
    yield made
    made.spool.close()


def test_batches_are_sent_in_order_within_the_window(bench: Bench) -> None:
    assert bench.send(*map(batch, range(6))) == [(1, 0, True), (1, 1, False), (1, 2, False), (1, 3, False)]
    assert bench.uplink.unacknowledged == 6
    assert bench.logged(2) == [(1, 4, False), (1, 5, False)]
    assert (bench.uplink.unacknowledged, bench.spool.first) == (4, 2)


def test_what_is_not_acknowledged_in_time_is_sent_again_as_the_oldest_if_it_is(bench: Bench) -> None:
    bench.send(*map(batch, range(3)))
    bench.over()
    bench.logged(1)
    assert bench.wire.take() == []
    bench.now += 60.0
    bench.uplink.step(bench.now)
    assert bench.wire.take() == [(1, 1, True), (1, 2, False)]
    assert bench.uplink.sending.resent == 2


def test_acknowledgements_are_cumulative_and_old_ones_do_no_harm(bench: Bench) -> None:
    bench.send(*map(batch, range(4)))
    bench.logged(3)
    bench.logged(1)
    assert bench.spool.first == 3
    bench.logged(0, nonce=99)
    bench.logged(7)
    assert bench.spool.count == 0
    assert bench.uplink.step(bench.now) == float("inf")


def test_batches_that_wait_at_the_far_end_are_not_sent_again(bench: Bench) -> None:
    """Batch 1 was lost; 2 and 3 have come too soon."""
    bench.send(*map(batch, range(4)))
    bench.over()
    assert bench.logged(1) == [], "nothing after it was seen yet: it may be under way"
    assert bench.logged(1, early=0b11) == [(1, 1, True)]


def test_batches_that_the_far_end_has_not_seen_are_sent_again(bench: Bench) -> None:
    """It has restarted, and tells of itself."""
    bench.send(*map(batch, range(4)))
    bench.over()
    bench.logged(1)
    bench.now += 0.6
    assert bench.logged(1) == [(1, 1, True), (1, 2, False), (1, 3, False)]


def test_an_answer_that_took_its_time_has_nothing_sent_again(bench: Bench) -> None:
    """The far end answers for one batch after the other, and its answers come late."""
    bench.send(*map(batch, range(4)))
    bench.over()
    for count in range(1, 5):
        assert bench.logged(count) == []
    assert bench.uplink.sending.resent == 0


def test_the_first_batch_of_an_epoch_is_sent_again_when_the_one_before_is_complete(bench: Bench) -> None:
    """It was not the oldest when it was sent, so the far end lets it wait."""
    sent = bench.send(batch(4), batch(5), batch(0, nonce=2), batch(1, nonce=2))
    assert [oldest for _, _, oldest in sent] == [True, False, False, False]
    assert bench.logged(6) == [(2, 0, True)]
    assert bench.logged(2, nonce=2) == []
    assert bench.spool.count == 0


def test_after_a_restart_what_is_in_the_log_already_is_not_sent(bench: Bench) -> None:
    for seq in range(5):
        bench.spool.append(batch(seq))
    bench.uplink.logged(Logged(1, 3), bench.now)
    assert bench.send() == [(1, 3, True), (1, 4, False)]


def test_an_answer_to_another_epoch_releases_nothing_of_this_one(bench: Bench) -> None:
    for seq in range(3):
        bench.spool.append(batch(seq))
    bench.uplink.logged(Logged(2, 3), bench.now)
    assert bench.spool.count == 3


def test_a_replacement_is_sent_in_place_of_what_was_in_flight(bench: Bench) -> None:
    bench.send(*map(batch, range(4)))
    gap = pending(Gap("dropped", 1, 1, (0, 3)), Packer())
    bench.spool.replace_oldest(encode_batch(Header(1, 1, 0, 4), [gap], AGENT))
    bench.uplink.given_up()
    assert bench.send() == [(1, 0, True)]
    assert bench.logged(2) == [], "the log had a part of it; the rest of the news is still missing"
    bench.over()
    bench.now += 0.1
    assert bench.logged(2) == [(1, 0, True)]
    bench.logged(4)
    assert bench.spool.count == 0


def test_a_lane_pauses_while_the_transport_holds_all_it_can(bench: Bench) -> None:
    bench.wire.is_full = True
    bench.spool.append(batch(0))
    until = bench.uplink.step(bench.now)
    assert until == pytest.approx(bench.now + 0.2)
    bench.wire.is_full = False
    bench.uplink.step(bench.now + 0.1)
    assert bench.wire.take() == []
    bench.uplink.step(bench.now + 0.2)
    assert bench.wire.take() == [(1, 0, True)]


def test_batches_are_recoded_for_a_reader_who_reads_less(bench: Bench) -> None:
    assert bench.send(batch(0)) == [(1, 0, True)]
    bench.over()
    bench.now += 0.1
    bench.uplink.logged(Logged(1, 0, codecs=1 << Codec.NONE | 1 << Codec.ZLIB), bench.now)
    bench.uplink.step(bench.now)
    ((_, data),) = bench.wire.sent
    _, framed = unframe(data, AGENT)
    assert read_header(framed)[0].codec in (Codec.NONE, Codec.ZLIB)
    assert bench.uplink.readable == {Codec.NONE, Codec.ZLIB}
    bench.logged(0, codecs=ALL)
    assert bench.uplink.readable >= READABLE


def test_two_devices_of_one_name_are_told_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for _ in range(3):
        bench.logged(0, duplicate=True)
    assert [record.message for record in caplog.records] == [f"another agent uses the same name agent={AGENT}"]
    assert bench.uplink.duplicate
    bench.logged(0, duplicate=False)
    assert not bench.uplink.duplicate


def test_an_entry_that_is_no_batch_is_reported_and_passed_over(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that died of it would die of it at every start."""
    assert bench.send(b"\x00", batch(4)) == [(1, 4, True)]
    assert "no batch agent" in caplog.text
    assert (bench.spool.count, bench.spool.lost) == (1, [range(1)])
    assert bench.logged(5) == []
    assert bench.spool.count == 0


def test_a_plain_lane_sends_entries_as_they_are(tmp_path: Path) -> None:
    wire = Wire()
    with Spool.open(tmp_path) as spool:
        spool.append(b"anything")
        Lane(AGENT, spool, wire.publish, 1).step(0.0)
    assert unframe(wire.sent[0][1], AGENT) == (True, b"anything")

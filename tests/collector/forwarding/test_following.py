"""The log in groups: all of it, in order, from where it was left, while it is being written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.forwarding.errors import ForwardingError
from collector.forwarding.following import Follower
from collector.log import Position
from collector.log_view import Entry, entries
from protocol.records import Delivery, Origin, OriginKind, Progress
from protocol.wire.sections import Kind
from tests.collector.agents import FakeAgent
from tests.collector.forwarding.captured import WrittenLog, in_batches, tuples_of, workflow_of

TOLD = (Kind.PLAN, Kind.SOURCE, Kind.DELIVERY, Kind.EVENT, Kind.END)
PI, PUMP = FakeAgent("pi-1", nonce=7, epoch=1), FakeAgent("pump-7", nonce=9, epoch=2)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WrittenLog]:
    with WrittenLog(tmp_path / "log") as made:
        for batch in in_batches(workflow_of(6), 3):
            made.say(PI, *batch)
        made.say(PUMP, *tuples_of(PUMP, 6), Progress(PUMP.stream("the results"), 5, 5))
        yield made


def follow(follower: Follower, most_rows: int = 500) -> list[Entry]:
    """All that is there, moving on as a forwarder does."""
    found: list[Entry] = []
    while groups := list(follower.groups(most_rows)):
        for group in groups:
            assert len(group.entries) <= 20
            follower.positions[group.shard] = group.end
            found += group.entries
    return found


def by_agent(found: list[Entry]) -> dict[str, list[str]]:
    return {agent: [repr(each) for each in found if each.agent == agent] for agent in ("pi-1", "pump-7")}


@pytest.mark.parametrize("most_rows", [1, 2, 500])
def test_all_records_come_in_the_order_of_the_log(log: WrittenLog, most_rows: int) -> None:
    assert by_agent(follow(Follower(log.folder, {}), most_rows)) == by_agent(list(entries(log.folder, TOLD)))


def test_it_goes_on_where_it_was_left_while_the_log_is_written(log: WrittenLog) -> None:
    positions: dict[int, Position] = {}
    first = follow(Follower(log.folder, positions))
    assert follow(Follower(log.folder, dict(positions))) == []
    log.say(PI, *workflow_of(1)[:2])
    other = FakeAgent("pi-2", nonce=3)
    log.say(other, *workflow_of(1)[:1])
    found = follow(Follower(log.folder, positions))
    assert sorted((each.agent, each.epoch or 0) for each in found) == [("pi-1", 1), ("pi-1", 1), ("pi-2", 3)]
    assert len(first) + len(found) == len(list(entries(log.folder, TOLD)))


def test_bounded_it_ends_where_the_log_ended(log: WrittenLog) -> None:
    follower = Follower(log.folder, {}, is_bounded=True)
    before = by_agent(list(entries(log.folder, TOLD)))
    log.say(PI, *workflow_of(1))
    log.say(FakeAgent("pi-2", nonce=3), *workflow_of(1))
    assert by_agent(follow(follower)) == before


def test_only_one_agent(log: WrittenLog) -> None:
    assert {each.agent for each in follow(Follower(log.folder, {}, "pump-7"))} == {"pump-7"}


def test_origins_have_the_epochs_that_people_know(log: WrittenLog) -> None:
    """A card that was written again counts anew, and others know it by its own count."""
    again = FakeAgent("pump-7", nonce=10, epoch=2)
    log.say(again, *tuples_of(again, 2))
    origin = Origin(OriginKind.REMOTE, again.stream("the results"), 0, 0)
    log.say(PI, Delivery(PI.stream("alerts"), 0, 0, "x", (origin,)))
    found = [each for each in follow(Follower(log.folder, {})) if each.kind is Kind.DELIVERY]
    assert {str(each.record.id) for each in found if each.nonce == 10} == {"pump-7/the results@3:0"}
    assert [str(each.record.origins[0].id) for each in found if each.agent == "pi-1"] == ["pump-7/the results@3:0"]


def test_the_lag_is_that_of_the_oldest_row_that_waits(log: WrittenLog) -> None:
    follower = Follower(log.folder, {})
    assert follower.lag_s() == 0
    groups = list(follower.groups())
    assert follower.lag_s() > 0
    follower.positions[groups[0].shard] = groups[0].end
    assert follower.lag_s() > 0
    follower.positions[groups[1].shard] = groups[1].end
    assert follower.lag_s() == 0


def test_a_log_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ForwardingError, match=r"there is no log in .*: `threadline translate` makes it"):
        Follower(tmp_path / "nowhere", {})


def test_a_registry_that_is_gone_is_told(log: WrittenLog) -> None:
    log.close()
    (log.folder / "registry.db").unlink()
    with pytest.raises(ForwardingError, match=r"registry\.db is not there: put it back from a copy"):
        Follower(log.folder, {})


def test_rows_that_were_removed_before_they_were_forwarded_are_told(log: WrittenLog) -> None:
    shard = next(iter(Follower(log.folder, {}).groups())).shard
    with pytest.raises(ForwardingError, match=r"removed before it was forwarded.*a new --position file"):
        list(Follower(log.folder, {shard: Position(0, 5)}).groups())


def test_another_log_in_the_same_place_is_noticed(log: WrittenLog) -> None:
    follower = Follower(log.folder, {})
    follower.check_log()
    (log.folder / "id").write_text(f"{uuid.uuid4()}\n")
    with pytest.raises(ForwardingError, match="there is another log"):
        follower.check_log()

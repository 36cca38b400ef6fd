"""What must be true of the log when everything has arrived, in plain words: see `judge`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from collector.epochs import AgentEpochs, EpochState, Tally
from collector.log import LogReader, Position, Row
from collector.log_view import Entry, check, entries
from collector.registry import Registry
from edge_agent.outbox.recovery import CRASH
from protocol.chunks import SEQ_BITS, read_deliveries, read_progress, read_sources
from protocol.records import Gap
from protocol.wire.sections import EventKind, Kind
from protocol.wire.values import decode
from tests.collector.simulation import Life

_SAYS_NOTHING = (Kind.EPOCH, Kind.GAP, Kind.PLAN, Kind.END, Kind.REGISTER)


def judge(folder: Path, lives: Iterable[Life], *, in_order: bool) -> None:
    """Compare the log with what the agents were told to record."""
    assert [line for line, is_fault in check(folder) if is_fault] == []
    log = list(entries(folder))
    for life in lives:
        _judge_life(life, log, in_order)


def _numbers(spans: Iterable[tuple[int, int] | None]) -> set[int]:
    return {number for span in spans if span for number in range(span[0], span[1] + 1)}


def _judge_life(life: Life, log: list[Entry], in_order: bool) -> None:
    mine = [each for each in log if each.nonce == life.nonce and each.kind not in (Kind.SNAPSHOT, Kind.RETIRE)]
    gaps: list[Gap] = [each.record for each in log if each.kind is Kind.GAP and each.record.nonce == life.nonce]
    crashes = [gap for gap in gaps if gap.reason == CRASH]
    # An epoch that was killed is followed by a Gap that says so, and no other is.
    has_end = any(each.kind is Kind.END for each in mine)
    if life.begun and life.killed and not life.ending:
        assert crashes, f"nobody was told that {life} was killed"
    if life.ended or has_end:
        assert not crashes, f"{life} has ended, but is said to have crashed"
    # Batches: in order and without holes, but for those that are named; and what is named is not there.
    seqs = [each.seq for each in mine]
    given_up = _numbers(gap.batches for gap in gaps)
    assert seqs == sorted(seqs)
    assert set(seqs) | given_up == set(range(max([-1, *seqs, *given_up]) + 1))
    assert not given_up & {each.seq for each in mine if each.kind not in _SAYS_NOTHING}
    assert sum(each.kind is Kind.PLAN for each in mine) <= 1, "a plan told twice"
    ends = [each.seq for each in mine if each.kind is Kind.END]
    assert not ends or ends == [max(seqs)], "something follows the end"
    # Captured events: each once, and what is missing is named, or was not on disk when the agent was killed.
    events = [(each.record.number, each.record.ts) for each in mine if each.kind is Kind.EVENT]
    _judge_numbers(life, [number for number, _ in events], _numbers(gap.events for gap in gaps), len(life.events))
    logged = {ts for _, ts in events}
    assert len(logged) == len(events)
    assert logged <= set(range(len(life.events)))
    named = len(_numbers(gap.events for gap in gaps))
    assert len(set(range(life.safe_events)) - logged) <= named, "lost after it was on disk"
    if in_order:
        assert all(number == ts for number, ts in events)
        assert set(range(life.safe_events)) - logged <= _numbers(gap.events for gap in gaps)
    for kind in EventKind:
        of_kind = [ts for _, ts in events if life.events[ts][0] is kind]
        assert of_kind == sorted(of_kind)
    assert all(gap.next_event == len(events) + named for gap in crashes), (life, crashes, len(events), named)
    # Tuples: likewise, stream by stream.
    for name in {name for name, _ in life.tuples}:
        _judge_stream(life, name, mine, gaps, crashes)
    _judge_promises(life, mine)


def _judge_numbers(life: Life, logged: list[int], named: set[int], put: int) -> None:
    assert logged == sorted(set(logged)), "twice, or out of order"
    assert not named & set(logged), "a Gap names what is in the log"
    known = named | set(logged)
    assert known == set(range(len(known))), "a hole that nobody names"
    assert len(known) <= put
    assert len(known) == put or life.killed, "missing, and nobody was killed"


def _judge_stream(life: Life, name: str, mine: list[Entry], gaps: list[Gap], crashes: list[Gap]) -> None:
    tuples = [each.record for each in mine if each.kind in (Kind.SOURCE, Kind.DELIVERY)]
    logged = [each.seq for each in tuples if each.stream.name == name]
    named = _numbers((lost.first, lost.last) for gap in gaps for lost in gap.tuples if lost.name == name)
    _judge_numbers(life, logged, named, sum(of == name for of, _ in life.tuples))
    safe = {seq for of, seq in life.tuples[: life.safe_tuples] if of == name}
    assert safe <= set(logged) | named, "lost after it was on disk"
    for gap in crashes:
        assert dict(gap.next_seqs).get(name, 0) == len(logged) + len(named), (life, gap)


def _judge_promises(life: Life, mine: list[Entry]) -> None:
    """Promises rise, and nothing that was said before a promise comes after it."""
    places = {(each.record.stream.name, each.record.seq): place for place, each in enumerate(mine) if _is_tuple(each)}
    promises = [(place, each.record.watermark) for place, each in enumerate(mine) if each.kind is Kind.PROGRESS]
    assert [watermark for _, watermark in promises] == sorted(watermark for _, watermark in promises)
    for place, watermark in promises:
        before = life.tuples[: life.promises[watermark]]
        late = [each for each in before if places.get(each, -1) >= 0 and mine[places[each]].seq > mine[place].seq]
        assert not late, f"{late} came after the promise {watermark}"


def _is_tuple(entry: Entry) -> bool:
    return entry.kind in (Kind.SOURCE, Kind.DELIVERY)


def judge_registers(folder: Path, shard: int) -> None:
    """The number of a stream is told before it is used."""
    told: set[int] = set()
    reader = LogReader(folder)
    for row in reader.rows(shard, reader.start(shard), reader.end(shard)):
        if row.kind == Kind.REGISTER:
            told.add(decode(row.data)[0])
        assert _streams_of(row) <= told, f"{row} uses {_streams_of(row) - told}"


def _streams_of(row: Row) -> set[int]:
    match row.kind:
        case Kind.SOURCE:
            return set((read_sources(row.data).id >> SEQ_BITS).tolist())
        case Kind.DELIVERY:
            chunk = read_deliveries(row.data)
            return set((chunk.id >> SEQ_BITS).tolist()) | set((chunk.origin_id >> SEQ_BITS).tolist())
        case Kind.PROGRESS:
            return set(read_progress(row.data).stream.tolist())
    return set()


def judge_snapshots(folder: Path, shard: int, registry: Registry) -> int:
    """Every segment, replayed, leads to what the next one begins with. Returns how many were compared."""
    reader = LogReader(folder)
    end = reader.end(shard)
    starts = [Position(number, 0) for number in range(reader.start(shard).segment, end.segment + 2)]
    for start, following, after in zip(starts, starts[1:], starts[2:], strict=False):
        agents: dict[str, AgentEpochs] = {}
        for row in reader.rows(shard, start, following):
            _replay(agents, row, registry)
        replayed = {agent: [state.told() for state in each.known.values()] for agent, each in agents.items()}
        snapshot: dict[str, list[Any]] = {}
        for row in reader.rows(shard, following, after):
            if row.kind != Kind.SNAPSHOT:
                break
            if row.nonce not in agents[row.agent].closing:
                snapshot.setdefault(row.agent, []).append(decode(row.data))
        for agent, states in replayed.items():
            told = snapshot.get(agent, [])
            assert states[len(states) - len(told) :] == told, f"segment {following.segment}"
            for state in states[: len(states) - len(told)]:  # left to the registry in between
                assert registry.closed_epoch(agent, state["nonce"]) == (state["epoch"], state["next_seq"])
    return len(starts) - 2


def _replay(agents: dict[str, AgentEpochs], row: Row, registry: Registry) -> None:
    epochs = agents.setdefault(row.agent, AgentEpochs(row.agent, Tally()))
    if row.kind == Kind.SNAPSHOT:
        epochs.adopt(EpochState.from_told(decode(row.data)))
    else:
        shown = registry.epoch_of(row.agent, row.nonce, 0).shown
        epochs.follow(epochs.find(row.nonce) or EpochState(row.agent, shown, row.nonce), row)

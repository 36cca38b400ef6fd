"""A slice of the simulation in every test run, and checks of the simulation itself.

`make soak` and `make chaos` run many more seeds; `python -m tests.faults.simulation --seed N --shrink` looks at one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from collector.log.writer import ShardWriter
from collector.log_view import Entry
from edge_agent.agent import Agent
from edge_agent.exchange.send_streams import SendStream
from edge_agent.outbox import Outbox
from edge_agent.stream.source_ids import SourceIds
from edge_agent.stream.sources import Receive, Source
from protocol.records import END_OF_TIME, Gap, Record, SourcePayload
from protocol.structs import replaced
from protocol.wire.crossing import Crossing, PackedTuple, encode_crossing
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind, Pending, pending_sized
from tests.faults.simulation import __main__ as runner
from tests.faults.simulation.fleet import COUNTED
from tests.faults.simulation.judge import _Judge, _judge_crossing
from tests.faults.simulation.runs import RunFailed, run, run_seed, shrunk
from tests.faults.simulation.schedule import ACTIONS, FAULTS, Step, plan_run
from tests.faults.simulation.truth import Life, Mark
from tests.faults.simulation.world import Options

FIRST_SEED = int(os.environ.get("SIMULATION_SEED", "0"))
SEEDS = 15
FOUND = (
    *(15, 56, 62, 140, 150, 230, 479, 704, 710, 913, 1131, 1307, 1528, 1721, 1734, 2271),
    *(10161, 20183, 31376, 31479, 32290, 50051, 51175, 52016, 603193, 604490, 843253, 845318, 911666),
    1020970,
)
"""Seeds that have found something."""
DULL = (
    Step("weather", "cam", 0.0),
    Step("read", "car", 0.1),
    Step("capture", "cam", 0.1),
    Step("wait", "cam", 0.3),
)
"""A run in which nothing goes wrong."""


@pytest.mark.timeout(300)
def test_whatever_happens_the_graph_is_what_the_agents_said() -> None:
    """Others are run with SIMULATION_SEED=1000."""
    happened: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        happened += run_seed(seed).happened
    if FIRST_SEED == 0:  # the runs are hard: what is meant to happen does
        assert sum(fault in happened for fault in FAULTS) > 25
        assert happened["datagrams"] > 3_000 and happened["lost"] > 50 and happened["corrupted"] > 5
        assert happened["killed in the middle of something"] > 3
        assert happened["micro-batches run again"] > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once_stays_mended(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("seed", [3, 15])
def test_the_same_seed_gives_the_same_run_in_any_process(seed: int) -> None:
    here = run_seed(seed).line()
    command = [sys.executable, "-m", "tests.faults.simulation", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": "17"}
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_a_defect_is_found_and_shrinks_to_what_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is acknowledged without being synced: nobody sees that, until the power is cut."""
    sync = os.fdatasync

    def write_without_sync(self: ShardWriter, content: bytes) -> None:
        self._cut_back()
        self._is_dirty = True
        os.pwrite(self._handle, content, self._extent.end_bytes)

    monkeypatch.setattr(ShardWriter, "_write", write_without_sync)
    steps = [*DULL, *([*DULL, Step("power cut of the log", "cam", 0.0)] * 3), *DULL]
    options = Options(("car", "center", "cam"), plan_run(0)[0].settings)
    left, error = shrunk(1, options, steps)
    assert isinstance(error, RunFailed)
    assert Step("power cut of the log", "cam", 0.0) in left
    assert len(left) <= 4
    assert sync is os.fdatasync, "the hooks are gone"
    monkeypatch.undo()
    run(1, options, steps)


def born_with_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    new = SourceIds._new
    monkeypatch.setattr(SourceIds, "_new", lambda ids, t: new(ids, (t[0], 424242)))


def written_with_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    write_altered(monkeypatch, lambda said: SourcePayload(said.stream, said.seq, said.ts, 424242))


def written_with_other_times(monkeypatch: pytest.MonkeyPatch) -> None:
    write_altered(monkeypatch, lambda said: SourcePayload(said.stream, said.seq, said.ts + 7, said.payload))


def write_altered(monkeypatch: pytest.MonkeyPatch, change: Callable[[SourcePayload], SourcePayload]) -> None:
    def pending_altered(record: Any, packer: Packer) -> tuple[Pending, int]:
        return pending_sized(change(record) if isinstance(record, SourcePayload) else record, packer)

    monkeypatch.setattr("edge_agent.agent.pending_sized", pending_altered)


def captured_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Outbox.put

    def put_without(self: Outbox, row: Pending, size: int) -> None:
        put(self, (*row[:-1], []) if row[0] is Kind.EVENT else row, size)

    monkeypatch.setattr(Outbox, "put", put_without)


def read_but_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Source.take
    monkeypatch.setattr(Source, "take", lambda source, items: take(source, items[:1] + items[2:]))


def received_but_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Receive.take

    def take_some(self: Receive, tuples: list[Any], watermark: int, hold: int, idle: bool) -> None:
        take(self, [each for each in tuples if each[2].seq % 4 != 3], watermark, hold, idle)

    monkeypatch.setattr(Receive, "take", take_some)


def promised_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(crossing: Crossing, tuples: list[PackedTuple]) -> bytes:
        return encode_crossing(replaced(crossing, watermark=min(crossing.watermark + 1_000, END_OF_TIME)), tuples)

    monkeypatch.setattr("edge_agent.exchange.send_streams.encode_crossing", encoded)


@pytest.mark.parametrize(
    ("defect", "told"),
    [
        (born_with_other_values, "never read"),
        (written_with_other_values, "not what was told"),
        (written_with_other_times, "not what was told"),
        (captured_without_data, "not what was captured"),
        (read_but_for_some, "not tell what was read"),
        (received_but_for_some, "never arrived"),
        (promised_too_much, "older than its sender had promised"),
    ],
)
def test_whatever_is_wrong_in_what_comes_out_is_found(
    monkeypatch: pytest.MonkeyPatch, defect: Callable[[pytest.MonkeyPatch], None], told: str
) -> None:
    """All that is right is how much there is of it."""
    defect(monkeypatch)
    with pytest.raises(RunFailed, match=told):
        run(1, Options(("car", "center", "cam"), plan_run(0)[0].settings), DULL * 2)


@pytest.mark.parametrize("end", ["kill device", "power cut of device"])
@pytest.mark.parametrize("when_full", ["block", "drop-oldest"])
def test_what_a_dead_sender_had_written_for_others_must_arrive(
    monkeypatch: pytest.MonkeyPatch, end: str, when_full: str
) -> None:
    """Every start lets go of what the last one has left; nothing of it has arrived."""
    make_safe = SendStream._make_safe_what_was_left

    def let_go(self: SendStream) -> None:
        make_safe(self)
        if self.spool.count:
            self.spool.release(self.spool.next - 1)

    options = Options(("car", "center", "cam"), plan_run(0)[0].settings | {"when_full": when_full})
    steps = [Step("partition", "center", 0.0), *DULL, Step(end, "car", 0.1), *DULL]
    run(1, options, steps)
    monkeypatch.setattr(SendStream, "_make_safe_what_was_left", let_go)
    with pytest.raises(RunFailed, match="never arrived of car@1"):
        run(1, options, steps)


def told_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = Agent.emit

    def emit_no_gap(self: Agent, record: Record) -> None:
        if not isinstance(record, Gap):
            emit(self, record)

    monkeypatch.setattr(Agent, "emit", emit_no_gap)


def told_to_be_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(crossing: Crossing, tuples: list[PackedTuple]) -> bytes:
        return encode_crossing(replaced(crossing, lost=min(crossing.lost, 1)), tuples)

    monkeypatch.setattr("edge_agent.exchange.send_streams.encode_crossing", encoded)


@pytest.mark.parametrize("defect", [told_to_nobody, told_to_be_nothing])
def test_a_receiver_must_be_told_how_much_its_sender_has_given_up(
    monkeypatch: pytest.MonkeyPatch, defect: Callable[[pytest.MonkeyPatch], None]
) -> None:
    settings = plan_run(0)[0].settings | {"when_full": "drop-oldest", "spool_bytes": 1 << 20}
    options = Options(("car", "center"), settings, send_bytes=4 << 10)
    steps = [*DULL, Step("torrent", "center", 0.3), *DULL]
    run(1, options, steps)
    defect(monkeypatch)
    with pytest.raises(RunFailed, match=r"never arrived, and \d+ at most are named"):
        run(1, options, steps)


@pytest.mark.parametrize(("given_up", "is_excused"), [((0, 3), False), ((5, 6), True)])
def test_the_end_may_be_missing_only_if_it_may_be_among_what_was_given_up(
    given_up: tuple[int, int], is_excused: bool
) -> None:
    """The log has batch 4 of a start that had said its end."""
    life = Life("cam", 1, 77, 0, dropping=True, synced=True, written=Mark(ended=True))
    status = Entry(Kind.STATUS, "cam", 77, 4, None, 1)
    gap = Entry(Kind.GAP, "cam", 78, 0, Gap("dropped", 1, 77, batches=given_up), 2)
    assert (list(_Judge(life, [status, gap], True)._end()) == []) == is_excused


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("by_one", [False, True])
def test_nothing_is_taken_twice_unless_another_start_has_forgotten_it(forgets: bool, by_one: bool) -> None:
    sender, stream, receiver, sink = COUNTED[0]
    lives = [Life(receiver, epoch, 70 + epoch, 0, dropping=False, synced=False, reflashed=forgets) for epoch in (1, 2)]
    origin = SimpleNamespace(stream=SimpleNamespace(nonce=60), seq=5)
    result: Any = SimpleNamespace(stream=SimpleNamespace(name=sink), origins=[origin])
    log = [Entry(Kind.DELIVERY, receiver, nonce, 0, result, 1) for nonce in (71, 71 if by_one else 72)]
    findings = list(_judge_crossing(lives, log, sender, stream, receiver, sink))
    assert any("taken twice by one start" in each for each in findings) == by_one
    assert (findings == []) == (forgets and not by_one)


def test_a_process_that_is_killed_before_all_have_something_to_do_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, run_of_7 = MagicMock(), Future[Any]()
    run_of_7.set_exception(BrokenProcessPool())
    pool.__enter__.return_value.submit.side_effect = [run_of_7, BrokenProcessPool()]
    monkeypatch.setattr(runner, "ProcessPoolExecutor", lambda *_, **__: pool)
    assert runner.run_many(range(7, 100), jobs=2) == 1
    told = capsys.readouterr().out
    assert "one of the seeds 7\n" in told and "0 passed, 0 failed" in told


def test_every_step_of_a_run_is_something_that_can_happen() -> None:
    options, steps = plan_run(5)
    assert {step.action for step in steps} <= set(ACTIONS)
    assert {step.agent for step in steps} <= set(options.agents)
    assert len({step.action for step in steps} & set(FAULTS)) >= 3


@pytest.mark.soak
def test_ten_thousand_runs() -> None:
    command = [sys.executable, "-m", "tests.faults.simulation", "--seeds", "10000-19999"]
    subprocess.run(command, check=True)

"""One run of the whole chain: everything is put up, hurt as a seed says, healed, brought to its end, and judged."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from collector.log_view import entries
from protocol.wire.sections import Kind
from tests.faults.chain import service_judge
from tests.faults.chain.graph_judge import differences, read_graph, read_told
from tests.faults.chain.player import Player
from tests.faults.chain.schedule import Schedule, schedule
from tests.faults.chain.stage import Broken, Stage
from tests.faults.chain.truth_judge import BUSY_S, TruthJudge
from tests.system.delivery.account import Account, check

_GRAPH_S = 240.0
"""Nothing changes for so long: Spark may have to start twice on a machine that has much else to do."""
_LOOK_S = 1.5
_MOST_FINDINGS = 20
_LEAST_KINDS = 3


@dataclass(slots=True)
class Outcome:
    """What a run has shown."""

    seed: int
    duration_s: float = 0.0
    faults: dict[str, dict[str, int]] = field(default_factory=dict)
    """By kind: whom they have hit, how often."""
    events: int = 0
    deliveries: int = 0
    results: int = 0
    edges: int = 0
    gaps: int = 0
    late: int = 0
    incomplete: int = 0
    named_missing: int = 0
    lost_at_kills: int = 0
    lost_with_cards: int = 0
    compared: int = 0
    """Queries whose results were compared with those of one process, besides the accidents."""
    dropped: int = 0
    """Datagrams."""
    findings: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.findings

    @property
    def kinds(self) -> str:
        """How many faults there were of each kind."""
        counted = {kind: sum(targets.values()) for kind, targets in sorted(self.faults.items())}
        return ", ".join(f"{times} {kind}" if times > 1 else kind for kind, times in counted.items())

    def line(self) -> str:
        """The run in a line."""
        return (
            f"seed {self.seed}: {'good' if self.is_good else 'BAD'}, {self.duration_s:.0f} s, {self.events} events,"
            f" {self.deliveries} deliveries, {self.edges} edges, {self.gaps} gaps; {self.kinds}"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(seed: int, folder: Path, say: Callable[[str], None] = print, *, plan: Schedule | None = None) -> Outcome:
    """Play a seed. What is wrong is in the outcome, be it that the stage cannot be put up or taken down; the folder is
    left as it is then."""
    plan = plan or schedule(seed)
    outcome = Outcome(seed)
    begun = time.monotonic()
    try:
        with Stage(folder, plan, say) as stage:
            _play(stage, outcome, begun)
    except Exception:
        outcome.findings.append(traceback.format_exc())
    outcome.duration_s = time.monotonic() - begun
    return outcome


def _play(stage: Stage, outcome: Outcome, begun: float) -> None:
    player = Player(stage)
    try:
        player.play()
        stage.say(f"{time.monotonic() - begun:5.0f} s  everything heals")
        stage.heal()
        stage.finish_agents()
        stage.say(f"{time.monotonic() - begun:5.0f} s  all agents have come to their ends")
        outcome.findings += _judge(stage, player, outcome)
        stage.say(f"{time.monotonic() - begun:5.0f} s  judged")
        if outcome.is_good:
            stage.stop_services()
    except Broken as error:
        outcome.findings.append(str(error))
    except Exception:
        outcome.findings.append(traceback.format_exc())
    finally:
        for disk in stage.disks.values():
            disk.keep = not outcome.is_good
    for fault in player.played:
        hit = outcome.faults.setdefault(str(fault.kind), {})
        hit[fault.target] = hit.get(fault.target, 0) + 1
    planned = {fault.kind for fault in stage.schedule.faults}
    if len(outcome.faults) < _LEAST_KINDS <= len(planned):
        outcome.findings.append(f"of {len(planned)} kinds of fault it has played: {outcome.kinds or 'none'}")
    outcome.dropped = sum(link.up.dropped + link.down.dropped for link in stage.links.values())


def _judge(stage: Stage, player: Player, outcome: Outcome) -> list[str]:
    """Everything that is wrong."""
    log = stage.translator.log_folder
    outcome.gaps = sum(1 for _ in entries(log, [Kind.GAP]))
    try:
        account = check(log, stage.watch, BUSY_S, stage.wiped_lives)
    except AssertionError as error:
        return [f"the log of captured events: {error}"]
    _tell(account, outcome)
    found = _wait_for_graph(stage)
    if found:
        return found[:_MOST_FINDINGS]
    told = read_told(log)  # some may have been retired meanwhile
    outcome.deliveries = len(told.deliveries)
    graph = read_graph(stage.spark.store, told)
    judge = TruthJudge(stage, graph, told.gaps)
    found = list(judge.findings())
    found += service_judge.findings(stage, graph, told)
    outcome.results, outcome.edges = len(graph.results), graph.edges
    outcome.late, outcome.incomplete = graph.late, judge.tally.incomplete
    outcome.compared = judge.tally.compared
    outcome.lost_at_kills += judge.tally.lost_at_kills
    outcome.lost_with_cards += judge.tally.lost_with_cards
    outcome.named_missing += judge.tally.named_missing
    return found[:_MOST_FINDINGS]


def _tell(account: Account, outcome: Outcome) -> None:
    outcome.events, outcome.named_missing = account.events, account.named_missing
    outcome.lost_at_kills, outcome.lost_with_cards = account.lost_at_kills, account.lost_with_cards


def _wait_for_graph(stage: Stage) -> list[str]:
    """Until graph and captured tasks are what the log says; else how they differ when that does not change any more."""
    found: list[str] = []
    log = stage.translator.log_folder
    events = list(entries(log, [Kind.EVENT]))
    give_up = 0.0
    while True:
        before = found
        found = differences(stage.spark.store, read_told(log)) or list(service_judge.tasks(stage, events))
        now = time.monotonic()
        if found != before:
            give_up = now + _GRAPH_S
        if not found:
            return []
        if now > give_up:
            return [f"for {_GRAPH_S:.0f} s, nothing has come any closer to what the log says:", *found]
        stage.look()
        time.sleep(_LOOK_S)

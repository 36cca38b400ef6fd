"""What an agent has to do with others if its plan sends or receives. That they hear each other is for system tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from edge_agent import agent as agent_module
from edge_agent import exchange, siblings
from edge_agent.agent import Agent
from edge_agent.config import Settings
from edge_agent.exchange.receiving import MOST_EARLY
from edge_agent.plan_run import PlanRun
from edge_agent.stream import Plan
from edge_agent.transport import Client, Message
from protocol import plan as plan_module
from protocol.ids import StreamId
from protocol.plan import PlanError
from protocol.records import END_OF_TIME, Gap, Origin, OriginKind, Record
from protocol.structs import replaced
from protocol.wire import crossing as crossing_module
from protocol.wire.answers import Answer, Logged, Taken, encode_answer
from protocol.wire.crossing import Crossing, packed
from tests.edge_agent.spooled import NOWHERE
from tests.support.waiting import wait_until

SPOOL = 4711
ROOT = Path(agent_module.__file__).parent.parent
ONLY_FOR_EXCHANGE = (exchange, crossing_module)
CAPTURES = """
import sys
from edge_agent.capture import Workflow, close, flush
with Workflow("w"):
    pass
flush()
print(*sys.modules)
close(0.0)
"""
RUNS = """
import sys
from edge_agent.agent import Agent
from edge_agent.config import load_settings
from edge_agent.plan_run import PlanRun
from edge_agent.stream import Plan
plan = Plan("p")
plan.source("s", [(1, 1)]).{end}
with Agent(load_settings(), plan.document()) as agent:
    PlanRun(agent, plan).run()
    print(*sys.modules)
    agent.close(0.0)
"""


@pytest.fixture(autouse=True)
def no_long_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody to say it to."""
    close = Client.close
    monkeypatch.setattr(Client, "close", lambda client, timeout: close(client, timeout=0.0))


def agent_with(folder: Path, plan: Plan | None) -> Agent:
    settings = Settings(name="hub", gateway=NOWHERE, spool=str(folder), fsync="never")
    return Agent(settings, None if plan is None else plan.document())


def squares() -> Plan:
    plan = Plan("squares")
    plan.receive("numbers", "car-7").map(lambda value: value * value).sink("squares")
    return plan


def relay() -> Plan:
    plan = Plan("relay")
    plan.receive("numbers", "car-7").send("passed on", to=["lab"])
    return plan


def last_crossing(seq: int) -> Crossing:
    """A message of which the plan knows that it is the last one."""
    sender = StreamId("car-7", 1, "numbers", 77)
    tuples = [(seq, seq, Origin(OriginKind.REMOTE, sender, seq, seq))]
    return Crossing(sender, SPOOL, seq, tuples, END_OF_TIME, END_OF_TIME, False)


def take(agent: Agent, plan: Plan, seq: int = 0) -> None:
    assert agent.exchange is not None
    agent.exchange.arrived.append(last_crossing(seq))
    PlanRun(agent, plan).run()


def loaded_by(code: str, folder: Path) -> set[str]:
    names = {"THREADLINE_GATEWAY": NOWHERE, "THREADLINE_AGENT": "hub", "THREADLINE_SPOOL": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | names,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


def test_a_program_that_only_captures_does_not_load_it(tmp_path: Path) -> None:
    loaded = loaded_by(CAPTURES, tmp_path)
    assert agent_module.__name__ in loaded, "there is an agent"
    assert not loaded & {module.__name__ for module in (*ONLY_FOR_EXCHANGE, plan_module, siblings)}
    assert not loaded & {"pathlib", "urllib", "logging"}, "a small board has no memory to spare for them"


@pytest.mark.parametrize(("end", "is_loaded"), [("sink('out')", False), ("send('out', to=['lab'])", True)])
def test_only_a_plan_that_sends_or_receives_loads_it(tmp_path: Path, end: str, is_loaded: bool) -> None:
    loaded = loaded_by(RUNS.format(end=end), tmp_path)
    assert [module.__name__ in loaded for module in ONLY_FOR_EXCHANGE] == [is_loaded] * len(ONLY_FOR_EXCHANGE)


def test_how_far_a_stream_has_come_is_not_forgotten_by_a_run_without_its_plan(tmp_path: Path) -> None:
    with agent_with(tmp_path, squares()) as first:
        take(first, squares(), seq=4)
        first.flush(5.0)
        assert first.status()["receives"] == {"car-7/numbers": 5}
        first.close(0.0)
    with agent_with(tmp_path, None) as without:
        assert without.exchange is None
        assert without.status()["receives"] == {}
        without.close(0.0)
    with agent_with(tmp_path, squares()) as again:
        assert again.status()["receives"] == {"car-7/numbers": 5}
        again.close(0.0)


def test_what_nobody_has_taken_is_left_and_told(tmp_path: Path) -> None:
    with agent_with(tmp_path, relay()) as agent:
        take(agent, relay())
        wait_until(lambda: agent.status()["sends"]["passed on"]["not_taken"], "the crossing is in its spool")
        left = agent.close(0.0)
    sends = agent.status()["sends"]["passed on"]
    assert (sends["not_taken"], sends["given_up"], sends["trouble"]) == (1, 0, "")
    assert left == agent.status()["unacknowledged"] + 1


def test_what_comes_in_vain_is_counted(tmp_path: Path) -> None:
    with agent_with(tmp_path, squares()) as agent:
        assert agent.exchange is not None
        for seq in (0, 0, *range(2, 2 + MOST_EARLY), 100):
            agent.exchange._crossed(last_crossing(seq), seq == 0, monotonic())
        assert agent.status()["in_vain"] == {"duplicates": 1, "early_dropped": 1}
        agent.close(0.0)


def hears(agent: Agent, answer: Answer) -> None:
    agent._on_down(Message("down", encode_answer(answer, agent.name), 1, False))


def test_what_all_receivers_have_taken_is_let_go(tmp_path: Path) -> None:
    with agent_with(tmp_path, relay()) as agent:
        take(agent, relay())
        wait_until(lambda: agent.status()["sends"]["passed on"]["not_taken"], "the crossing is in its spool")
        assert agent.exchange is not None
        (lane,) = agent.exchange.lanes.values()
        hears(agent, Taken("lab", "something else", lane.spool_id, 1))
        hears(agent, Taken("lab", "passed on", lane.spool_id, 1))
        wait_until(lambda: not agent.status()["sends"]["passed on"]["not_taken"], "the crossing is let go")
        assert agent.failure is None
        agent.close(0.0)


def test_who_waits_for_room_goes_on_as_soon_as_a_receiver_has_made_some(tmp_path: Path) -> None:
    """Not a second later: a sender would send a spool full in each."""
    settings = Settings(name="hub", gateway=NOWHERE, spool=str(tmp_path), spool_bytes=64 << 10, when_full="block")
    agent = Agent(settings, relay().document())
    assert agent.exchange is not None
    outbox, send, now = agent._outbox, agent.exchange._sends["passed on"], monotonic()
    origin = Origin(OriginKind.REMOTE, send.stream, 0, 0)
    rows = packed([(ts, {"noise": os.urandom(1_000)}, origin) for ts in range(80)], agent.packer)
    send.add(rows[:79], 78, 78, False, now)
    assert send.step(now) == now + 1.0, "there is no room"
    outbox.after(lambda: send.add(rows[79:], 79, 79, False, now))
    outbox.hurry()
    outbox.step(now)
    outbox.step(now + 0.1)
    assert outbox.trouble and send.trouble
    agent.exchange.taken(Taken("lab", "passed on", send.spool_id, send.spool.next), now + 0.2)
    send.step(now + 0.2)
    outbox.step(now + 0.2)
    assert not send.trouble and not outbox.trouble
    agent.close(0.0)


def test_tuples_leave_when_the_plan_of_this_start_is_in_the_log(tmp_path: Path) -> None:
    with agent_with(tmp_path, relay()) as agent:
        assert agent.exchange is not None
        (lane,) = agent.exchange.lanes.values()
        wait_until(lambda: agent.status()["batches"], "the plan is in a batch")
        own = agent.epoch.nonce
        for answer, is_open in [(Logged(77, 9), False), (Logged(own, 0), False), (Logged(own, 1), True)]:
            hears(agent, answer)
            agent.flush(5.0)
            assert lane.is_open is is_open
        agent.close(0.0)


def test_who_exchanges_nothing_does_not_mind_answers_of_others(tmp_path: Path) -> None:
    with agent_with(tmp_path, None) as agent:
        hears(agent, Taken("lab", "passed on", SPOOL, 1))
        agent.flush(5.0)
        assert agent.failure is None
        agent.close(0.0)


def test_what_is_no_crossing_is_told_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with agent_with(tmp_path, squares()) as agent:
        assert agent.exchange is not None
        for _ in range(1_000):
            agent.exchange._on_crossing("car-7", "numbers", Message("tuples", b"garbage", 1, False))
        (told,) = caplog.messages
        assert "ignored what is no crossing of car-7 agent=hub" in told
        assert agent.status()["ignored"] == 1_000
        agent.close(0.0)


@pytest.mark.parametrize(
    ("connect", "message"),
    [
        (lambda plan: plan.receive("x", "hub").sink("out"), "cannot receive from itself"),
        (lambda plan: plan.source("s", []).send("x", to=["lab", "hub"]), "cannot send to itself"),
    ],
)
def test_an_agent_is_not_its_own_neighbour(tmp_path: Path, connect: Callable[[Plan], Any], message: str) -> None:
    plan = Plan("selfish")
    connect(plan)
    with pytest.raises(PlanError, match=message):
        Agent(Settings(name="hub", gateway=NOWHERE, spool=str(tmp_path)), plan.document())


def test_a_sender_that_repeats_itself_does_not_hear_our_answers(tmp_path: Path) -> None:
    """
    0 s   the first message is taken, and answered
    20 s  ... 80 s  it comes again and again: the answers go somewhere else
    90 s  another one: they are heard after all
    """
    agent = agent_with(tmp_path, squares())
    assert agent.exchange is not None
    crossed, silent_since = agent.exchange._crossed, agent.exchange.silent_since
    crossed(last_crossing(0), True, 0.0)
    agent.exchange._taken("car-7", "numbers", SPOOL, 1)
    assert silent_since(10.0) > 500.0, "that a sender is silent for some minutes means nothing"
    for now in (20.0, 40.0, 80.0):
        crossed(last_crossing(0), True, now)
    assert silent_since(85.0) == 20.0
    assert silent_since(400.0) > 500.0, "it has stopped"
    crossed(last_crossing(1), True, 90.0)
    assert silent_since(95.0) > 500.0
    agent.close(0.0)


def test_what_a_sender_has_given_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Message 3 stands for some that are gone, and 1 and 2 never come."""
    agent = agent_with(tmp_path, squares())
    assert agent.exchange is not None
    emitted: list[Record] = []
    monkeypatch.setattr(agent, "emit", emitted.append)
    agent.exchange._crossed(last_crossing(0), True, 0.0)
    assert emitted == []
    agent.exchange._crossed(replaced(last_crossing(3), lost=5), True, 1.0)
    assert emitted == [Gap("given up by car-7: 3 messages of numbers with 5 tuples at most", 1, 77)]
    assert [each.seq for each in agent.exchange.arrived] == [0, 3]
    agent.close(0.0)


def test_a_plan_that_is_refused_leaves_no_spool_locked(tmp_path: Path) -> None:
    plan = Plan("half good")
    received = plan.receive("numbers", "car-7")
    received.send("passed on", to=["lab"])
    received.map(str).send("to itself", to=["hub"])
    for _ in range(2):
        with pytest.raises(PlanError, match="cannot send to itself"):
            agent_with(tmp_path, plan)

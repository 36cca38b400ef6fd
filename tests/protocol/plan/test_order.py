"""The order of operators and of agents: a circle of either is refused."""

from __future__ import annotations

import pytest

from protocol.plan import PlanError, fleet_delays
from tests.protocol.plan.plans import mapped, plan, receive, send, sink, source, union


@pytest.mark.parametrize("length", [1, 2, 3, 50])
def test_a_stream_that_flows_back_is_refused(length: int) -> None:
    # The circle has a way in and a way out, so that nothing else is wrong with it.
    ring = [union("r0", "in", f"r{length - 1}"), *(mapped(f"r{i}", f"r{i - 1}") for i in range(1, length))]
    with pytest.raises(PlanError, match=r"its result flows back into it: r\d+ -> ") as caught:
        plan(source(), *ring, mapped("after", "r0"), sink("out", "after")).check()
    assert caught.value.operator in {node.name for node in ring}


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_agents_in_a_circle_are_refused(length: int) -> None:
    agents = [f"agent-{number}" for number in range(length)]
    circle = {
        agent: plan(receive("s", agents[place - 1]), send("s", f"{agents[place - 1]}/s", agents[(place + 1) % length]))
        for place, agent in enumerate(agents)
    }
    after = {"after": plan(receive("s", "agent-0"), sink("out", "agent-0/s"))}
    with pytest.raises(PlanError, match=r"agents agent-\d+ -> .*agent-\d+ send to each other in a circle"):
        fleet_delays(circle | after)

"""Q1 to Q4 over two agents each, all at once, over bad links: the log holds what one process finds, each alert once.

On the way the gateway is killed, and the agents that find the alerts are cut off for half a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from typer.testing import CliRunner

from edge_agent.queries import linear_road_accidents, linear_road_stopped, smart_grid_anomaly, smart_grid_blackout
from edge_agent.stream import Plan, run
from tests.support.waiting import wait_until
from tests.system.split.alerts import found_by_one, found_in_log
from tests.system.split.fleet import AgentProcess, Cloud
from tests.system.split.pacing import LAST, MIDDLE, paced_app
from threadline.cli import app as threadline

LOSS, DUPLICATES, DELAY_S = 0.20, 0.10, (0.0, 0.1)
OUTAGE_S = 30.0
MIDDLE_S = 25.0
FLUSH_S = 0.5

# query on one device, its parts, its sink
QUERIES: list[tuple[Callable[[], Plan], str, str, str]] = [
    (linear_road_stopped.build, "stopped_roadside", "stopped_center", "stopped"),
    (linear_road_accidents.build, "accidents_roadside", "accidents_center", "accidents"),
    (smart_grid_blackout.build, "blackout_substation", "blackout_center", "blackouts"),
    (smart_grid_anomaly.build, "anomaly_substation", "anomaly_center", "anomalies"),
]


def agent_of(part: str) -> str:
    return part.replace("_", "-")


def test_four_queries_over_two_agents_each_find_what_one_process_finds(
    mosquitto_installed: None, tmp_path: Path
) -> None:
    with Cloud(tmp_path) as cloud:
        links = [cloud.link(seed) for seed in (1, 2)]
        senders: list[AgentProcess] = []
        receivers: list[AgentProcess] = []
        for _, sensing, finding, _ in QUERIES:
            for part, agents, link in ((sensing, senders, links[0]), (finding, receivers, links[1])):
                app = paced_app(tmp_path, part, MIDDLE_S)
                agents.append(cloud.agent(agent_of(part), app, link, flush_s=FLUSH_S, batch_age_s=FLUSH_S))
        with ThreadPoolExecutor(len(QUERIES)) as pool:
            list(pool.map(AgentProcess.start, [*receivers, *senders]))
        wait_until(lambda: all(agent.has_taken for agent in receivers), "all receivers have taken something", 20)

        for link in links:
            link.set(loss=LOSS, duplicate=DUPLICATES, delay_s=DELAY_S)
        links[1].partitioned = True
        cut_at = time.monotonic()
        (tmp_path / MIDDLE).touch()
        expected = {(agent_of(finding), sink): found_by_one(run(whole()), sink) for whole, _, finding, sink in QUERIES}
        time.sleep(max(0.0, cut_at + OUTAGE_S / 3 - time.monotonic()))
        cloud.gateway.kill()
        cloud.gateway.start()
        time.sleep(max(0.0, cut_at + OUTAGE_S - time.monotonic()))
        assert all(agent.not_taken > 3 for agent in senders), "the streams have gone on meanwhile"
        links[1].partitioned = False
        (tmp_path / LAST).touch()

        for agent in [*senders, *receivers]:
            agent.ends_acknowledged(60)
        for link in links:
            assert min(link.up.dropped, link.down.dropped, link.up.duplicated, link.down.duplicated) > 10
        log = cloud.log()

    found = found_in_log(log)
    for place, alerts in expected.items():
        assert len(alerts) > 3
        assert found[place] == alerts
    verified = CliRunner().invoke(threadline, ["log", "verify", str(log)])
    assert verified.exit_code == 0, verified.output

"""Q1 to Q4 over two agents each, all at once, over bad links: the log holds what one process finds, each alert once.

On the way the gateway is killed, and the agents that find the alerts are cut off for half a minute.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edge_agent.queries import linear_road_accidents, linear_road_stopped, smart_grid_anomaly, smart_grid_blackout
from edge_agent.stream import Plan, run
from tests.support.waiting import wait_until
from tests.system.split.alerts import found_by_one, found_in_log
from tests.system.split.fleet import AgentProcess, Cloud
from tests.system.split.pacing import paced_app

LOSS, DUPLICATES, DELAY_S = 0.20, 0.10, (0.0, 0.1)
OUTAGE_S = 30.0
STREAM_S = 33.0

# query on one device, its parts, its sink
QUERIES: list[tuple[Callable[[], Plan], str, str, str]] = [
    (linear_road_stopped.build, "stopped_roadside", "stopped_center", "stopped"),
    (linear_road_accidents.build, "accidents_roadside", "accidents_center", "accidents"),
    (smart_grid_blackout.build, "blackout_substation", "blackout_center", "blackouts"),
    (smart_grid_anomaly.build, "anomaly_substation", "anomaly_center", "anomalies"),
]


def test_four_queries_over_two_agents_each_find_what_one_process_finds(
    mosquitto_installed: None, tmp_path: Path
) -> None:
    began = time.monotonic()
    with Cloud(tmp_path) as cloud:
        link = cloud.link(1, loss=LOSS, duplicate=DUPLICATES, delay_s=DELAY_S)
        receivers_link = cloud.link(2, loss=LOSS, duplicate=DUPLICATES, delay_s=DELAY_S)
        senders: list[AgentProcess] = []
        receivers: list[AgentProcess] = []
        for _, sensing, finding, _ in QUERIES:
            app = paced_app(tmp_path, sensing, STREAM_S)
            senders.append(cloud.agent(sensing.replace("_", "-"), app, link))
            app = paced_app(tmp_path, finding, STREAM_S)
            receivers.append(cloud.agent(finding.replace("_", "-"), app, receivers_link))
        with ThreadPoolExecutor(len(QUERIES)) as pool:
            list(pool.map(AgentProcess.start, [*receivers, *senders]))
        print(f"started {time.monotonic()-began:.1f}")
        time.sleep(2)
        receivers_link.partitioned = True
        cut_at = time.monotonic()
        time.sleep(OUTAGE_S / 3)
        cloud.gateway.kill()
        cloud.gateway.start()
        time.sleep(max(0.0, cut_at + OUTAGE_S - time.monotonic()))
        assert all(agent.process.poll() is None for agent in [*receivers, *senders])
        receivers_link.partitioned = False
        print(f"healed {time.monotonic()-began:.1f}")
        for agent in [*senders, *receivers]:
            agent.ends_acknowledged(60)
            print(f"{agent.name} {time.monotonic()-began:.1f} {agent.output()}")
        log = cloud.log()
        for whole, _, finding, sink in QUERIES:
            expected = found_by_one(run(whole()), sink)
            assert found_in_log(log, finding.replace("_", "-"), sink) == expected
    verified = subprocess.run([sys.executable, "-m", "threadline", "log", "verify", str(log)], check=False)
    assert verified.returncode == 0
    print(f"done {time.monotonic()-began:.1f}")

"""Agent, gateway, Mosquitto and translator die again and again, on a bad link: the log holds everything once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.system.delivery.account import check
from tests.system.delivery.kills import kill_and_restart, kill_seed
from tests.system.delivery.site import App, Cloud
from threadline.lossy_link import LossyLink

LOSS, DUPLICATES, DELAY_S = 0.20, 0.10, (0.0, 0.1)
MANY = 50


def survive(folder: Path, kills: int, durable: bool) -> None:
    """Kill so many times and compare the log with the program's journal."""
    random = Random(kill_seed())
    seed = random.randrange(1000)
    with (
        Cloud(folder) as cloud,
        LossyLink(cloud.gateway.address, loss=LOSS, duplicate=DUPLICATES, delay_s=DELAY_S, seed=seed) as link,
        App(folder, link.url, durable=durable) as app,
    ):
        services = [app, cloud.gateway, cloud.mosquitto, cloud.translator]
        died = kill_and_restart(services, kills, random, lives_s=(0.1, 1.6), away_s=(0.0, 1.0))
        app.captured(50)
        app.finish(120)
        account = check(cloud.log_folder, app)
        verify = [sys.executable, "-m", "threadline", "log", "verify", str(cloud.log_folder)]
        verified = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    assert verified.returncode == 0 and "sound" in verified.stdout, verified.stdout + verified.stderr
    lives = app.lives()
    resent_batches = sum(life.resent_batches for life in lives)
    resent_packets = sum(life.resent_packets for life in lives)
    print(f"{account} died={dict(died)} resent: {resent_batches} batches, {resent_packets} packets")
    assert sum(died.values()) == kills and min(died.values()) >= kills // 4
    assert account.crashes == died[app.name] == len(app.killed_at_ns)
    assert link.up.dropped > 0 and resent_packets > 0
    assert (link.up.duplicated > 0 and resent_batches > 0) or kills < MANY
    assert account.events > 20 * kills and account.named_missing == 0
    assert not durable or account.lost_at_kills == 0


@pytest.mark.parametrize("durable", [False, True], ids=["flushed", "durable"])
def test_eight_kills_lose_nothing_that_was_flushed(mosquitto_installed: None, tmp_path: Path, durable: bool) -> None:
    survive(tmp_path, 8, durable)


@pytest.mark.soak
@pytest.mark.parametrize("durable", [False, True], ids=["flushed", "durable"])
def test_fifty_kills_lose_nothing_that_was_flushed(mosquitto_installed: None, tmp_path: Path, durable: bool) -> None:
    survive(tmp_path, MANY, durable)


def test_an_agent_that_dies_right_after_each_start_tells_of_each_crash(cloud: Cloud, tmp_path: Path) -> None:
    with App(tmp_path, cloud.gateway_url) as app:
        for _ in range(3):
            app.kill()
            app.start()
        app.captured(20)
        app.finish()
        account = check(cloud.log_folder, app)
    assert account.crashes == 3

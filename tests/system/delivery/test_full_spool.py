"""A device that is away until its spool is full: the oldest go and are named exactly, or the program waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.system.delivery.account import check, gaps_of, logged
from tests.system.delivery.site import App, Cloud
from threadline.lossy_link import LossyLink

PAD = 400  # so that about 150 events fill the spool
GIVING_UP_S = 3.0
"""How long an agent with so small a spool may be busy with dropping: a few batches at a time, each time synced."""
SMALL: dict[str, Any] = {"spool_bytes": 64 << 10, "batch_age_s": 0.2, "pad": PAD, "rate": 400}


def is_heard(cloud: Cloud, app: App, more: int = 1) -> None:
    """Wait until so many records more are in the log."""
    before = len(logged(cloud.log_folder, app))
    wait_until(lambda: len(logged(cloud.log_folder, app)) >= before + more, f"{more} more records", every_s=0.1)


def stands_still(app: App) -> None:
    """Wait until the program has to wait."""

    def captures_nothing() -> bool:
        before = len(app.lives()[-1].captured)
        time.sleep(0.5)
        return before > 20 and len(app.lives()[-1].captured) == before

    wait_until(captures_nothing, "the program to wait", 20)


@pytest.mark.parametrize("acknowledged", [True, False], ids=["acknowledged", "unacknowledged"])
def test_the_oldest_are_dropped_and_a_gap_names_exactly_what_is_missing(
    acknowledged: bool, cloud: Cloud, tmp_path: Path
) -> None:
    with LossyLink(cloud.gateway.address) as link, App(tmp_path, link.url, **SMALL) as app:
        is_heard(cloud, app)
        if not acknowledged:  # what is logged from now on is dropped all the same, for all that the agent knows
            link.one_way = True
            app.captured(20)  # as much of it as fits into the window is heard
        link.partitioned = True
        app.captured(600)
        link.partitioned = link.one_way = False
        app.captured(20)
        app.finish()
        account = check(cloud.log_folder, app)
        gaps = gaps_of(logged(cloud.log_folder, app), app.lives()[-1].nonce)
    assert account.named_missing > 100 and account.events > 100
    assert all(gap.reason.startswith("dropped") and gap.batches and gap.events for gap in gaps)


def test_an_agent_that_dies_with_a_full_spool_names_what_is_missing_of_each_epoch(cloud: Cloud, tmp_path: Path) -> None:
    with LossyLink(cloud.gateway.address) as link, App(tmp_path, link.url, **SMALL) as app:
        is_heard(cloud, app)
        link.partitioned = True
        app.captured(400)
        for _ in range(2):
            app.kill()
            app.start()
            app.captured(60)
        link.partitioned = False
        app.captured(20)
        app.finish()
        account = check(cloud.log_folder, app, GIVING_UP_S)
    assert account.crashes == 2 and account.named_missing > 100


def test_a_program_that_would_rather_wait_misses_nothing(cloud: Cloud, tmp_path: Path) -> None:
    with (
        LossyLink(cloud.gateway.address) as link,
        App(tmp_path, link.url, when_full="block", status_s=0.3, **SMALL) as app,
    ):
        is_heard(cloud, app)
        link.partitioned = True
        stands_still(app)
        link.partitioned = False
        app.captured(100)
        app.finish()
        account = check(cloud.log_folder, app)
    assert account.named_missing == 0


def test_what_was_on_disk_when_a_waiting_program_died_is_not_lost(cloud: Cloud, tmp_path: Path) -> None:
    with (
        LossyLink(cloud.gateway.address) as link,
        App(tmp_path, link.url, when_full="block", durable=True, **SMALL) as app,
    ):
        is_heard(cloud, app)
        link.partitioned = True
        stands_still(app)
        app.kill()
        app.start()
        link.partitioned = False
        app.captured(50)
        app.finish()
        account = check(cloud.log_folder, app)
    assert account.crashes == 1 and account.named_missing == 0 and account.lost_at_kills == 0

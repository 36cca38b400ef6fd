"""Who is who: a device that was set up anew, and two that were given one name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edge_agent.status_file import read_status_file
from tests.support.waiting import wait_until
from tests.system.delivery.account import check
from tests.system.delivery.site import App, Cloud
from threadline.lossy_link import LossyLink


def test_a_reflashed_device_counts_anew_and_neither_of_its_lives_is_lost(cloud: Cloud, tmp_path: Path) -> None:
    app = App(tmp_path, cloud.gateway_url, count=100, rate=1000)
    for _ in range(2):
        with app:
            app.wait(30)
        shutil.rmtree(app.spool)
    first, second = app.lives()
    assert first.counter == second.counter == 1 and first.nonce != second.nonce
    assert f"agent counts its starts anew agent={app.settings.name} counter=1 shown=2" in cloud.translator.output()
    account = check(cloud.log_folder, app)
    assert account.events == len(first.captured) + len(second.captured)


def test_two_devices_of_one_name_are_reported_and_neither_loses_anything(cloud: Cloud, tmp_path: Path) -> None:
    # The gateway talks to whoever connected last, and tells the other one to connect again as soon as it sends: so they
    # take turns, answers reach the wrong one, and batches are sent again and again until one of the two is gone.
    with (
        LossyLink(cloud.gateway.address) as link,
        App(tmp_path, link.url) as one,
        App(tmp_path, link.url, name=one.settings.name, close_s=0.1) as other,
    ):
        reported = f"two devices use one name agent={one.settings.name}"
        wait_until(lambda: reported in cloud.translator.output(), "the translator to notice", 30)
        wait_until(lambda: any(knows_of_another(app) for app in (one, other)), "an agent to know", 30)
        other.stop()
        one.finish()
        other.close_s, other.count = 30.0, 1
        other.start()  # alone, with what it could not send
        other.wait(40)
        for app, namesake in ((one, other), (other, one)):
            check(cloud.log_folder, app, namesakes=[namesake])
            with pytest.raises(AssertionError, match="somebody else speaks in the name of"):
                check(cloud.log_folder, app)


def knows_of_another(app: App) -> bool:
    """What the agent says of itself."""
    return bool(read_status_file(str(app.spool))["duplicate_agent"])

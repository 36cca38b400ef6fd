"""A device that is away for longer than its batches wait, and one on a link that carries very little."""

from __future__ import annotations

from pathlib import Path

from tests.system.delivery.account import check, logged
from tests.system.delivery.site import App, Cloud
from threadline.lossy_link import LossyLink

BATCH_AGE_S = 0.1
SLOW_BPS = 25_000


def test_a_device_that_was_offline_for_many_batches_and_died_meanwhile_sends_all_of_them(
    cloud: Cloud, tmp_path: Path
) -> None:
    with (
        LossyLink(cloud.gateway.address) as link,
        App(tmp_path, link.url, batch_age_s=BATCH_AGE_S, rate=400) as app,
    ):
        app.captured(100)
        link.partitioned = True
        app.captured(400)  # for a second: ten times the age
        app.kill()
        app.start()  # and is still offline
        app.captured(200)
        link.partitioned = False
        app.finish()
        account = check(cloud.log_folder, app)
        batches = len({(entry.nonce, entry.seq) for entry in logged(cloud.log_folder, app)})
    assert account.crashes == 1 and account.events >= 600 and account.named_missing == 0
    assert batches >= 5


def test_a_link_of_25_kbit_per_second_carries_everything_and_is_not_flooded(cloud: Cloud, tmp_path: Path) -> None:
    with (
        LossyLink(cloud.gateway.address, rate_bps=SLOW_BPS, delay_s=(0.1, 0.2)) as link,
        App(tmp_path, link.url, rate=60, pad=16, count=300) as app,
    ):
        app.wait(60)
        account = check(cloud.log_folder, app)
        entries = logged(cloud.log_folder, app)
    batches = len({entry.seq for entry in entries})
    assert account.events == len(app.lives()[-1].captured) > 300
    assert link.up.forwarded < 2 * batches + 20, f"{link.up.forwarded} datagrams for {batches} batches"

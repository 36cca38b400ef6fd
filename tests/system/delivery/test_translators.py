"""A translator that is stopped and goes on beside its successor: only one of them ever writes."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.waiting import wait_until
from tests.system.delivery.account import check, logged
from tests.system.delivery.site import App, Cloud
from threadline.lab import TranslatorService


class Successor(TranslatorService):
    """A second translator for the same log; it is there when it waits for the first."""

    def is_ready(self) -> bool:
        return "waiting for a shard" in self.output()


def test_a_stopped_translator_that_goes_on_and_its_successor_write_everything_once(
    mosquitto_installed: None, tmp_path: Path
) -> None:
    with (
        Cloud(tmp_path) as cloud,
        Successor(tmp_path, cloud.mosquitto, name="successor") as successor,
        App(tmp_path, cloud.gateway_url, batch_age_s=0.2) as app,
    ):

        def count() -> int:
            return len(logged(cloud.log_folder, app))

        wait_until(count, "the first events")
        first = cloud.translator.process
        assert first is not None
        for _ in range(2):
            first.send_signal(signal.SIGSTOP)
            at = count()
            app.captured(150)
            assert count() == at, "nobody writes: the stopped one has the shards"
            first.send_signal(signal.SIGCONT)
            wait_until(lambda: count() > at + 100, "the stopped one to go on", every_s=0.1)  # noqa: B023
        first.send_signal(signal.SIGSTOP)
        app.captured(50)
        cloud.translator.kill()  # stopped as it is
        wait_until(lambda: "translator has its shards" in successor.output(), "the successor to take over")
        app.captured(50)
        app.finish()
        account = check(cloud.log_folder, app)
    assert account.named_missing == 0

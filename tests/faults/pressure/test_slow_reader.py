"""The reader of the log stops: the log grows to its bound, then the spools, then the programs wait. It comes back, and
everything arrives."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from math import log2
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collector.log import Backlog
from protocol.address import format_address
from tests.faults.pressure.follower import Follower
from tests.support.waiting import wait_until
from tests.system.delivery.account import check
from tests.system.delivery.site import App
from threadline.lab import GatewayService, Mosquitto, Service, SparkService, TranslatorService, free_port

SPOOL_BYTES = 64 << 10
WINDOW = 8


class Site:
    """Everything that a device needs, with a bound for the log; its reader is another's matter."""

    def __init__(self, folder: Path, most_bytes: int, stack: ExitStack) -> None:
        self.most_bytes = most_bytes
        mosquitto = stack.enter_context(Mosquitto(folder))
        self.gateway = stack.enter_context(GatewayService(folder, mosquitto))
        self._metrics_port = free_port()
        options = ("--max-unread-bytes", str(most_bytes), "--metrics", f"127.0.0.1:{self._metrics_port}")
        self.translator = stack.enter_context(TranslatorService(folder, mosquitto, *options))
        self.log_folder = self.translator.log_folder

    def metric(self, name: str) -> float:
        with urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        (value,) = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name.removesuffix("_total") == f"threadline_translator_{name}"
        ]
        return value

    def is_read(self) -> bool:
        """Something was logged, and the reader is not far behind."""
        return self.metric("batches") > 10 and self.unread_bytes() < self.most_bytes // 2 < self.logged_bytes()

    def logged_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.log_folder.rglob("*.arrows"))

    def unread_bytes(self) -> int:
        return Backlog(self.log_folder).unread().size_bytes


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def waits(app: App) -> bool:
    """Whether the program captures nothing any more."""
    before = len(app.lives()[-1].captured)
    time.sleep(0.3)
    return len(app.lives()[-1].captured) == before


def pressed(site: Site, apps: list[App], reader: Service, held_s: float, patience_s: float = 30.0) -> float:
    """Stop the reader until all programs wait, and for some time more; returns how long it takes from its return until
    everything is in the log and read."""
    assert reader.process is not None
    wait_until(site.is_read, "it to be read", patience_s, every_s=0.1)
    reader.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: site.unread_bytes() >= site.most_bytes, "the log to be full", patience_s, every_s=0.1)
        wait_until(lambda: site.metric("is_holding_back") == 1, "it to be noticed", patience_s, every_s=0.1)
        wait_until(lambda: all(waits(app) for app in apps), "the programs to wait", patience_s, every_s=0.1)
        full_bytes, held_back = site.unread_bytes(), site.metric("held_back")
        assert site.most_bytes <= full_bytes < site.most_bytes * 1.5
        time.sleep(held_s)
        assert site.unread_bytes() == full_bytes == site.metric("unread_bytes"), "nothing is taken, so nothing grows"
        assert all(size_bytes(app.spool) < 2 * SPOOL_BYTES for app in apps)
        # Each batch in flight is sent again, after 1 s at the least, and each time they wait twice as long: no storm.
        assert site.metric("held_back") - held_back <= len(apps) * WINDOW * (2 + log2(1 + held_s))
    finally:
        reader.process.send_signal(signal.SIGCONT)
    back_at = time.monotonic()
    wait_until(lambda: site.metric("is_holding_back") == 0, "the log to be read", 2 * patience_s, every_s=0.05)
    for app in apps:
        app.captured(50, patience_s)
        app.finish(2 * patience_s)
    wait_until(lambda: site.unread_bytes() == 0, "all to be read", 2 * patience_s, every_s=0.05)
    return time.monotonic() - back_at


def test_a_reader_that_stops_holds_the_devices_back_and_nothing_is_lost(
    mosquitto_installed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, 100_000, stack)
        reader = stack.enter_context(Follower(tmp_path, site.log_folder))
        gateway = format_address(*site.gateway.address)
        small: dict[str, Any] = {"spool_bytes": SPOOL_BYTES, "when_full": "block", "window": WINDOW, "batch_age_s": 0.2}
        apps = [stack.enter_context(App(tmp_path, gateway, rate=300, pad=400, **small)) for _ in range(2)]
        recovery_s = pressed(site, apps, reader, held_s=1.0)
        held_s = site.metric("held_seconds")
        accounts = [check(site.log_folder, app) for app in apps]
    assert all(account.named_missing == 0 and account.events > 100 for account in accounts)
    output = site.translator.log.read_text()
    assert output.count("nothing is taken until more of the log is read") == output.count("batches are taken again")
    assert "reader=follower (if it will not come back, delete" in output
    with capsys.disabled():
        print(f"\nheld back for {held_s:.1f} s; {recovery_s:.1f} s after the reader's return all had arrived")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_spark_job_that_stops_holds_the_devices_back_and_catches_up(
    mosquitto_installed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, 2_000_000, stack)
        spark = stack.enter_context(SparkService(tmp_path, site.log_folder, "--trigger", "200ms"))
        gateway = format_address(*site.gateway.address)
        small: dict[str, Any] = {"spool_bytes": SPOOL_BYTES, "when_full": "block", "window": WINDOW, "batch_age_s": 0.2}
        apps = [stack.enter_context(App(tmp_path, gateway, rate=300, pad=400, **small)) for _ in range(4)]
        recovery_s = pressed(site, apps, spark, held_s=20.0, patience_s=120.0)
        held_s = site.metric("held_seconds")
        accounts = [check(site.log_folder, app) for app in apps]
    assert all(account.named_missing == 0 and account.events > 100 for account in accounts)
    with capsys.disabled():
        print(f"\nheld back for {held_s:.1f} s; {recovery_s:.1f} s after Spark's return all had arrived")

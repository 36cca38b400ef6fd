"""A disk that is full for a while, on the device and on the server: nothing breaks, and nothing has to be restarted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.system.delivery.account import check, logged
from tests.system.delivery.site import App, Cloud
from threadline.lab import Service
from threadline.lossy_link import LossyLink

FillUp = Callable[[], Callable[[], object]]
"""Makes a disk full; what it returns makes room again."""


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[FillUp]:
    """A file system of its own, filled up by a file that can be deleted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")

    def fill_up() -> Callable[[], object]:
        ballast = folder / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
        return ballast.unlink

    try:
        yield fill_up
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def limited(service: Service, size_bytes: int) -> FillUp:
    """No file of the service may grow beyond a size: what any user can do to a process of his own."""

    def limit(soft: int) -> object:
        return prlimit(service.pid, RLIMIT_FSIZE, (soft, RLIM_INFINITY))

    def fill_up() -> Callable[[], object]:
        limit(size_bytes)
        return lambda: limit(RLIM_INFINITY)

    return fill_up


def waits_for_room(app: App) -> None:
    wait_until(lambda: "records wait in memory" in app.output(), "a full disk")


@pytest.mark.parametrize("kind", ["small disk", "file size limit"])
def test_records_wait_in_memory_while_the_device_has_no_room(kind: str, cloud: Cloud, tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = tmp_path / "disk"
        fill_up = stack.enter_context(small_disk(disk, 1 << 20)) if kind == "small disk" else None
        link = stack.enter_context(LossyLink(cloud.gateway.address))
        app = stack.enter_context(App(tmp_path, link.url, pad=200, spool=str(disk / "spool"), rate=400))
        app.captured(50)
        link.partitioned = True
        make_room = (fill_up or limited(app, 64 << 10))()
        waits_for_room(app)
        app.captured(200)
        link.partitioned = False
        app.captured(100)
        make_room()
        wait_until(lambda: "records are written again" in app.output(), "room")
        app.captured(50)
        app.finish()
        account = check(cloud.log_folder, app)
    assert account.named_missing == 0 and account.events > 400


def test_a_durable_program_that_dies_on_a_full_disk_misses_nothing(cloud: Cloud, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with (
        small_disk(disk, 512 << 10) as fill_up,
        App(tmp_path, cloud.gateway_url, spool=str(disk / "spool"), durable=True) as app,
    ):
        app.captured(50)
        make_room = fill_up()
        waits_for_room(app)
        app.kill()
        app.start()
        make_room()
        app.captured(50)
        app.finish()
        account = check(cloud.log_folder, app)
    assert account.crashes == 1 and account.lost_at_kills == 0 and account.named_missing == 0


def test_memory_is_bounded_while_the_disk_is_full_and_a_gap_names_what_was_dropped(
    cloud: Cloud, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    settings: dict[str, Any] = {"spool": str(disk / "spool"), "memory_bytes": 64 << 10}
    with (
        small_disk(disk, 512 << 10) as fill_up,
        App(tmp_path, cloud.gateway_url, pad=200, rate=400, **settings) as app,
    ):
        app.captured(50)
        make_room = fill_up()
        waits_for_room(app)
        app.captured(500)
        make_room()
        app.captured(100)
        app.finish()
        account = check(cloud.log_folder, app)
    assert account.named_missing > 100


@pytest.mark.parametrize("kind", ["small disk", "file size limit"])
def test_the_translator_waits_for_room_and_goes_on(kind: str, mosquitto_installed: None, tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = tmp_path / "disk"
        fill_up = stack.enter_context(small_disk(disk, 4 << 20)) if kind == "small disk" else None
        cloud = stack.enter_context(Cloud(tmp_path, log_parent=disk))
        app = stack.enter_context(App(tmp_path, cloud.gateway_url, pad=200))
        wait_until(lambda: logged(cloud.log_folder, app), "the first events")
        make_room = (fill_up or limited(cloud.translator, 4096))()
        wait_until(lambda: "the log cannot be written" in cloud.translator.output(), "a full disk")
        app.captured(200)
        make_room()
        app.captured(50)
        app.finish()
        assert cloud.translator.process is not None and cloud.translator.process.poll() is None
        account = check(cloud.log_folder, app)
    assert account.named_missing == 0 and account.events > 250

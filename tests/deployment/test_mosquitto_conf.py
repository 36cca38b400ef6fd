"""The broker's configuration in docker-compose.yml, with the Mosquitto of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.deployment.files import ROOT, compose
from tests.support.peers import Recorder
from threadline.lab import Mosquitto, find_mosquitto


class AsMounted(Mosquitto):
    """Mosquitto with the files that the compose file mounts, each where it is mounted, below a folder of ours."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._root = folder / "root"
        for volume in compose()["services"]["mosquitto"]["volumes"]:
            source, target, *_ = volume.split(":")
            mounted = self._root / target.removeprefix("/")
            mounted.parent.mkdir(parents=True, exist_ok=True)
            if source.startswith("./"):
                text = (ROOT / source).read_text().replace(" /mosquitto/", f" {self._root}/mosquitto/")
                mounted.write_text(text.replace("listener 1883\n", f"listener {self.port} 127.0.0.1\n"))
            else:
                mounted.mkdir()
        if os.geteuid() == 0:
            with (self._root / "mosquitto/config/mosquitto.conf").open("a") as config:
                config.write("user root\n")

    def command(self) -> Sequence[str]:
        path = find_mosquitto()
        assert path is not None
        return [path, "-c", str(self._root / "mosquitto/config/mosquitto.conf")]

    @property
    def data(self) -> Path:
        return self._root / "mosquitto" / "data" / "mosquitto.db"


def test_the_broker_takes_the_settings_that_we_ship_and_keeps_its_data(tmp_path: Path) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed (Debian: apt install mosquitto)")
    with AsMounted(tmp_path) as mosquitto:
        with Recorder(mosquitto.port, "$SYS/broker/version", qos=0) as anybody:
            anybody.wait_for_count(1)
        assert mosquitto.stop() == 0
    assert mosquitto.data.exists(), "persistence is on only in the settings that we ship"
    assert "Warning" not in mosquitto.output().replace("Warning: Mosquitto should not be run as root", "")

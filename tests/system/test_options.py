"""What a gateway refuses to start with: one clear line, no traceback."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.conftest import NewDevice
from threadline.lab import GatewayService, Mosquitto, ServiceFailed, free_port


def run_gateway(*options: str) -> tuple[int, str]:
    """(exit code, standard error) of a gateway that is expected not to start."""
    harmless = ["--listen", "127.0.0.1:0", "--mqtt", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(
        [sys.executable, "-m", "threadline", "gateway", *harmless, *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stderr


def assert_refused(options: list[str], *words: str) -> None:
    code, text = run_gateway(*options)
    assert code == 2, text
    assert text.count("\n") == 1 and text.startswith("threadline: "), text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "nonsense"], ["--listen", "'nonsense'", "HOST:PORT"]),
        (["--mqtt", "localhost"], ["--mqtt", "'localhost'"]),
        (["--metrics", ":x"], ["--metrics", "':x'"]),
        (["--advertise", "239.1.2.3"], ["--advertise", "239.1.2.3"]),
        (["--advertise", "no-address:1885"], ["no-address"]),
        (["--listen", "0.0.0.0:0"], ["--listen", "0.0.0.0", "--open"]),
        (["--listen", "198.51.100.1:1884", "--open"], ["198.51.100.1", "cannot listen"]),
        (["--listen", "a..b:1884", "--open"], ["a..b", "cannot listen"]),
        (["--metrics", "a..b:9464"], ["a..b", "cannot serve metrics"]),
        (["--mqtt-version", "4"], ["--mqtt-version", "4", "3.1.1"]),
    ],
    ids=lambda value: " ".join(value[:2]) if str(value[0]).startswith("--") else "",
)
def test_a_bad_option_is_refused_with_one_clear_line(options: list[str], words: list[str]) -> None:
    assert_refused(options, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["cannot read"]),
        ("[topics\n1 = 2", ["is not TOML"]),
        ('[topics]\n1 = "plant/#"', ["'plant/#'", "not a topic name"]),
    ],
)
def test_a_bad_file_of_predefined_topics_is_refused_with_one_clear_line(
    content: str | None, words: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "topics.toml"
    if content is not None:
        path.write_text(content)
    assert_refused(["--predefined", str(path)], "topics.toml", *words)


def test_a_state_folder_that_cannot_be_used_is_refused_with_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert_refused(["--state", str(file)], str(file))
    assert_refused(["--state", str(file / "below")], str(file))

    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "gateway.sqlite3").write_bytes(b"this is no database" * 500)
    assert_refused(["--state", str(damaged)], "gateway.sqlite3", "not a database")

    newer = tmp_path / "newer"
    newer.mkdir()
    with sqlite3.connect(newer / "gateway.sqlite3") as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    assert_refused(["--state", str(newer)], "another version", "99")


def test_what_another_gateway_uses_is_refused_with_one_clear_line(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, tmp_path: Path
) -> None:
    state = tmp_path / "gateway-state"
    assert state.is_dir()
    assert_refused(["--state", str(state)], "gateway-state", "another gateway")
    port = own_gateway.port
    assert_refused(["--listen", f"127.0.0.1:{port}"], str(port), "in use")
    metrics = own_gateway.metrics_port
    assert_refused(["--metrics", f"127.0.0.1:{metrics}"], str(metrics), "in use")
    device(own_gateway).connect()


def test_a_damaged_state_file_is_refused_with_one_clear_line(own_gateway: GatewayService, device: NewDevice) -> None:
    device(own_gateway, "dev").connect(clean=False).register("a/b")
    own_gateway.stop()
    with sqlite3.connect(own_gateway.log.parent / "gateway-state" / "gateway.sqlite3") as file:
        file.execute("DROP TABLE topic")
    with pytest.raises(ServiceFailed) as failure:
        own_gateway.start()
    assert "ended with 2" in str(failure.value)
    assert "gateway.sqlite3 is damaged (topic is not there)" in str(failure.value)
    assert "Traceback" not in str(failure.value)

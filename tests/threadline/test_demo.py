"""The demo as a user runs it, on both brokers: it checks itself and says so with its exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from threadline.lab import find_mosquitto


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "threadline", "demo", *options], capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.timeout(300)
def test_the_demo_holds_on_mosquitto() -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed (Debian: apt install mosquitto)")
    result = demo()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "MQTT broker: mosquitto" in result.stdout
    assert "240 of 240 readings arrived" in result.stdout
    assert "22 accidents found, those that were planted" in result.stdout
    assert "Everything held" in result.stdout


def test_the_demo_holds_on_the_embedded_broker_and_says_that_it_is_used() -> None:
    result = demo("--embedded", "--without-spark")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Using the embedded MQTT broker, amqtt (as asked)." in result.stdout
    assert "240 of 240 readings arrived" in result.stdout

"""Real services for the system tests: one Mosquitto and one gateway for all tests that do not harm them, and fresh
ones for those that do. Everything is stopped when a test ends, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from protocol.mqttsn import Disconnect
from tests.support.peers import Device, Recorder
from threadline.lab import GatewayService, Mosquitto, find_mosquitto

PREDEFINED = """
[topics]
1 = "plant/alarm"
2 = "plant/level"

[clients.pump-7]
3 = "plant/pumps/7"
"""

NewDevice = Callable[..., Device]
NewRecorder = Callable[..., Recorder]


@pytest.fixture(scope="session")
def mosquitto_installed() -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed (Debian: apt install mosquitto)")


@pytest.fixture(scope="session")
def predefined_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predefined") / "topics.toml"
    path.write_text(PREDEFINED)
    return path


@pytest.fixture(scope="session")
def mosquitto(mosquitto_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """The broker of all tests that leave it running."""
    with Mosquitto(tmp_path_factory.mktemp("shared-mosquitto")) as service:
        yield service


@pytest.fixture(scope="session")
def gateway(
    mosquitto: Mosquitto, predefined_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayService]:
    """The gateway of all tests that leave it running."""
    folder = tmp_path_factory.mktemp("shared-gateway")
    with GatewayService(folder, mosquitto, "--predefined", str(predefined_file)) as service:
        yield service


@pytest.fixture
def own_mosquitto(mosquitto_installed: None, tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that the test may stop, kill and start again."""
    with Mosquitto(tmp_path) as service:
        yield service


@pytest.fixture
def own_gateway(own_mosquitto: Mosquitto, tmp_path: Path) -> Iterator[GatewayService]:
    """A gateway that the test may stop, kill and start again."""
    with GatewayService(tmp_path, own_mosquitto) as service:
        yield service


@pytest.fixture
def device() -> Iterator[NewDevice]:
    """Makes devices: `device(gateway)` or `device(gateway, "its-client-id")`."""
    with ExitStack() as stack:

        def new(gateway: GatewayService, client_id: str = "") -> Device:
            made = stack.enter_context(Device(gateway.address, client_id))
            stack.callback(_say_goodbye, made)
            return made

        yield new


def _say_goodbye(device: Device) -> None:
    with suppress(OSError):
        device.send(Disconnect())


@pytest.fixture
def recorder() -> Iterator[NewRecorder]:
    """Makes recorders: `recorder(mosquitto, "filter", ...)`."""
    with ExitStack() as stack:

        def new(broker: Mosquitto, *filters: str, qos: int = 2) -> Recorder:
            return stack.enter_context(Recorder(broker.port, *filters, qos=qos))

        yield new

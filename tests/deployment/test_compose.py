"""docker-compose.yml, as far as can be told without Docker: it is one by the schema, its commands are commands of ours,
they are those of `threadline lab`, and nothing can be reached that should not be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from edge_agent.cli import _parser
from tests.deployment.files import COMPOSE, ROOT, compose, stages
from threadline.cli import app
from threadline.lab import Mosquitto, find_mosquitto
from threadline.live_lab import LabOptions, Services

OURS = ("gateway", "translator", "spark", "collector", "agent-center", "agent-roadside")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = compose()["services"]
    return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Services:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed (Debian: apt install mosquitto)")
    return Services.of(LabOptions(), tmp_path_factory.mktemp("lab"))


def given(command: Sequence[str]) -> dict[str, Any]:
    """The options of one of our commands, as the program itself understands them. Its own error, if it does not."""
    program, *arguments = command
    if program == "threadline-agent":
        parsed = vars(_parser().parse_args(arguments))
        usual = vars(_parser().parse_args(["run", "no app"]))
        return {"command": "run"} | {name: value for name, value in parsed.items() if value != usual[name]}
    assert program == "threadline"
    name, *options = arguments
    context = get_command(app).commands[name].make_context(name, options)  # type: ignore[attr-defined]
    said = [each for each in context.params if context.get_parameter_source(each).name == "COMMANDLINE"]
    return {"command": name} | {each: context.params[each] for each in said}


def as_installed(command: Sequence[str]) -> list[str]:
    """A command of the lab as it is called where it is installed."""
    programs = {"threadline": "threadline", "edge_agent.cli": "threadline-agent"}
    assert command[:2] == [sys.executable, "-m"]
    return [programs[command[2]], *command[3:]]


def place(value: Any, name: str, service: dict[str, Any]) -> str | None:
    """Where something is, in words that mean the same in all containers; None if an option is about something else."""
    text = str(value).removeprefix("sqlite:///")
    if text.startswith("/"):
        mounted = (volume.split(":") for volume in service["volumes"])
        [(source, target)] = [(source, target) for source, target, *_ in mounted if text.startswith(target)]
        return f"{source}:{text.removeprefix(target)}"
    host, colon, port = text.rpartition(":")
    if colon and port.isdigit():
        return f"{name if host in ('0.0.0.0', '127.0.0.1') else host}:{port}"
    return None


def test_it_is_a_compose_file() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_the_services_of_the_lab(services: dict[str, Any], lab: Services) -> None:
    parts = lab.parts()
    assert list(services) == [part.name for part in parts]
    for part in parts:
        needed = services[part.name].get("depends_on", {})
        assert sorted(needed) == sorted(part.needs)
        assert all(how == {"condition": "service_healthy"} for how in needed.values())


def test_it_runs_the_commands_of_the_lab(services: dict[str, Any], lab: Services) -> None:
    """The same options with the same values. Addresses and paths differ, but what is one place there is one here."""
    places: set[tuple[str, str]] = set()
    for part in lab.parts():
        if isinstance(part.service, Mosquitto):
            places.add((part.service.address, "mosquitto:1883"))
            continue
        there = given(as_installed(part.service.command()))
        here = given(services[part.name]["command"])
        if part.name in ("gateway", "collector"):
            assert here.pop("open_") is True
        assert list(there) == list(here), part.name
        for option, value in there.items():
            where = place(here[option], part.name, services[part.name])
            if where is None:
                assert here[option] == value, f"{part.name}: {option}"
            else:
                places.add((str(value), where))
    assert len({there for there, _ in places}) == len({here for _, here in places}) == len(places), sorted(places)


def test_what_is_mounted_as_apps_are_the_lab_s_apps(services: dict[str, Any], lab: Services) -> None:
    for agent in lab.agents:
        service = services[agent.name]
        assert "./examples/lab:/apps:ro" in service["volumes"]
        app_file = Path(given(service["command"])["app"])
        assert ROOT / "examples" / "lab" / app_file.name == Path(given(as_installed(agent.command()))["app"])


@pytest.mark.parametrize("name", OURS)
def test_services_of_ours_come_back_say_how_they_are_and_have_no_rights(name: str, services: dict[str, Any]) -> None:
    service = services[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
    assert service["build"]["target"] == service["image"].removeprefix("threadline-")
    assert not {"privileged", "user", "network_mode"} & set(service)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("gateway", "server"), ("translator", "server"), ("collector", "server"), ("spark", "spark"),
        ("agent-center", "device"), ("agent-roadside", "device"),
    ],
)  # fmt: skip
def test_each_role_has_its_image(name: str, target: str, services: dict[str, Any]) -> None:
    build = services[name]["build"]
    assert build == {"context": ".", "dockerfile": "docker/Dockerfile", "target": target}
    assert target in stages(ROOT / build["dockerfile"])


@pytest.mark.parametrize("name", OURS)
def test_volumes_are_known_and_their_places_belong_to_the_user(name: str, services: dict[str, Any]) -> None:
    service, volumes = services[name], compose()["volumes"]
    made = stages(ROOT / "docker" / "Dockerfile")[service["build"]["target"]].of("RUN")[0].split()
    written = {str(path) for path in given(service["command"]).values() if str(path).startswith("/var/")}
    for volume in service["volumes"]:
        source, target, *_ = volume.split(":")
        if source.startswith("./"):
            assert (ROOT / source).exists() and volume.endswith(":ro")
        else:
            assert source in volumes and target in made
            written.discard(target)
    assert not written, f"{written} would not outlive the container"


def test_whoever_reads_the_store_may_write_beside_it(services: dict[str, Any]) -> None:
    """A reader of a store in WAL mode takes part in the locks of the -shm file."""
    for name in ("spark", "collector"):
        assert "store:/var/lib/threadline/store" in services[name]["volumes"]
        assert given(services[name]["command"])["store"].startswith("sqlite:////var/lib/threadline/store/")


def test_only_the_api_and_the_gateway_can_be_reached_and_only_from_this_machine(services: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:1884:1884/udp"], "collector": ["127.0.0.1:8080:8080"]}


def test_devices_cannot_reach_the_broker_and_the_broker_nothing_outside(services: dict[str, Any]) -> None:
    networks = compose()["networks"]
    assert services["mosquitto"]["networks"] == ["cloud"] and networks["cloud"] == {"internal": True}
    for name in ("agent-center", "agent-roadside"):
        assert services[name]["networks"] == ["devices"]


def test_images_of_others_have_a_version(services: dict[str, Any]) -> None:
    for service in services.values():
        if "build" not in service:
            _, _, version = service["image"].partition(":")
            assert version.count(".") == 2


@pytest.mark.parametrize("name", ["agent-center", "agent-roadside"])
def test_agents_ask_for_their_status_as_one_can(name: str, services: dict[str, Any]) -> None:
    [kind, test] = services[name]["healthcheck"]["test"]
    asked, _, _ = test.partition(" | ")
    program, *arguments = asked.split()
    assert kind == "CMD-SHELL" and program == "threadline-agent"
    assert _parser().parse_args(arguments).spool == given(services[name]["command"])["spool"]

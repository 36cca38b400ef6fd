"""The part of requirements.lock that a role needs, hashes and all.

The lock holds everything that any role, the tests and the benchmarks need. It also says of each package who asked for
it: so what a role needs is what its extras name, and whatever was asked for by something that it needs.

    python role_requirements.py server spark     # the device's packages and those of the extras server and spark
    python role_requirements.py --only hatchling # nothing but this and what it needs
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Locked(NamedTuple):
    """An entry of the lock. A package has several if its version depends on Python's."""

    name: str
    text: str
    asked_for_by: frozenset[str]


def entries(lock: str) -> Iterator[Locked]:
    """All entries of a lock that uv has written, comments left out."""
    for block in re.split(r"\n(?=[a-z0-9])", lock):
        lines = [line for line in block.splitlines() if not line.lstrip().startswith("#")]
        comments = [line.strip(" #") for line in block.splitlines() if line.startswith("    #")]
        if lines and comments:
            by = frozenset(_name(text.removeprefix("via").strip()) for text in comments if text != "via")
            yield Locked(_name(lines[0]), "\n".join(lines), by)


def needed(locked: Iterable[Locked], wanted: Iterable[str]) -> list[Locked]:
    """What is wanted, and all that it leads to."""
    found, locked = set(wanted), list(locked)
    while more := {each.name for each in locked if each.asked_for_by & found} - found:
        found |= more
    missing = found - {each.name for each in locked}
    if missing:
        raise SystemExit(f"not in the lock: {', '.join(sorted(missing))}; `make lock` brings it up to date")
    return [each for each in locked if each.name in found]


def packages(pyproject: str, extras: Iterable[str]) -> set[str]:
    """What the project itself asks for."""
    project = tomllib.loads(pyproject)["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return {_name(requirement) for requirements in lists for requirement in requirements}


def _name(requirement: str) -> str:
    """`Some_Package[extra]>=1` is some-package."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, f"{requirement!r} names no package"
    return re.sub(r"[._-]+", "-", name[0]).lower()


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--only"]:
        wanted = set(arguments[1:])
    else:
        wanted = packages(Path("pyproject.toml").read_text(), arguments)
    for each in needed(entries(Path("requirements.lock").read_text()), wanted):
        print(each.text)


if __name__ == "__main__":
    main()

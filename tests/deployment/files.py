"""The files that describe a deployment, read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILES = sorted((ROOT / "docker").glob("**/*Dockerfile*"))


class Stage(NamedTuple):
    """A stage of a Dockerfile, with those that it builds on."""

    base: str
    steps: list[tuple[str, str]]

    def of(self, keyword: str) -> list[str]:
        """What follows a keyword, step by step."""
        return [text for word, text in self.steps if word == keyword]


def compose() -> dict[str, Any]:
    """The compose file, with what its parts have in common put in place."""
    found: dict[str, Any] = YAML(typ="safe").load(COMPOSE)
    return found


def stages(dockerfile: Path) -> dict[str, Stage]:
    """The stages of a Dockerfile by name."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, Stage] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            before = found.get(base)
            here = found[name] = Stage(before.base if before else base, list(before.steps) if before else [])
        else:
            here.steps.append((word, rest))
    return found

"""Finds the Java that Spark runs on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

LEAST = 17
_INSTALLED = Path("/usr/lib/jvm")


class NoJava(RuntimeError):
    """There is no Java that is new enough; the text says what to do."""


def find_java(environment: Mapping[str, str], installed: Path = _INSTALLED) -> Path:
    """The home of a Java that Spark can use: that of JAVA_HOME, that on the PATH, or one that the system has."""
    seen: list[str] = []
    for home in _homes(environment, installed):
        version = java_version(home)
        if version is not None and version >= LEAST:
            return home
        if version is not None:
            seen.append(f"{home} is Java {version}")
    found = f" ({', '.join(seen)})" if seen else ""
    raise NoJava(f"Spark needs Java {LEAST} or newer{found}: install the package openjdk-{LEAST}-jre-headless or newer")


def java_version(home: Path) -> int | None:
    """Which Java lives there: what it says itself in its `release` file, or when asked."""
    if not (home / "bin" / "java").is_file():
        return None
    try:
        text = (home / "release").read_text()
    except OSError:
        text = _asked(home / "bin" / "java")
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _asked(java: Path) -> str:
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _homes(environment: Mapping[str, str], installed: Path) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    if installed.is_dir():
        yield from sorted(each for each in installed.iterdir() if each.is_dir() and not each.name.startswith("."))

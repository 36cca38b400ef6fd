"""Which Java is taken, of fake ones in folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.java import NoJava, find_java, java_version


def java_home(home: Path, release: str | None = None, says: str = "") -> Path:
    """A Java that says in a file, or only when it is asked, which one it is."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{release}"\n')
    return home


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("25.0.1", 25)])
def test_versions_as_java_writes_them(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(java_home(tmp_path / "told", text)) == version
    assert java_version(java_home(tmp_path / "asked", says=f'openjdk version "{text}" 2025-04-15')) == version


def test_what_does_not_say_what_it_is_is_no_java(tmp_path: Path) -> None:
    assert java_version(java_home(tmp_path / "mute", says="hello")) is None
    assert java_version(tmp_path / "nothing") is None


def test_java_home_comes_first_then_the_path_then_what_is_installed(tmp_path: Path) -> None:
    installed = tmp_path / "jvm"
    last = java_home(installed / "b", "25")
    java_home(installed / "a", "11")
    on_path = java_home(tmp_path / "on-path", "21")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(on_path / "bin" / "java")
    home = java_home(tmp_path / "home", "17")
    everything = {"JAVA_HOME": str(home), "PATH": str(tmp_path / "bin")}
    assert find_java(everything, installed) == home
    assert find_java({**everything, "JAVA_HOME": ""}, installed) == on_path
    assert find_java({"PATH": ""}, installed) == last


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", "1.8.0_392")
    new = java_home(tmp_path / "jvm" / "new", "17.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path / "jvm") == new


def test_without_any_the_package_to_install_is_named(tmp_path: Path) -> None:
    java_home(tmp_path / "jvm" / "old", "11.0.2")
    with pytest.raises(NoJava, match=r"Java 17 or newer \(.*old is Java 11\).* openjdk-17-jre-headless or newer"):
        find_java({"PATH": ""}, tmp_path / "jvm")
    with pytest.raises(NoJava, match="openjdk-17-jre-headless"):
        find_java({"PATH": ""}, tmp_path / "none")

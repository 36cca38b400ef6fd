"""Compile the stream engine and the queries with mypyc into build/fast, and test what was compiled.

build/fast is a copy of the packages with the extension modules next to their sources: whoever puts it first on the path
gets the compiled engine, everybody else the plain one. Nothing is done when the sources, the tests and the tools are as
they were. A failed build says so and leaves the last good one alone.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.machinery
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAST = ROOT / "build" / "fast"
# Copied, and of these compiled: the engine, the queries, and the records that the engine makes.
PACKAGES = ("edge_agent", "protocol")
COMPILED = ("edge_agent/stream/**/*.py", "edge_agent/queries/**/*.py", "protocol/records.py")
# Not compiled: the packages' own files only import; the builder checks what users give it before compiled code would
# refuse it; a list that the feeder extends by a generator must keep what came before the generator raised.
PLAIN = ("__init__.py", "builder.py", "feeder.py")
TESTS = ("tests/edge_agent/stream", "tests/edge_agent/queries")


class Unbuildable(Exception):
    """There is no compiler here, or it refused; says why and what would help."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-tests", action="store_true", help="build only")
    arguments = parser.parse_args()
    try:
        build()
    except Unbuildable as error:
        sys.exit(f"fast: {error}")
    if not arguments.no_tests:
        sys.exit(run_tests())


def build() -> None:
    """Bring build/fast up to date; whoever comes meanwhile waits for it."""
    FAST.parent.mkdir(exist_ok=True)
    with (FAST.parent / "fast.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build()


def _build() -> None:
    state = _source_state()
    if _read(FAST / ".built") == state:
        return
    _need_compiler()
    fresh = ROOT / "build" / "fast.new"
    shutil.rmtree(fresh, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, fresh / package, ignore=shutil.ignore_patterns("__pycache__"))
    modules = compiled_modules(fresh)
    print(f"fast: compiling {len(modules)} modules", flush=True)
    done = subprocess.run(
        [sys.executable, "-P", __file__, *modules], cwd=fresh, env={**os.environ, "FAST_STEP": "compile"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Unbuildable(f"mypyc failed:\n{done.stdout.strip()}")
    missing = [module for module in modules if not _extension(fresh / module).exists()]
    if missing:
        raise Unbuildable(f"mypyc made nothing of {', '.join(missing)}")
    shutil.rmtree(fresh / "c")
    (fresh / ".built").write_text(state)
    shutil.rmtree(FAST, ignore_errors=True)
    fresh.rename(FAST)


def compiled_modules(folder: Path) -> list[str]:
    """The files to compile, relative to `folder`."""
    found = (path for pattern in COMPILED for path in folder.glob(pattern) if path.name not in PLAIN)
    return sorted(str(path.relative_to(folder)) for path in found)


def run_tests() -> int:
    """Run the engine's tests on build/fast; the plugin refuses if they would see the plain source."""
    state = _state([*_python_files(PACKAGES), *_python_files(("tests",)), Path(__file__).with_name("compiled_only.py")])
    stamp = FAST / ".tested"
    if _read(stamp) == state:
        return 0
    path = os.pathsep.join([str(FAST), str(ROOT)])
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-n", "2", "-p", "scripts.compiled_only",
               "-o", "pythonpath=build/fast .", "-o", "cache_dir=build/fast/.pytest_cache", *TESTS]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False)
    if done.returncode == 0:
        stamp.write_text(state)
    return done.returncode


# --- the compiler -------------------------------------------------------------------------


def _need_compiler() -> None:
    missing = _missing_packages()
    if missing and shutil.which("apt-get"):
        as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        print(f"fast: installing {' '.join(missing)}", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for step in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
            command = [*as_root, "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *step]
            try:
                subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            except OSError:
                break
        missing = _missing_packages()
    if missing:
        raise Unbuildable(
            f"cannot compile: {' and '.join(missing)} not installed and could not be fetched; the plain source works"
        )


def _missing_packages() -> list[str]:
    compiler = (sysconfig.get_config_var("CC") or "gcc").split()[0]
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    missing = [] if shutil.which(compiler) or shutil.which("gcc") else ["gcc", "libc6-dev"]
    return missing if headers.exists() else [*missing, "python3-dev"]


def _compile(modules: list[str]) -> None:
    """Runs in the copy: generate the C code, compile it, put the extension modules next to the sources."""
    from mypyc.build import mypycify
    from setuptools import setup

    # No configuration file: that of the checkout would lead mypy from the copy back to the checkout.
    options = ["--config-file=", "--explicit-package-bases", "--cache-dir=c/mypy"]
    extensions = mypycify([*options, *modules], opt_level="3", debug_level="0", target_dir="c", group_name="threadline")
    setup(
        name="threadline-fast",
        packages=[],
        ext_modules=extensions,
        script_args=["--quiet", "build_ext", "--inplace", "--build-temp", "c", "--build-lib", "c/lib"],
    )


# --- what was built from what -------------------------------------------------------------


def _source_state() -> str:
    return _state([*_python_files(PACKAGES), Path(__file__)])


def _python_files(folders: Iterable[str]) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _state(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for text in (sys.version, sys.platform, importlib.metadata.version("mypy")):
        digest.update(text.encode())
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _extension(source: Path) -> Path:
    return source.with_suffix(importlib.machinery.EXTENSION_SUFFIXES[0])


def _read(stamp: Path) -> str | None:
    return stamp.read_text() if stamp.exists() else None


if __name__ == "__main__":
    if os.environ.get("FAST_STEP") == "compile":
        _compile(sys.argv[1:])
    else:
        main()

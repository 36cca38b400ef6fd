"""A pytest plugin for `make fast`: refuses to run unless what should be compiled is what gets imported."""

from __future__ import annotations

import importlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from scripts import fast


def pytest_configure() -> None:
    for file in fast.compiled_modules(fast.ROOT):
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        origin = Path(module.__file__ or "")
        if not origin.is_relative_to(fast.FAST) or not origin.name.endswith(tuple(EXTENSION_SUFFIXES)):
            raise pytest.UsageError(f"{module.__name__} is not the compiled one but {origin}")

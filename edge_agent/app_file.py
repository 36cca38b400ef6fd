"""App files: a Python file that defines `build() -> Plan` and/or `main(agent)`.

The file is loaded as a module named like the file, so that its functions are called "cars:is_standing" in plans and
errors wherever the file lies. Whatever goes wrong in it becomes an `AppError` of one line that says where; the
exception itself is the error's cause.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_agent.stream import Plan

# A name that an app file has may be taken by another app file, but by no app file if anything else has it.
_loaded: dict[str, ModuleType] = {}


class AppError(Exception):
    """An app file that cannot be used."""


class App:
    """A loaded app file."""

    def __init__(self, path: Path, module: ModuleType) -> None:
        self.path = path
        self.module = module
        self.main: Callable[[Any], Any] | None = _function(path, module, "main")
        self._build: Callable[[], Any] | None = _function(path, module, "build")
        if self.main is None and self._build is None:
            raise AppError(f"{path} defines neither build() nor main(agent)")

    @property
    def has_plan(self) -> bool:
        """Whether there is a build()."""
        return self._build is not None

    def build(self) -> Plan:
        """A new plan, which has passed its own check."""
        from edge_agent.stream import Plan
        from protocol.plan import PlanError

        if self._build is None:
            raise AppError(f"{self.path} defines main(agent) only: there is no build() and so no plan")
        try:
            plan = self._build()
            if isinstance(plan, Plan):
                plan.document()
                return plan
        except PlanError as error:
            raise AppError(f"{_place(self.path, error)}: {error}") from error
        except (Exception, SystemExit) as error:
            raise AppError(f"{_place(self.path, error)}: build() raised {_raised(error)}") from error
        raise AppError(f"{self.path}: build() returned {_kind(plan)}, not a Plan")


def load(path: Path | str) -> App:
    """The app in a file. Its folder is searched for imports first, as if Python had been started with the file."""
    path = Path(path)
    if not path.is_file():
        raise AppError(f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}")
    module = _new_module(path)
    known, search = sys.modules.get(module.__name__), list(sys.path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[module.__name__] = module  # dataclasses and pickle look their module up
    try:
        _run(path, module)
        app = App(path, module)
    except BaseException as error:
        sys.path[:] = search
        sys.modules.pop(module.__name__, None)
        if known is not None:
            sys.modules[module.__name__] = known
        if isinstance(error, SyntaxError) and error.filename == str(path):
            raise AppError(f"{path} line {error.lineno}: {error.msg}") from error
        if isinstance(error, AppError) or not isinstance(error, (Exception, SystemExit)):
            raise
        raise AppError(f"{_place(path, error)}: {_raised(error)}") from error
    _loaded[module.__name__] = module
    return app


def _new_module(path: Path) -> ModuleType:
    name = path.stem
    known = sys.modules.get(name)
    if name in sys.stdlib_module_names or (known is not None and known is not _loaded.get(name)):
        raise AppError(f"{path} has the name of the module {name!r}, which it would hide: give the file another name")
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def _run(path: Path, module: ModuleType) -> None:
    """Execute the file. It is compiled here and now: a cache written next to it could be older than it looks."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise AppError(f"{path} cannot be read: {error.strerror}") from error
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)


def _function(path: Path, module: ModuleType, name: str) -> Callable[..., Any] | None:
    found = getattr(module, name, None)
    if found is not None and not callable(found):
        raise AppError(f"{path}: {name} is {_kind(found)}, not a function")
    return found


def _place(path: Path, error: BaseException) -> str:
    """The last line of the app file that the error came through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path} line {lines[-1]}" if lines else str(path)


def _raised(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _kind(value: object) -> str:
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"

"""App files: what they may be, and what is said about those that cannot be used."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent import app_file
from edge_agent.app_file import AppError, load
from edge_agent.stream import Plan, StreamError, run

CARS = """\
from __future__ import annotations
from dataclasses import dataclass
from edge_agent.stream import Count, Plan

@dataclass
class Report:
    car: str
    speed: int

def is_standing(report: Report) -> bool:
    return report.speed == 0

class Road:
    @staticmethod
    def cars():
        return [(0, Report("a", 0)), (10, Report("b", 7)), (20, Report("a", 0))]

def build() -> Plan:
    plan = Plan("cars")
    stops = plan.source("reports", Road.cars).filter(is_standing).key_by(lambda report: report.car)
    stops.window(100).aggregate(Count()).sink("stops")
    return plan
"""


@pytest.fixture(autouse=True)
def _nothing_stays_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.setattr(app_file, "_loaded", {})
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str | bytes, name: str = "app_under_test.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_an_app_file_gives_its_plan(write: Callable[..., Path]) -> None:
    app = load(write(CARS))
    assert app.main is None
    plan = app.build()
    assert isinstance(plan, Plan)
    assert [delivery.payload for delivery in run(plan).deliveries] == [("a", 2)]
    assert app.build() is not plan


def test_functions_are_named_after_the_file_wherever_it_lies(write: Callable[..., Path]) -> None:
    for name in ("road/cars-2.py", "elsewhere/cars-2.py"):
        names = [node.functions for node in load(str(write(CARS, name))).build().document().nodes]
        assert names == [
            {"items": "cars-2:Road.cars"},
            {"function": "cars-2:is_standing"},
            {"key": "cars-2:build.<locals>.<lambda>"},
            {},
        ]


def test_main_is_handed_on(write: Callable[..., Path]) -> None:
    app = load(write("def main(agent):\n    return agent + 1\n"))
    assert app.main is not None
    assert app.main(1) == 2
    with pytest.raises(AppError, match=r"defines main\(agent\) only: there is no build\(\) and so no plan"):
        app.build()


def test_a_file_may_have_both(write: Callable[..., Path]) -> None:
    app = load(write(CARS + "\nasync def main(agent):\n    pass\n"))
    assert app.main is not None
    assert app.build().name == "cars"


def test_modules_beside_the_file_can_be_imported(write: Callable[..., Path]) -> None:
    write("def double(x):\n    return 2 * x\n", "beside_the_app.py")
    path = write(
        "from edge_agent.stream import Plan\nfrom beside_the_app import double\n"
        "def build():\n    plan = Plan('p')\n    plan.source('s').map(double).sink('k')\n    return plan\n"
    )
    assert load(path).build().document().nodes[1].functions == {"function": "beside_the_app:double"}


def test_a_file_is_read_anew_each_time(write: Callable[..., Path]) -> None:
    first = load(write(CARS))
    second = load(write(CARS.replace('Plan("cars")', 'Plan("lorries")')))
    assert (first.build().name, second.build().name) == ("cars", "lorries")


def test_values_of_an_app_can_be_pickled(write: Callable[..., Path]) -> None:
    report = load(write(CARS)).module.Report("a", 1)
    assert pickle.loads(pickle.dumps(report)) == report


def test_a_file_needs_no_suffix(write: Callable[..., Path]) -> None:
    assert load(write(CARS, "cars_without_suffix")).build().name == "cars"


BUILD = "from edge_agent.stream import Count, Plan\ndef build():\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "{path} defines neither build() nor main(agent)"),
        ("build = 3\n", "{path}: build is an int, not a function"),
        ("main = 'x'\n", "{path}: main is a str, not a function"),
        ("x = 1\ndef build(:\n", "{path} line 2: invalid syntax"),
        (b"x = '\xff'\n", "'utf-8' codec can't decode byte 0xff"),
        (b"x = 1\0\n", "source code string cannot contain null bytes"),
        (
            "\n\nimport no_such_module_here\n",
            "{path} line 3: ModuleNotFoundError: No module named 'no_such_module_here'",
        ),
        ("def f():\n    return 1 / 0\nf()\n", "{path} line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit(4)\n", "{path} line 1: SystemExit: 4"),
        ("raise ValueError('one\\n  two')\n", "{path} line 1: ValueError: one two"),
        ("import sys\nsys.path.clear()\ndel sys.modules[__name__]\nraise OSError\n", "{path} line 4: OSError"),
        ("assert False\n", "{path} line 1: AssertionError"),
        ("import broken_beside\n", "{path} line 1: SyntaxError: invalid syntax (broken_beside.py, line 1)"),
    ],
)
def test_a_file_that_cannot_be_loaded(write: Callable[..., Path], text: str | bytes, reason: str) -> None:
    write("def (\n", "broken_beside.py")
    path = write(text)
    before = list(sys.path)
    with pytest.raises(AppError) as caught:
        load(path)
    assert reason.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.stem not in sys.modules
    assert sys.path == before


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("pass", "{path}: build() returned nothing, not a Plan"),
        ("return 'plan'", "{path}: build() returned a str, not a Plan"),
        ("return [][1]", "{path} line 3: build() raised IndexError: list index out of range"),
        ("raise SystemExit", "{path} line 3: build() raised SystemExit"),
        ("return Plan('p')", "{path}: a plan needs a source or a receive, and this one has none"),
        (
            "plan = Plan('p'); plan.source('s'); return plan",
            "{path}: operator 's': nothing consumes its stream: add a sink or a send, or leave it out",
        ),
        (
            "plan = Plan('p')\n    plan.source('s').recent(-1).aggregate(Count(), name='c').sink('k')",
            "{path} line 4: operator 'c': size_ms must not be negative, but is -1",
        ),
        ("return Plan('p', provenance='magic')", "{path} line 3: "),
    ],
)
def test_a_build_that_fails(write: Callable[..., Path], body: str, reason: str) -> None:
    path = write(f"{BUILD}    {body}\n")
    app = load(path)
    with pytest.raises(AppError) as caught:
        app.build()
    assert str(caught.value).startswith(reason.format(path=path))
    assert "\n" not in str(caught.value)


def test_the_exception_is_the_cause(write: Callable[..., Path]) -> None:
    with pytest.raises(AppError) as caught:
        load(write("1 / 0\n"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_build_that_wants_arguments_says_so(write: Callable[..., Path]) -> None:
    with pytest.raises(AppError, match=r"build\(\) raised TypeError: build\(\) missing 1 required positional argument"):
        load(write("def build(size):\n    pass\n")).build()


def test_no_file_and_no_readable_file(tmp_path: Path) -> None:
    with pytest.raises(AppError, match=r"there is no file .*nowhere\.py"):
        load(tmp_path / "nowhere.py")
    with pytest.raises(AppError, match="is a folder, not a file"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["json.py", "tabnanny.py", "pytest.py", "edge_agent.py"])
def test_a_file_that_would_hide_a_module_is_refused(write: Callable[..., Path], name: str) -> None:
    before = dict(sys.modules)
    with pytest.raises(AppError, match=r"which it would hide: give the file another name"):
        load(write(CARS, name))
    assert sys.modules == before


def test_a_failed_reload_leaves_the_loaded_module(write: Callable[..., Path]) -> None:
    module = load(write(CARS)).module
    with pytest.raises(AppError):
        load(write("1 / 0\n"))
    assert sys.modules["app_under_test"] is module


def test_ctrl_c_is_no_error_of_the_app(write: Callable[..., Path]) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(write("raise KeyboardInterrupt\n"))
    assert "app_under_test" not in sys.modules


def test_errors_of_running_functions_name_them(write: Callable[..., Path]) -> None:
    plan = load(write(CARS.replace("report.speed == 0", "report.size == 0"), "cars_that_fail.py")).build()
    with pytest.raises(StreamError, match="cars_that_fail:is_standing raised AttributeError"):
        run(plan)

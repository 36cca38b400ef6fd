"""How times, values and texts are shown, and that no text can do anything but be shown."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.tree import Tree

from tests.threadline.commands.served import CLOCK, CLOCK_MS, NASTY, ROUNDS, Api, on_terminal
from threadline.commands.agents import agents
from threadline.commands.impact import impact
from threadline.commands.sinks import sinks
from threadline.commands.tail import tail
from threadline.commands.tasks import tasks
from threadline.printing import (
    Column,
    Printer,
    _layout,
    ago_text,
    counted,
    counting,
    duration_text,
    joined,
    printable,
    shortened,
    time_text,
    value_text,
)

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, ""), (0, "0 ms"), (279_000, "279000 ms"), (-5, "-5 ms"), (CLOCK_MS, CLOCK), (2**62, f"{2**62} ms")],
)
def test_a_time_is_written_as_one_only_if_it_can_be_one(ms: int | None, text: str) -> None:
    assert time_text(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        *((None, ""), (0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (-1_500, "-1.5 s"), (119_999, "120 s")),
        *((120_000, "2 min"), (7_199_999, "120 min"), (7_200_000, "2 h"), (10**12, "11574 d")),
    ],
)
def test_a_duration_has_the_unit_that_a_person_would_take(ms: int | None, text: str) -> None:
    assert duration_text(ms) == text


def test_what_was_just_now_is_not_in_the_future() -> None:
    assert [ago_text(ms, 10_000) for ms in (None, 10_500, 9_500, 4_000)] == ["", "now", "now", "6 s ago"]


def test_numbers_have_their_nouns() -> None:
    assert [counted(0, "edge"), counted(1, "edge"), counted(2_000, "vertex", "vertices")] == [
        *("0 edges", "1 edge", "2,000 vertices")
    ]


@given(st.text())
def test_what_cannot_be_seen_is_escaped_and_nothing_else(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert all(each in shown for each in text if each.isprintable())
    if text.isprintable():
        assert shown == text


@given(st.text(), st.integers(2, 40))
def test_a_text_is_shortened_to_the_room_that_there_is(text: str, most: int) -> None:
    text = printable(text)
    short = shortened(text, most)
    assert cell_len(short) <= most
    assert short == text or (short.endswith("…") and text.startswith(short[:-1].rstrip()[:1]))


def test_values_are_json_and_texts_are_themselves() -> None:
    values = (None, "a b", {"a": [1, None]}, 0, True)
    assert [value_text(each) for each in values] == ["", "a b", '{"a":[1,null]}', "0", "true"]


def test_colours_are_for_terminals(api: Api) -> None:
    arguments = ("trace", "depot/visited@1:0")
    assert "\x1b[31mincomplete\x1b[0m" in on_terminal(api, *arguments)
    assert "\x1b" not in api.run(*arguments).output
    assert "31m" not in on_terminal(api, *arguments, NO_COLOR="1")


@pytest.mark.parametrize("command", ["sinks", "trace"])
def test_texts_of_devices_do_nothing_to_a_terminal(api: Api, command: str) -> None:
    [result] = [each for each in api.run("sinks", "--agent", "prankster").stdout.split("\n") if "prankster" in each]
    assert "[red]x[/red]" in result and ":smile:" in result and "\\u202e" in result and "\\n" in result
    arguments = {"sinks": ["sinks", "--agent", "prankster"], "trace": ["trace", "prankster/al erts?#%2F@1:0"]}
    written = on_terminal(api, *arguments[command], columns=300)
    assert "[red]x[/red]" in written and ":smile:" in written
    assert not [each for each in COLOUR.sub("", written) if not each.isprintable() and each not in "\r\n"]
    assert not set(NASTY) & set(written) & {"\x9b", "\u202e"}


def test_lines_fit_a_terminal_and_ids_are_whole(api: Api) -> None:
    wide = api.run("sinks", "--agent", "prankster").stdout.splitlines()
    narrow = COLOUR.sub("", on_terminal(api, "sinks", "--agent", "prankster", columns=120)).splitlines()
    assert narrow[1].endswith("…") and len(narrow[1]) == 120 < len(wide[1])
    assert narrow[1].startswith(wide[1][:100])


class Terminal(io.TextIOWrapper):
    """What is written on one, in this process."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding)

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        self.seek(0)
        return COLOUR.sub("", self.read()).splitlines()


SHOWN: dict[str, tuple[Callable[[str], None], str]] = {
    "sinks": (lambda url: sinks(api=url, agent="center", limit=3), f"center/far-alerts@1:{ROUNDS}"),
    "impact": (lambda url: impact(["car/readings@1:3", "till/sales@1:0"], api=url), "office/sold@2:0"),
    "tasks": (lambda url: tasks(api=url, everything=True), "task:pi-1@1:64"),
    "selected": (lambda url: tasks(api=url, select="name,used.rate,transformation,begun_ms"), "task:pi-1@1:7"),
    "agents": (lambda url: agents(api=url), "prankster"),
    "agent": (lambda url: agents("pi-1", api=url), "pi-1"),
    "tail": (lambda url: tail(api=url, since="start", count=200), "car/readings@1:0"),
}


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
@pytest.mark.parametrize("command", SHOWN)
def test_no_line_is_wider_than_a_terminal(
    api: Api, monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    show, id = SHOWN[command]
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    show(api.url)
    lines = terminal.lines()
    assert max(map(cell_len, lines)) <= columns
    assert any(id in line.split() for line in lines)


@given(
    st.lists(st.tuples(st.builds(Column, st.just(""), st.booleans(), st.booleans()), st.integers(0, 50)), min_size=1),
    st.integers(10, 120),
)
def test_every_column_has_its_place_and_no_more_room_than_there_is(told: list[tuple[Column, int]], room: int) -> None:
    columns, widths = zip(*told, strict=True)
    layout = _layout(columns, widths, room)
    assert [place for line in layout for place, _ in line] == list(range(len(told)))
    for line in layout:
        for place, width in line:
            assert width == widths[place] or (columns[place].is_long and 10 <= width < widths[place])
        assert sum(width + (2 if place else 0) for place, width in line) <= room or len(line) == 1


def test_what_is_cut_shows_as_such_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal("ascii"))
    printer = Printer()
    printer.table([Column("ID"), Column("PAYLOAD", is_long=True)], [("a/b@1:0", "long " * 20)])
    printer.tree(Tree(joined("word " * 20)), 0)
    printer.line("\u00e9\u2026")
    lines = terminal.lines()
    assert [line[-3:] for line in lines[1:3]] == ["...", "..."] and max(map(len, lines)) == 60
    assert lines[3] == r"\xe9..."


def test_nothing_is_cut_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    Printer().table([Column("ID"), Column("PAYLOAD", is_long=True)], [("a/b@1:0", "x" * 200_000)])
    assert "x" * 200_000 in capsys.readouterr().out


def test_a_deep_tree_has_room_on_a_narrow_terminal(api: Api) -> None:
    written = COLOUR.sub("", on_terminal(api, "trace", "task:pi-1@1:64", "--all", columns=40))
    assert "data:chain/state-50" in written.replace("\r\n", "")


@pytest.mark.parametrize(("long_s", "is_shown"), [(-1.0, True), (60.0, False)])
def test_a_progress_bar_is_shown_if_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, long_s: float, is_shown: bool
) -> None:
    ours, its = pty.openpty()
    with os.fdopen(its, "w") as terminal, monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr("threadline.printing._LONG_S", long_s)
        patch.setattr(sys, "stderr", terminal)
        with counting("results") as count:
            count(1_000, 4_000)
            count(1_000, 4_000)
        terminal.write("the end")
        terminal.flush()
        written = b""
        while not written.endswith(b"the end"):
            written += os.read(ours, 65536)
    os.close(ours)
    assert ("2,000 results" in written.decode()) == is_shown


def test_output_that_a_locale_cannot_write_is_escaped(api: Api) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "threadline", "trace", "task:pi-1@1:64", "--api", api.url],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True,
    )  # fmt: skip
    assert done.stdout.isascii() and b"task:pi-1@1:63" in done.stdout

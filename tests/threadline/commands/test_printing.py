"""How times, values and texts are shown, and that no text can do anything but be shown."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.threadline.commands.served import CLOCK, CLOCK_MS, NASTY, ROUNDS, Api, on_terminal
from threadline.printing import ago_text, counted, counting, duration_text, printable, shortened, time_text, value_text

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
    for columns in (60, 100):
        lines = COLOUR.sub("", on_terminal(api, "sinks", "--agent", "center", "--limit", "3", columns=columns))
        assert f"center/far-alerts@1:{ROUNDS}" in lines
    wide = api.run("sinks", "--agent", "prankster").stdout.splitlines()
    narrow = COLOUR.sub("", on_terminal(api, "sinks", "--agent", "prankster", columns=120)).splitlines()
    assert narrow[1].endswith("…") and len(narrow[1]) == 120 < len(wide[1])
    assert narrow[1].startswith(wide[1][:100])


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

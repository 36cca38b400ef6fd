"""What the analyst's commands print: lines, tables and trees, coloured if a person looks at a terminal.

What devices have sent is printed too, so no text is trusted: it is never read as markup, and what is not printable (the
codes that a terminal would obey) is written as an escape. Into a file or a pipe lines go as they are; on a terminal
they fit its width: long texts are cut, columns that are left over go on a line of their own, and sentences are wrapped.
Ids are whole, so that they can be asked for.
"""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

STYLES = {
    "alive": "green",
    "expired": "dim",
    "open": "yellow",
    "complete": "green",
    "incomplete": "red",
    "online": "green",
    "asleep": "cyan",
    "offline": "red",
    "unknown": "dim",
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "ended": "dim",
    "retired": "yellow",
}
"""Of words for states."""
_WIDE = 10**9
_LEAST_LONG = 10
_CUT = "…"
_ASCII_CUT = "..."
_LONG_S = 0.3
_INDENT = 4
_LEAST_LEAF = 40
_BETWEEN = "  "
_WALL_CLOCK_MS = range(946_684_800_000, 7_258_118_400_000)  # the years 2000 to 2199

Part = str | tuple[str, str]
"""A piece of a line: a text, or one with its style."""


class Column(NamedTuple):
    """A column of a table. What may be long may be cut."""

    title: str
    is_number: bool = False
    is_long: bool = False


class _Cell(NamedTuple):
    """Where a column is in a line."""

    column: int
    width: int


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that a locale does not know: an escape for each, but what is cut shows as such."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].replace(_CUT, _ASCII_CUT)
    return text.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("threadline", _escaped)


class _Console(Console):
    """One that leaves it to its caller what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Printer:
    """Prints on stdout."""

    def __init__(self) -> None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="threadline")
        self.is_terminal = sys.stdout.isatty()
        self._console = _Console(
            file=sys.stdout,
            highlight=False,
            markup=False,
            emoji=False,
            width=None if self.is_terminal else _WIDE,
        )
        if self.is_terminal and self._console.options.ascii_only:
            self._console.width -= len(_ASCII_CUT) - len(_CUT)

    def line(self, *parts: Part) -> None:
        """One line, and out at once: somebody may be waiting for it."""
        for line in _wrapped(joined(*parts), self._console.width):
            self._print(line)
        sys.stdout.flush()

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Part]]) -> None:
        """A table without lines. On a terminal a row may take several lines, and what may be long is cut."""
        made = [[joined(cell) for cell in row] for row in rows]
        heads = [joined((column.title, "bold")) for column in columns]
        widths = [max(cell.cell_len for cell in cells) for cells in zip(heads, *made, strict=True)]
        layout = _layout(columns, widths, self._console.width)
        for cells in (heads, *made):
            for number, places in enumerate(layout):
                line = Text()
                for place, width in places:
                    cell = cells[place]
                    cell.truncate(width, overflow="ellipsis" if columns[place].is_long else "ignore")
                    pad = Text(" " * (width - cell.cell_len))
                    line += Text(_BETWEEN if place else "")
                    line += pad + cell if columns[place].is_number else cell + pad
                line.rstrip()
                if line or not number:
                    self._print(line)
        sys.stdout.flush()

    def tree(self, tree: Tree, depth: int) -> None:
        """A tree. However deep it is, its leaves have some room: then lines break."""
        self._console.width = max(self._console.width, _INDENT * depth + _LEAST_LEAF)
        self._console.print(tree)
        sys.stdout.flush()

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _layout(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[list[_Cell]]:
    """Which columns are on which line, and how wide each is. Behind the first line the others are indented. A column
    that is wider than the room, and must not be cut, is alone."""
    lines: list[list[_Cell]] = []
    spare = 0
    for place, (column, width) in enumerate(zip(columns, widths, strict=True)):
        least = min(width, _LEAST_LONG) if column.is_long else width
        needed = least + (len(_BETWEEN) if place else 0)
        if not lines or needed > spare:
            lines.append([])
            spare = room
        lines[-1].append(_Cell(place, least))
        spare -= needed
    for line in lines:
        spare = room - sum(cell.width + (len(_BETWEEN) if cell.column else 0) for cell in line)
        for number, (place, width) in enumerate(line):
            more = max(0, min(spare, widths[place] - width))
            line[number] = _Cell(place, width + more)
            spare -= more
    return lines


def _wrapped(text: Text, room: int) -> Iterator[Text]:
    """A text in lines of this width, broken between words. A word that is longer is alone."""
    line, *words = text.split(" ", allow_blank=True)
    for word in words:
        if line.cell_len + 1 + word.cell_len > room:
            line.rstrip()
            yield line
            line = Text(_BETWEEN) + word
        else:
            line = line + " " + word
    yield line


def joined(*parts: Part) -> Text:
    """Pieces as one text that a terminal shows as it is."""
    made = Text(no_wrap=True, overflow="ellipsis")
    for part in parts:
        text, style = part if isinstance(part, tuple) else (part, "")
        made.append(printable(text), style or None)
    return made


def printable(text: str) -> str:
    """A text on one line, with escapes for all that is no character that can be seen."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text
    )


def state_part(state: str | None) -> Part:
    """A word for a state in its colour."""
    return (state or "", STYLES.get(state or "", ""))


def value_text(value: Any, most: int | None = None) -> str:
    """A value as JSON, a text without its quotes; cut if it is longer than that."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if most is None else shortened(printable(text), most)


def shortened(text: str, most: int) -> str:
    """A text that takes so many places at the most."""
    return text if cell_len(text) <= most else set_cell_size(text, most - 1).rstrip() + _CUT


def time_text(ms: int | None) -> str:
    """A time. One that can be of a clock is written as such, one that cannot (of a recording) as what it is."""
    if ms is None:
        return ""
    if ms not in _WALL_CLOCK_MS:
        return f"{ms} ms"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(ms: float | None) -> str:
    """How long something took, in the unit that a person would take."""
    if ms is None:
        return ""
    shown, unit = _in_unit(ms)
    return f"{shown:.3g} {unit}" if abs(shown) < 100 else f"{shown:.0f} {unit}"


def ago_text(ms: int | None, now_ms: int) -> str:
    """How long ago a time is, roughly."""
    if ms is None:
        return ""
    shown, unit = _in_unit(now_ms - ms)
    return "now" if unit == "ms" else f"{shown:.0f} {unit} ago"


def _in_unit(ms: float) -> tuple[float, str]:
    hour = 3_600_000
    units = ((1, "ms", 1_000), (1_000, "s", 120_000), (60_000, "min", 2 * hour), (hour, "h", 48 * hour))
    of, unit = next(((of, unit) for of, unit, up_to in units if abs(ms) < up_to), (24 * hour, "d"))
    return ms / of, unit


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number of things: 1 reading, 2 readings."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


class Count(Protocol):
    """Takes how many more have come."""

    def __call__(self, more: int, total: int | None = None) -> None: ...


@contextmanager
def counting(what: str) -> Iterator[Count]:
    """A progress bar if something takes long and a person looks at stderr. It is gone afterwards."""
    if not sys.stderr.isatty():
        yield lambda more, total=None: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.completed:,} {task.description}"), BarColumn(), TimeElapsedColumn()
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(what, total=None)
    begun_s = time.monotonic()

    def count(more: int, total: int | None = None) -> None:
        progress.update(task, advance=more, total=total)
        if time.monotonic() - begun_s > _LONG_S:
            progress.start()

    try:
        yield count
    finally:
        progress.stop()

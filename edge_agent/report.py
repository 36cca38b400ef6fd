"""Deliveries for people and for programs: a block of text or a line of JSON, with the readings that caused each."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from edge_agent.stream.errors import shown
from protocol.records import Delivery, Late, Progress, Record, Skipped, SourcePayload

MOST_BITS = 10_000  # Python refuses to write longer numbers
MOST_DEPTH = 20


class LimitReached(BaseException):
    """As many deliveries as were asked for; no handler of user code's exceptions may stop it."""


class Printer:
    """Takes the records of a run: prints the deliveries with what caused them, counts the rest."""

    def __init__(
        self, write: Callable[[str], None], *, provenance: bool, as_json: bool, sinks: frozenset[str], limit: int | None
    ) -> None:
        self.delivered = self.shown = self.late = self.skipped = 0
        self.first_skipped: Skipped | None = None
        self.first_late: Late | None = None
        self._write = write
        self._provenance = provenance
        self._block = json_line if as_json else text_block
        self._sinks = sinks
        self._limit = limit

    def __call__(self, record: Record) -> None:
        match record:
            case Delivery():
                self._deliver(record)
            case Late():
                self.late += 1
                self.first_late = self.first_late or record
            case Skipped():
                self.skipped += 1
                self.first_skipped = self.first_skipped or record
            case SourcePayload() | Progress():
                pass

    def _deliver(self, delivery: Delivery) -> None:
        self.delivered += 1
        if self._sinks and delivery.stream.name not in self._sinks:
            return
        self.shown += 1
        self._write(self._block(delivery, self._provenance))
        if self.shown == self._limit:
            raise LimitReached

    def summary(self, taken: int) -> str:
        """One line of counts, and what the first late and the first skipped tuple were."""
        shown = f" ({self.shown} shown)" if self.shown != self.delivered else ""
        text = f"taken {taken}, delivered {self.delivered}{shown}, late {self.late}, skipped {self.skipped}"
        if self.first_late is not None:
            behind = self.first_late
            text += f"\nfirst late at {behind.stream.name!r}: {_shown(behind.payload)} {_when(behind.ts)}, "
            text += f"when time had reached {behind.watermark}"
        if self.first_skipped is not None:
            first = self.first_skipped
            text += f"\nfirst skipped at operator {first.operator!r}: {first.function} on {_shown(first.payload)}: "
            text += printable(first.error)
        return text


def text_block(delivery: Delivery, provenance: bool) -> str:
    """For people: what was delivered, then one line per reading."""
    lines = [f"{delivery.id}  {_when(delivery.ts)}", f"  {_shown(delivery.payload)}"]
    if provenance:
        count = len(delivery.origins)
        lines.append(f"  from {count} reading{'s' * (count != 1)}:")
    for origin in delivery.origins:
        said = (
            _shown(origin.payload) if isinstance(origin, SourcePayload) else f"({origin.kind.value} of another agent)"
        )
        lines.append(f"    {origin.id}  {_when(origin.ts)}  {said}")
    return "\n".join([*lines, "", ""])


def json_line(delivery: Delivery, provenance: bool) -> str:
    """For programs: all of it in one line."""
    line: dict[str, Any] = {
        "sink": delivery.stream.name,
        "id": str(delivery.id),
        "ts": delivery.ts,
        "payload": _plain(delivery.payload),
    }
    if provenance:
        line["sources"] = []
    for origin in delivery.origins:
        entry: dict[str, Any] = {"id": str(origin.id), "kind": origin.kind.value, "ts": origin.ts}
        if isinstance(origin, SourcePayload):
            entry["payload"] = _plain(origin.payload)
        line["sources"].append(entry)
    return json.dumps(line, allow_nan=False) + "\n"


def _plain(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """A payload as JSON has it; what JSON has no word for, and what contains itself, as its repr."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if (type(value) is int and value.bit_length() < MOST_BITS) or (type(value) is float and math.isfinite(value)):
        return value
    if len(inside) < MOST_DEPTH and id(value) not in inside:
        try:
            return _plain_parts(value, (*inside, id(value)))
        except Exception:
            return _shown(value)
    return _shown(value)


def _plain_parts(value: Any, inside: tuple[int, ...]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name), inside) for each in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _plain(each, inside) for name, each in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        entries = {key if isinstance(key, str) else _shown(key): each for key, each in value.items()}
        if len(entries) == len(value):
            return {key: _plain(each, inside) for key, each in entries.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, inside) for each in value]
    return _shown(value)


def _shown(value: Any) -> str:
    """A payload in one line, whatever it is."""
    return printable(shown(value, most=500))


def printable(text: str) -> str:
    """Nothing that moves the cursor."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _when(ts: int) -> str:
    """A timestamp; also as a date if it looks like one."""
    if 946_684_800_000 <= ts < 4_102_444_800_000:
        date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts)
        return f"at {ts} ({date:%Y-%m-%d %H:%M:%S}.{ts % 1000:03} UTC)"
    return f"at {ts}"

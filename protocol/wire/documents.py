"""Records that are rare and unlike each other: a plan, a gap, a status. Each is a map of its fields.

What a field may hold is said once, in a table, and checked when it is read: others compute with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.ids import StreamId
from protocol.records import Declared, End, Gap, Late, Lost, Received, Sketch, Skipped, Status
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer, names_of
from protocol.wire.values import decode

MOST_DOCUMENT_BYTES = 256 * 1024
_PACKER = Packer(strict=True, most_bytes=MOST_DOCUMENT_BYTES)
Check = Callable[[Any], Any]


def encode_document(record: Any, packer: Packer) -> bytes:
    """A record as bytes. What the user's values are is the packer's business, all else is ours and must fit."""
    fields = {name: getattr(record, name) for name in _FIELDS[type(record)]}
    if "payload" in fields:
        fields["payload"] = packer.encode(_named(fields["payload"]))
    if "tuples" in fields:
        fields["tuples"] = [(lost.name, lost.first, lost.last) for lost in fields["tuples"]]
    return _PACKER.encode(fields)


def _named(payload: Any) -> Any:
    """A NamedTuple as a dict, as which it arrives in other records as well."""
    names = names_of(type(payload)) if isinstance(payload, tuple) else ()
    return dict(zip(names, payload, strict=False)) if names else payload


def read_document(kind: type, data: bytes) -> Any:
    """The record again."""
    fields, checks = decode(data), _FIELDS[kind]
    try:
        return kind(**{name: checks[name](value) for name, value in fields.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedBatch(f"no {kind.__name__}: {error}") from None


def _number(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise ValueError(f"{value!r} is no number of 64 bits")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no text")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"{value!r} is no byte string")
    return value


def _names(value: Any) -> dict[str, Any]:
    return {_text(name): part for name, part in value.items()}


def _counts(value: Any) -> dict[str, Any]:
    counts = _row(_number, _number, _number, _number)
    return {name: counts(part) for name, part in _names(value).items()}


def _row(*checks: Check) -> Check:
    return lambda value: tuple(check(part) for check, part in zip(checks, value, strict=True))


def _rows(check: Check) -> Check:
    return lambda value: tuple(check(part) for part in value)


def _maybe(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _stream(value: Any) -> StreamId:
    return StreamId(*_row(_text, _number, _text, _number)(value))


def _lost(value: Any) -> Lost:
    return Lost(*_row(_text, _number, _number)(value))


def _payload(value: Any) -> Any:
    return decode(_bytes(value))


_RANGE = _maybe(_row(_number, _number))
_FIELDS: dict[type, dict[str, Check]] = {
    Declared: {"plan": _text},
    Gap: {
        "reason": _text,
        "epoch": _number,
        "nonce": _number,
        "batches": _RANGE,
        "tuples": _rows(_lost),
        "events": _RANGE,
        "progress": _rows(_row(_text, _number, _number)),
        "next_seqs": _rows(_row(_text, _number)),
        "next_event": _maybe(_number),
    },
    End: {"ts": _number},
    Status: {
        **dict.fromkeys(("clock_ms", "spool_batches", "spool_bytes", "unacknowledged", "dropped", "replaced"), _number),
        "link": _names,
        "operators": _counts,
    },
    Late: {"stream": _stream, "ts": _number, "payload": _payload, "watermark": _number},
    Skipped: {"operator": _text, "function": _text, "ts": _maybe(_number), "payload": _payload, "error": _text},
    Sketch: {"of": _text, "hashes": _number, "entries": _number, "bits": _bytes},
    Received: {"sender": _text, "stream": _text, "spool": _number, "next_seq": _number, "nonce": _number},
}

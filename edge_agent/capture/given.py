"""What users give, as what a row can hold: an id as a text, one or several as a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from edge_agent.capture.errors import error_text
from edge_agent.capture.misuse import misuse

MOST_ID = 1024
MOST_LINKS_BYTES = 12 * 1024
LINK_BYTES = 8  # besides its text: however short that is, a batch holds no more links than anybody reads
SURELY_FIT = MOST_LINKS_BYTES // (4 * MOST_ID + 16)


def text_of(given: Any) -> str:
    """An id as it is sent. Two different ids stay different, however long they are."""
    text = given if type(given) is str else _read(given)
    return text if len(text) <= MOST_ID else _shortened(text)


def size_of(text: str) -> int:
    """In bytes, as it is sent."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))


def several(given: Any) -> Sequence[Any]:
    """One thing, several or none (None) as a sequence. What comes before an exception of an iterator is kept."""
    if given is None:
        return ()
    if isinstance(given, (list, tuple)):
        return given
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        return (given,)
    found: list[Any] = []
    try:
        found.extend(given)
    except Exception as error:
        what = f"a {type(given).__qualname__} raised {error_text(error)!r} after {len(found)} of its parts"
        misuse.tell("iteration", what, error)
    return found


def linked(given: Any) -> tuple[str, ...]:
    """The ids that something is linked to: as many as a row can hold."""
    texts = tuple([text_of(each) for each in several(given)])
    return texts if len(texts) <= SURELY_FIT else texts[: fitting(texts)]


def fitting(texts: Sequence[str]) -> int:
    """How many of these ids one row can hold."""
    left = MOST_LINKS_BYTES
    for place, text in enumerate(texts):
        left -= size_of(text)
        if left < 0:
            misuse.tell("too_many_links", f"one row cannot name {len(texts)} ids: the first {place} are recorded")
            return place
    return len(texts)


def _read(given: Any) -> str:
    try:
        return str.__str__(str(given))
    except Exception as error:
        name = type(given).__qualname__
        misuse.tell("id", f"a {name} cannot be read as an id: <{name}> is recorded instead", error)
        return f"<{name}>"


def _shortened(text: str) -> str:
    misuse.tell("long_id", f"an id has {len(text)} characters: the first {MOST_ID} and a checksum are recorded")
    return f"{text[:MOST_ID]}~{crc32(text.encode('utf-8', 'backslashreplace')):08x}"

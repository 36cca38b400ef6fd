"""The contract between operators and a provenance mode."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocol.records import Origin

# (ts, value, lineage). Of any length to the type checker, because a compiled build copies tuples of known
# length and a tuple is its identity.
StreamTuple = tuple[Any, ...]


class WindowLog:
    """The tuples of one key inside a sliding window, so that a result can refer to them."""

    __slots__ = ()

    def extend(self, tuples: list[StreamTuple]) -> None:
        """Newer tuples have entered the window."""
        raise NotImplementedError

    def drop(self, count: int) -> None:
        """The oldest `count` tuples have left the window."""
        raise NotImplementedError

    def rotate(self) -> None:
        """A window's length has passed since the last rotation: what is older may be let go."""

    def lineage(self) -> Any:
        """What a result over the present window remembers."""
        raise NotImplementedError


class Lineage:
    """How tuples of one mode remember where they came from."""

    def born(self, batch: list[StreamTuple]) -> list[StreamTuple]:
        """Tuples that leave a source; their third field is the source's `SourceIds`."""
        return batch

    def arrived(self, ts: int, value: Any, origin: Origin) -> StreamTuple:
        """A tuple that came from another agent."""
        raise NotImplementedError

    def mapped(self, inputs: list[StreamTuple], values: list[Any]) -> list[StreamTuple]:
        """One new tuple per value, each from the input at the same place."""
        raise NotImplementedError

    def copied(self, batch: list[StreamTuple]) -> list[StreamTuple]:
        """What one branch of a Multiplex gets."""
        return batch

    def of_pair(self, newer: StreamTuple, older: StreamTuple) -> Any:
        """What the result of a join remembers."""
        raise NotImplementedError

    def of_window(self, tuples: list[StreamTuple]) -> Any:
        """What the result over exactly these tuples remembers; the list will not change."""
        raise NotImplementedError

    def window_log(self) -> WindowLog | None:
        """A log for one key of a sliding window; None if results remember nothing."""
        raise NotImplementedError

    def origins(self, root: StreamTuple) -> list[Origin]:
        """The contributing tuples of `root`, oldest first, each once."""
        raise NotImplementedError

    def origin(self, t: StreamTuple) -> Origin | None:
        """The tuple's own origin if it is an unchanged source or received tuple."""
        raise NotImplementedError


def oldest_first(origins: list[Origin]) -> list[Origin]:
    """By time; at equal times in the order of the windows they were met in."""
    if len(origins) > 1:
        origins.sort(key=_ts_of)
    return origins


_ts_of = attrgetter("ts")

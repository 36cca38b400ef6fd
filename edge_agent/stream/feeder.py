"""Reads the sources of a plan and feeds its engine, a list at a time.

The source with the lowest watermark is read next, so operators with several inputs wait as little
as they can. A live source may wait for its next item at any time: a thread of its own reads it, and
what has come by then is fed at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from edge_agent.interruptible import interruptible
from edge_agent.stream.builder import Items, Plan
from edge_agent.stream.engine import Engine
from edge_agent.stream.errors import StreamError, shown
from edge_agent.stream.functions import name_of
from protocol.plan import PlanError

LIST_SIZE = 1024
# When so many tuples wait where streams meet, a source that is ahead of the others there is left unread.
MANY_WAITING = 50_000
READING_S = 0.01


class _Reader:
    """One source's items; `error` is what ended them early."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._size = 1
        self.ended = False
        self.error: BaseException | None = None

    def read(self) -> list[Any]:
        """The next items; fewer than asked for means that they have ended."""
        size = self._size
        taken: list[Any] = []
        begun = time.monotonic()
        try:
            taken.extend(islice(self._items, size))  # keeps what came before an exception
        except Exception as error:
            self.error = error
        # Longer lists while they come quickly, so that a slow source need not fill one first.
        if time.monotonic() - begun < READING_S:
            self._size = min(2 * size, LIST_SIZE)
        else:
            self._size = max(size // 2, 1)
        self.ended = len(taken) < size
        return taken


class _ListReader:
    """Items that are all at hand: a list, read in slices."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self._at = 0
        self.ended = False
        self.error: BaseException | None = None

    def read(self) -> list[Any]:
        """The next items."""
        taken = self._items[self._at : self._at + LIST_SIZE]
        self._at += len(taken)
        self.ended = self._at >= len(self._items)
        return taken


class _LiveReader:
    """The same, read by a thread; it waits when nobody takes what it has read."""

    def __init__(self, name: str, items: Iterator[Any], arrival: threading.Condition) -> None:
        self._items = items
        self._read: list[Any] = []
        self._arrival = arrival
        self._stopped = False
        self._finished = False
        self.ended = False
        self.error: BaseException | None = None
        self._reading = threading.Thread(target=self._run, name=f"source {name}", daemon=True)
        self._reading.start()

    @property
    def ready(self) -> bool:
        """Something came, or the end. The condition must be held."""
        return bool(self._read) or self._finished

    def read(self) -> list[Any]:
        """What has come since the last time. The condition must be held."""
        taken, self._read = self._read, []
        self.ended = self._finished
        self._arrival.notify_all()
        return taken

    def stop(self) -> None:
        """Read no further. The condition must be held."""
        self._stopped = True
        self._arrival.notify_all()

    def _run(self) -> None:
        try:
            for item in self._items:
                with self._arrival:
                    while len(self._read) >= LIST_SIZE and not self._stopped:
                        self._arrival.wait()
                    if self._stopped:
                        return
                    self._read.append(item)
                    self._arrival.notify_all()
        except BaseException as error:
            self.error = error  # whatever it is: it is raised again where the plan runs
        finally:
            with self._arrival:
                self._finished = True
                self._arrival.notify_all()


def _opened(name: str, given: Items) -> Iterable[Any]:
    """A source's items, ready to be read."""
    items: Any = given
    try:
        if callable(given):
            items = given()
        if isinstance(items, list):
            return items
        if isinstance(items, Iterable):
            return iter(items)
    except Exception as error:
        raise StreamError(name, name_of(given), None, None, error) from error
    raise PlanError(f"its items are not iterable: {shown(items)}", name)


class Feeder:
    """All sources of one engine."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        inputs: Mapping[str, Iterable[Any]] | None = None,
        *,
        arrival: threading.Condition | None = None,
    ) -> None:
        inputs = inputs or {}
        self._engine = engine
        self._arrival = arrival or threading.Condition()  # shared by those who wait for each other
        self._readers: dict[str, _Reader | _ListReader] = {}
        self._live: dict[str, _LiveReader] = {}
        sources = {step.node.name: step for step in plan.steps() if step.node.operator == "source"}
        for name in inputs:
            if name not in sources:
                raise PlanError(f"plan {plan.name!r} has no source {name!r}")
        opened: dict[str, Iterable[Any]] = {}
        for name, step in sources.items():
            items = inputs.get(name, step.items)
            if items is None:
                raise PlanError("has no items: give them in the plan or when it runs", name)
            opened[name] = _opened(name, items)
        for name, each in opened.items():
            if sources[name].live:
                self._live[name] = _LiveReader(name, iter(each), self._arrival)
            elif isinstance(each, list):
                self._readers[name] = _ListReader(each)
            else:
                self._readers[name] = _Reader(iter(each))

    @property
    def running(self) -> bool:
        """Whether any source has not ended yet."""
        return bool(self._readers or self._live)

    @property
    def ready(self) -> bool:
        """Whether there is anything to feed now. The condition must be held."""
        return any(name in self._readers or self._live[name].ready for name in self._turn())

    def run(self) -> None:
        """Feed until all sources have ended."""
        while self.running:
            if not self.feed():
                with interruptible(), self._arrival:
                    self._arrival.wait_for(lambda: self.ready)

    def feed(self) -> bool:
        """Feed what has come from each live source, and one list of the items at hand: of the source furthest behind.

        False if there was nothing.
        """
        turn = self._turn()
        with self._arrival:
            arrived = [(name, each, each.read()) for name, each in self._live.items() if name in turn and each.ready]
        for name, each, items in arrived:
            self._fed(name, items, each.ended, each.error)
            if each.ended:
                del self._live[name]
        at_hand = [name for name in turn if name in self._readers]
        if at_hand:
            name = min(at_hand, key=self._engine.watermark_of)
            reader = self._readers[name]
            items = reader.read()
            self._fed(name, items, reader.ended, reader.error)
            if reader.ended:
                del self._readers[name]
            return True
        return bool(arrived)

    def _turn(self) -> list[str]:
        """The sources to read from: all but those that are ahead of others while many tuples wait."""
        ahead = self._engine.ahead(MANY_WAITING)
        return [name for name in [*self._live, *self._readers] if name not in ahead]

    def stop(self) -> None:
        """Leave what has not been read."""
        with self._arrival:
            for each in self._live.values():
                each.stop()

    def _fed(self, name: str, items: list[Any], ended: bool, error: BaseException | None) -> None:
        if items:
            self._engine.feed(name, items)
        if ended:
            if isinstance(error, Exception):
                raise StreamError(name, "items", None, None, error)
            if error is not None:
                raise error
            self._engine.close(name)

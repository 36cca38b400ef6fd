"""A translator with its log, and connections to the broker as an API process has them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from collector.ingest import Accepted, Document, MqttAway, NotAcknowledged, ingest
from collector.log_view import Entry, entries
from collector.mqtt_link import MqttLink
from protocol.wire.sections import Kind
from tests.support.waiting import WAIT_S
from threadline.lab import Mosquitto, TranslatorService

T = TypeVar("T")


class Site:
    """A broker and a translator, each of which may be killed and comes back where it was."""

    def __init__(self, folder: Path, mosquitto: Mosquitto) -> None:
        self.mosquitto = mosquitto
        self.translator = TranslatorService(folder, mosquitto)

    @property
    def log_folder(self) -> Path:
        return self.translator.log_folder

    def logged(self, agent: str) -> list[Entry]:
        """What the log holds of what an agent has sent."""
        return [entry for entry in entries(self.log_folder, agent=agent) if entry.kind < Kind.SNAPSHOT]

    def link(self) -> AbstractAsyncContextManager[MqttLink]:
        """What an API process has."""
        return running(MqttLink("127.0.0.1", self.mosquitto.port))

    def __enter__(self) -> Self:
        self.translator.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.translator.stop()


@asynccontextmanager
async def running(link: MqttLink) -> AsyncIterator[MqttLink]:
    """A link at work, connected."""
    task = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(WAIT_S):
            await link.came_up()
        yield link
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until_taken(link: MqttLink, document: Document) -> Accepted:
    """As a caller does: the same batch again and again, until it is in the log."""
    while True:
        try:
            return await ingest(link, document, wait_s=2.0)
        except (MqttAway, NotAcknowledged):
            await asyncio.sleep(0.05)


async def eventually(condition: Callable[[], T], what: str, timeout_s: float = WAIT_S) -> T:
    """The condition's first true value, while the event loop goes on."""
    give_up = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {timeout_s:g} s: {what} (last: {value!r})")
        await asyncio.sleep(0.005)
    return value


async def in_thread(call: Callable[[], T]) -> T:
    """What waits for processes, beside the event loop."""
    return await asyncio.to_thread(call)


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """A scenario from beginning to end, on the event loop that `threadline serve` has."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario)

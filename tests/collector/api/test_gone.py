"""Clients that go before they are answered: what they have asked for takes nobody else's place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.types import Message

from collector.api.readers import MOST_READERS, Readers, asked_by
from collector.api.view import View
from collector.store import TooSlow
from tests.collector.store.graphs import QuickWriter, graph_batch, tuple_id


class Client:
    """One that can go."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def receive(self) -> Message:
        return await self._messages.get()

    def go(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    with QuickWriter(tmp_path / "graph.db") as writer:
        writer.write(graph_batch("q", 0, sinks={tuple_id(3, 0): 1}))
    return Readers(tmp_path / "graph.db", longest_s=300)


def for_ever(view: View) -> None:
    while True:
        view.reader.check_time()


async def asked(readers: Readers, client: Client) -> asyncio.Task[None]:
    """A question that takes for ever, when it has begun to be asked."""

    async def ask() -> None:
        asked_by.set(client.receive)
        await readers.ask(for_ever)

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    return task


def test_what_is_being_read_for_one_who_has_gone_ends(readers: Readers) -> None:
    async def run() -> None:
        clients = [Client() for _ in range(MOST_READERS + 5)]  # some of them wait for their turn
        tasks = [await asked(readers, client) for client in clients]
        for client in clients:
            client.go()
        async with asyncio.timeout(20):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(each) for each in ends} == {TooSlow}
            assert await readers.ask(lambda view: view.reader.counters()["sinks"]) == 1

    asyncio.run(run())
    readers.close()


def test_others_take_the_place_of_one_who_has_gone_while_waiting(readers: Readers) -> None:
    async def run() -> None:
        holding = [Client() for _ in range(MOST_READERS)]
        tasks = [await asked(readers, client) for client in holding]
        waiting = Client()
        gone = await asked(readers, waiting)
        waiting.go()
        async with asyncio.timeout(20):
            with pytest.raises(TooSlow, match="has gone"):
                await gone
            holding[0].go()
            assert await readers.ask(lambda view: view.reader.counters()["sinks"]) == 1
        for client in holding[1:]:
            client.go()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
    readers.close()

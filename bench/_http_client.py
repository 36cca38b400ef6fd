"""Clients that ask as fast as they are answered: keep-alive connections, and no more work per answer than need be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Measured:
    """How long each answer took, and how many there were in a second."""

    times_s: Sequence[float]
    rate: float

    def at(self, share: float) -> float:
        """The time in ms that such a share of the answers did not take."""
        ordered = sorted(self.times_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def get(self, path: str) -> bytes:
        """The body of an answer, which has to be a success."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {head.decode().splitlines()[0]}")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


async def ask(port: int, path_of: Callable[[], str], clients: int, requests: int) -> Measured:
    """So many requests in all, from so many clients at a time."""
    connections = [_Connection(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(clients)]
    times: list[float] = []

    async def run(connection: _Connection, count: int) -> None:
        for _ in range(count):
            path = path_of()
            begun = perf_counter()
            await connection.get(path)
            times.append(perf_counter() - begun)

    begun = perf_counter()
    await asyncio.gather(*(run(each, requests // clients) for each in connections))
    elapsed = perf_counter() - begun
    for each in connections:
        each.close()
    return Measured(times, len(times) / elapsed)


async def first_event_s(port: int, path: str, act: Callable[[], float]) -> float:
    """How long after something was done the first event about it comes; `act` does it, and returns when it was done."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode())
    await reader.readuntil(b"event: place")
    await reader.readuntil(b"\n\n")
    acting = asyncio.create_task(asyncio.to_thread(act))
    await reader.readuntil(b"event: ")
    came = perf_counter()
    writer.close()
    return came - await acting

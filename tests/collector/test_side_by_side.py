from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from collector.side_by_side import side_by_side


class Lost(Exception):
    pass


async def endless() -> None:
    await asyncio.Event().wait()


async def lost_when_cancelled() -> None:
    try:
        await endless()
    except asyncio.CancelledError:
        raise Lost from None


async def lost() -> None:
    raise Lost


async def nothing() -> None:
    pass


def test_what_fails_ends_the_rest() -> None:
    async def both() -> None:
        rest = asyncio.create_task(endless())
        with pytest.raises(Lost):
            await side_by_side(_wait_for(rest), nothing(), lost())
        assert rest.cancelled()

    asyncio.run(both())


async def _wait_for(task: asyncio.Task[None]) -> None:
    await task


def test_it_ends_when_all_of_it_has_ended() -> None:
    asyncio.run(side_by_side(nothing(), asyncio.sleep(0.01)))


@pytest.mark.parametrize("rest", [endless, lost_when_cancelled])
def test_who_is_cancelled_stays_cancelled_though_something_fails_meanwhile(
    rest: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """It connects again and again otherwise, and whoever waits for its end waits for ever."""
    ends = 0

    async def again_and_again() -> None:
        nonlocal ends
        while True:
            try:
                await side_by_side(rest(), endless())
            except Lost:
                ends += 1
            await asyncio.sleep(0)

    async def stopped() -> None:
        task = asyncio.create_task(again_and_again())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task], timeout=5.0)
        assert task.cancelled()

    asyncio.run(stopped())
    assert ends == 0

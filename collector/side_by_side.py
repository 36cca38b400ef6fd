"""Several things at once, until one of them fails.

Unlike with a group of tasks of asyncio, whoever is cancelled meanwhile stays cancelled: such a group forgets it if one
of its tasks fails at the same moment, as when a connection is lost because everything is being stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def side_by_side(*work: Coroutine[Any, Any, object]) -> None:
    """Until all of it has ended, or some of it has failed; then the rest is cancelled."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

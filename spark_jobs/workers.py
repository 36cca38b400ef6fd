"""Spark's Python workers: processes that run task after task."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """Once per process, when all modules are loaded: take what is there out of the garbage collector's sight.

    A worker collects all garbage after each task. Going through some hundred thousand objects of modules each time, it
    would spend most of its life on it.
    """
    gc.collect()
    gc.freeze()

"""Loggers that load `logging` when there is something to say.

It is a good part of what a small program would load, and an agent that is well says nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edge_agent.background import importing

if TYPE_CHECKING:
    from logging import Logger as RealLogger


class Logger:
    """The logger of one name, with those of its methods that are used."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    # What is less than a warning is not shown as `logging` comes: if nobody has loaded it, nobody wants to know.

    def debug(self, text: str, *args: object) -> None:
        if "logging" in sys.modules:
            self._real().debug(text, *args, stacklevel=2)

    def info(self, text: str, *args: object) -> None:
        if "logging" in sys.modules:
            self._real().info(text, *args, stacklevel=2)

    def warning(self, text: str, *args: object) -> None:
        self._real().warning(text, *args, stacklevel=2)

    def error(self, text: str, *args: object) -> None:
        self._real().error(text, *args, stacklevel=2)

    def exception(self, text: str, *args: object) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._real().exception(text, *args, stacklevel=2)

    def _real(self) -> RealLogger:
        with importing:
            from logging import getLogger
        return getLogger(self._name)

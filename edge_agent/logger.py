"""Loggers that load `logging` when there is something to say.

It is a good part of what a small program would load, and an agent that is well says nothing.
"""

from __future__ import annotations

import sys


class Logger:
    """The logger of one name, with those of its methods that are used."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    # What is less than a warning is not shown as `logging` comes: if nobody has loaded it, nobody wants to know.

    def debug(self, text: str, *args: object) -> None:
        if "logging" in sys.modules:
            from logging import getLogger

            getLogger(self._name).debug(text, *args, stacklevel=2)

    def info(self, text: str, *args: object) -> None:
        if "logging" in sys.modules:
            from logging import getLogger

            getLogger(self._name).info(text, *args, stacklevel=2)

    def warning(self, text: str, *args: object) -> None:
        from logging import getLogger

        getLogger(self._name).warning(text, *args, stacklevel=2)

    def error(self, text: str, *args: object) -> None:
        from logging import getLogger

        getLogger(self._name).error(text, *args, stacklevel=2)

    def exception(self, text: str, *args: object) -> None:
        """An error, with the traceback of the exception that is being handled."""
        from logging import getLogger

        getLogger(self._name).exception(text, *args, stacklevel=2)

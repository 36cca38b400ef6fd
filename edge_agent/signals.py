"""What ends a command from outside: signals, and output that goes nowhere."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from types import FrameType

_INSIST_S = 0.5


class Stop(BaseException):
    """Ends a run from within; no handler of user code's exceptions may stop it."""


class Signalled(Stop):
    """SIGINT or SIGTERM has come."""

    def __init__(self, number: int) -> None:
        self.number = number


class OutputClosed(Stop):
    """Nobody reads what is printed."""


class OutputFailed(Stop):
    """What is printed cannot be written, on a full disk for example."""


class Signals:
    """SIGINT and SIGTERM as an exception in the main thread, but never in the middle of a printed block."""

    def __init__(self) -> None:
        self._printing = False
        self._received: int | None = None
        self._caught = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._caught.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        again, self._received = self._received is not None, number
        if not again:
            threading.Thread(target=self._insist, args=(number,), daemon=True).start()
        if again or not self._printing:
            raise Signalled(number)

    def _insist(self, number: int) -> None:
        """Python drops what is raised while it collects garbage, and the signal would be forgotten."""
        main = threading.main_thread().ident
        assert main is not None
        while not self._caught.wait(_INSIST_S):
            signal.pthread_kill(main, number)

    def caught(self) -> None:
        """The exception has arrived where it is handled."""
        self._caught.set()

    def print(self, text: str, out: TextIO) -> None:
        """Write all of the text, after what the app has printed; a signal waits for that, a second one does not.

        Unbuffered output (PYTHONUNBUFFERED) takes only a part of it when a signal comes in between.
        """
        rest = memoryview(text.encode(out.encoding, "backslashreplace"))
        self._printing = True
        try:
            out.flush()
            while rest:
                rest = rest[out.buffer.write(rest) :]
            out.flush()
        except Signalled:
            abandon(out)
            raise
        except BrokenPipeError:
            abandon(out)
            raise OutputClosed from None
        except OSError as error:
            abandon(out)
            raise OutputFailed(error.strerror) from error
        finally:
            self._printing = False
        if self._received is not None:
            raise Signalled(self._received)


def abandon(out: TextIO) -> None:
    """What is still buffered has nowhere to go, and Python would wait or complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())

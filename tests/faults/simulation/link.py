"""The network between devices and the gateway: datagrams that are lost, doubled, overtaken, damaged or held up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.faults.simulation.timeline import Timeline
from threadline.lossy_link import damaged

_LEAST_DELAY_S = 0.002
_VERY_LATE_S = 30.0


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad the network is: chances per datagram, and how long each is under way."""

    loss: float = 0.0
    copies: float = 0.0
    jitter_s: float = 0.01
    very_late: float = 0.0
    """The chance that a copy comes when everybody has forgotten it."""
    corrupt: float = 0.0


class Link:
    """All datagrams, whoever sends them."""

    def __init__(self, timeline: Timeline, dice: Random) -> None:
        self.weather = Weather()
        self.partitioned: set[str] = set()
        """Devices that are cut off."""
        self.happened: Counter[str] = Counter()
        self._timeline = timeline
        self._dice = dice

    def carry(self, device: str, datagram: bytes, deliver: Callable[[bytes], None]) -> None:
        """To the other side, or not."""
        weather, dice, happened = self.weather, self._dice, self.happened
        happened["datagrams"] += 1
        copies = 1
        if weather.copies and dice.random() < weather.copies:
            happened["duplicated"] += 1
            copies = 2
        for _ in range(copies):
            if device in self.partitioned or dice.random() < weather.loss:
                happened["lost"] += 1
                continue
            carried = datagram
            if weather.corrupt and dice.random() < weather.corrupt:
                happened["corrupted"] += 1
                carried = damaged(datagram, dice)
            delay_s = _LEAST_DELAY_S + dice.random() * weather.jitter_s
            if weather.very_late and dice.random() < weather.very_late:
                happened["very late"] += 1
                delay_s += dice.random() * _VERY_LATE_S
            self._timeline.later(delay_s, partial(self._arrive, device, carried, deliver))

    def _arrive(self, device: str, datagram: bytes, deliver: Callable[[bytes], None]) -> None:
        if device in self.partitioned:
            self.happened["lost"] += 1
        else:
            deliver(datagram)

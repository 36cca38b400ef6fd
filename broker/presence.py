"""Who is there: each client's state, online, asleep or offline, retained on a topic of its own.

What is told is also noted in the journal, so that a gateway that comes back can take back what is no longer true.
"""

from __future__ import annotations

from broker.journal import Journal
from broker.outputs import MqttPublish, Outputs
from broker.session import Session
from protocol.topics import state_topic


class Presence:
    """Tells every change once; while the broker is away, only the last one is kept."""

    def __init__(self, outputs: Outputs, journal: Journal, max_departed: int) -> None:
        self._out = outputs
        self._journal = journal
        self._max_departed = max_departed
        self._broker_is_up = False
        self.untold: dict[str, str] = {}
        self.departed: dict[str, None] = {}
        """Clients without a session, told of as offline; the oldest first."""

    def broker_up(self) -> None:
        self._broker_is_up = True
        for client_id, state in self.untold.items():
            self._publish(client_id, state)
        self.untold.clear()

    def broker_down(self) -> None:
        self._broker_is_up = False

    def announce(self, session: Session, state: str) -> None:
        """Tell of a client with a session; an empty state takes back what was told."""
        self.departed.pop(session.client_id, None)
        if state != session.announced:
            session.announced = state
            self._tell(session.client_id, state)

    def depart(self, client_id: str, announced: str) -> None:
        """A client without a session is offline, and that is told as long as there are not too many of them."""
        self.departed[client_id] = None
        if announced != "offline":
            self._tell(client_id, "offline")
        if len(self.departed) > self._max_departed:
            oldest = next(iter(self.departed))
            del self.departed[oldest]
            self._tell(oldest, "")

    def _tell(self, client_id: str, state: str) -> None:
        if state:
            self._journal.save_announcement(client_id, state)
        else:
            self._journal.delete_announcement(client_id)
        if self._broker_is_up:
            self._publish(client_id, state)
        else:
            self.untold[client_id] = state

    def _publish(self, client_id: str, state: str) -> None:
        self._out.mqtt.append(MqttPublish(state_topic(client_id), state.encode(), 1, retain=True))

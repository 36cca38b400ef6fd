"""A gateway and a cloud in one, for tests of agents that are acknowledged: one agent at a time."""

from __future__ import annotations

from typing import Any

from protocol.mqttsn import Message, Publish
from protocol.topics import agent_of_up, down_topic
from protocol.wire.answers import Logged, encode_answer
from protocol.wire.batch import decode_batch, unframe
from tests.edge_agent.transport.reference_gateway import ReferenceGateway, UdpGateway


class _Logging(ReferenceGateway):
    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, list[Any]] = {}
        """The records by agent."""
        self._next: dict[int, int] = {}

    def _on_publish(self, message: Publish) -> list[Message]:
        answers = super()._on_publish(message)
        topic, payload, _ = self.taken[-1]
        agent = agent_of_up(str(topic))
        assert agent is not None, topic
        batch = decode_batch(unframe(payload, agent)[1], agent)
        nonce, seq = batch.header.nonce, batch.header.seq
        if seq == self._next.setdefault(nonce, 0):
            self._next[nonce] = batch.header.next_seq
            self.logged.setdefault(agent, []).extend(batch.records())
        self.hand_out(down_topic(agent), encode_answer(Logged(nonce, self._next[nonce]), agent), 0)
        return answers


class Cloud(UdpGateway):
    """Takes batches, in order, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gateway: _Logging = _Logging()

    def events(self) -> dict[str, list[int]]:
        """The numbers of captured events by agent."""
        return {
            agent: [each.number for each in records if hasattr(each, "number")]
            for agent, records in self.gateway.logged.items()
        }

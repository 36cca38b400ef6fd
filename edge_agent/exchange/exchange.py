"""The exchange of tuples with other agents: nothing is lost between two plans, and nothing is taken twice.

What a Send says is kept in a spool of its own until all its receivers have taken it over. It leaves when the plan of
this start is in the log: of a start that others name, and whose card is gone before it has said anything itself, nobody
could tell whether it will ever speak, and everything would have to wait for it.

What a Receive takes is on disk, with everything that came of it, before its sender is told so and may forget it.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from edge_agent.exchange.crossing_lane import CrossingLane
from edge_agent.exchange.receiving import MOST_FORMER, NOTHING_TAKEN, Receiving
from edge_agent.exchange.send_streams import SendStream
from edge_agent.logger import Logger
from edge_agent.outbox import Outbox
from edge_agent.transport import Client, Message, TransportError
from protocol.ids import StreamId
from protocol.plan import Node, PlanDocument, PlanError
from protocol.records import Gap, Origin, Received
from protocol.topics import down_topic, tuples_topic
from protocol.wire.answers import Taken, encode_answer
from protocol.wire.batch import unframe
from protocol.wire.crossing import Crossing, PackedTuple, decode_crossing, packed, whose_crossing
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Pending
from protocol.wire.values import size_of as captured_size

if TYPE_CHECKING:
    from edge_agent.agent import Agent

_LOG = Logger(__name__)
_ROW_BYTES = 64  # that a tuple takes up in memory, besides its values
_NEVER = float("inf")
_RARELY_S = 540.0  # that a sender has nothing to say for so long is nothing strange
_REPEATED_S = 150.0  # a sender that waits for an answer repeats itself more often than that


class Exchange:
    """The Sends and Receives of one plan. `transmit` and `took` are for whoever runs it, all else for the agent."""

    def __init__(self, agent: Agent, plan: PlanDocument, outbox: Outbox, client: Client) -> None:
        self.arrival = threading.Condition()
        self.arrived: deque[Crossing] = deque()
        """What other agents have sent, for whoever holds `arrival` and runs the plan; say `took` afterwards."""
        self.lanes: dict[str, CrossingLane] = {}
        """By topic, for the agent's thread to send."""
        self._agent = agent
        self._outbox = outbox
        self._client = client
        self._sends: dict[str, SendStream] = {}
        self._receives: list[tuple[str, str]] = []
        self._positions = outbox.state.positions
        self._receiving = Receiving(self._positions)
        self._on_disk = {(*key.split("/", 1), spool): next_seq for key, (spool, next_seq) in self._positions.items()}
        """How far each count of a stream of another agent has come on our disk, by sender, stream and spool."""
        self._unanswered: dict[tuple[str, str, int], None] = {}
        self._answers_in_flight = 0
        self._heard_at: dict[tuple[str, str], float] = {}
        self._in_vain: dict[tuple[str, str], tuple[float, float]] = {}
        """Streams of which only copies come, since when and until when: their senders do not hear our answers."""
        with ExitStack() as opened:
            opened.callback(self.close)
            for node in plan.nodes:
                if node.operator == "receive":
                    self._receive_as(node)
                elif node.operator == "send":
                    self._send_as(node)
            opened.pop_all()

    def _receive_as(self, node: Node) -> None:
        sender, stream = cast(str, node.parameters["sender"]), cast(str, node.parameters["stream"])
        if sender == self._agent.name:
            raise PlanError(f"agent {sender!r} cannot receive from itself", node.name)
        if (sender, stream) not in self._receives:
            self._receives.append((sender, stream))

    def _send_as(self, node: Node) -> None:
        agent, receivers = self._agent, cast("list[str]", node.parameters["to"])
        if agent.name in receivers:
            raise PlanError(f"agent {agent.name!r} cannot send to itself", node.name)
        stream = StreamId(agent.name, agent.epoch.counter, node.name, agent.epoch.nonce)
        send = self._sends[node.name] = SendStream(stream, agent.folder, agent.settings)
        topic = tuples_topic(agent.name, node.name)
        publish, window = agent.publisher(topic), agent.settings.window
        lane = CrossingLane(send.stream, send.spool, send.spool_id, receivers, publish, window)
        send.given_up = lane.given_up
        self.lanes[topic] = lane

    def start(self) -> None:
        """Begin to receive."""
        for sender, stream in self._receives:
            arrived = partial(self._on_crossing, sender, stream)
            subscribed = self._client.subscribe(tuples_topic(sender, stream), arrived, qos=1)
            subscribed.add_done_callback(partial(self._greet, sender, stream))

    # What the plan says

    def transmit(
        self, stream: StreamId, tuples: list[tuple[int, Any, Origin]], watermark: int, hold: int, idle: bool
    ) -> None:
        """What a Send of the plan says to other agents; it leaves when the deliveries before it are on disk."""
        if self._agent.ended:
            return
        rows = packed(tuples, self._agent.packer)
        size = sum([_ROW_BYTES + captured_size(data) for _, (_, data), _ in rows])
        send = self._sends[stream.name]
        leave = partial(self._leave, send, rows, watermark, hold, idle)
        self._outbox.after(leave, size, partial(send.forgo, len(rows)))

    def _leave(self, send: SendStream, rows: list[PackedTuple], watermark: int, hold: int, idle: bool) -> None:
        send.add(rows, watermark, hold, idle, monotonic())

    def took(self, crossing: Crossing, rows: list[tuple[Pending, int]]) -> None:
        """A crossing went through the plan, and these rows came of it, with their sizes. They are put together, so that
        they are on disk with the news that it was taken; then its sender may forget it."""
        if self._agent.ended:
            return
        sender, stream = crossing.stream.agent, crossing.stream.name
        received = Received(sender, stream, crossing.spool, crossing.seq + 1, crossing.stream.nonce)
        self._outbox.put_all([*rows, *self._agent.rows(received)])
        self._outbox.after(partial(self._taken, sender, stream, crossing.spool, crossing.seq + 1))

    # The agent's thread

    def step(self, now: float, hurry: bool) -> float:
        """Answer, and write what is to be written by now; returns when to come back at the latest."""
        while self._unanswered:
            asked = next(iter(self._unanswered))
            del self._unanswered[asked]
            self._answer(*asked)
        return min([send.step(now, hurry) for send in self._sends.values()], default=_NEVER)

    def logged(self, has_plan: bool) -> None:
        """The cloud says how far its log has come: with our plan in it, tuples may leave."""
        for lane in self.lanes.values():
            lane.is_open = lane.is_open or has_plan

    def taken(self, answer: Taken, now: float) -> None:
        """A receiver says how far it has come."""
        lane = self.lanes.get(tuples_topic(self._agent.name, answer.stream))
        if lane is not None and lane.taken(answer, now):
            self._sends[answer.stream].try_again()
            self._outbox.try_again()

    def _on_crossing(self, sender: str, stream: str, message: Message) -> None:
        """On the client's thread."""
        try:
            oldest, data = unframe(message.payload, whose_crossing(sender, stream))
            crossing = decode_crossing(data, sender, stream)
        except MalformedBatch as error:
            self._agent.ignore(f"no crossing of {sender}", error)
        else:
            self._agent.tell(partial(self._crossed, crossing, oldest))

    def _crossed(self, crossing: Crossing, oldest: bool, now: float) -> None:
        ready, missing = self._receiving.arrived(crossing, oldest)
        sender, stream = crossing.stream.agent, crossing.stream.name
        self._heard_at[sender, stream] = now
        if missing or any(each.lost for each in ready):
            lost = sum([each.lost for each in ready])
            messages = missing + sum([each.lost > 0 for each in ready])
            reason = f"given up by {sender}: {messages} messages of {stream} with {lost} tuples at most"
            _LOG.error("%s agent=%s", reason, self._agent.name)
            self._agent.emit(Gap(reason, crossing.stream.epoch, crossing.stream.nonce))
        if ready:
            self._in_vain.pop((sender, stream), None)
            with self.arrival:
                self.arrived.extend(ready)
                self.arrival.notify_all()
        elif self._on_disk.get((sender, stream, crossing.spool)) == self._receiving.next_of(
            sender, stream, crossing.spool
        ):
            # It came twice, or too early, and nothing that came before it is still on its way through the plan, to be
            # answered then: the sender does not know how far we are.
            self._unanswered[sender, stream, crossing.spool] = None
            since, last = self._in_vain.get((sender, stream), (now, now))
            self._in_vain[sender, stream] = (since if now - last < _REPEATED_S else now), now

    def silent_since(self, now: float) -> float:
        """Since when an agent says nothing that has to answer, or might have something for us; infinity if none."""
        heard_at = [self._heard_at.setdefault(stream, now) + _RARELY_S for stream in self._receives]
        in_vain = [since for since, last in self._in_vain.values() if now - last < _REPEATED_S]
        lanes = [lane.sending.silent_since for lane in self.lanes.values()]
        return min([*heard_at, *in_vain, *lanes], default=_NEVER)

    def _greet(self, sender: str, stream: str, subscribed: object) -> None:
        """On the client's thread, the stream is subscribed to: the sender need not wait with what it has for us."""
        self._agent.tell(lambda _: self._unanswered.update({(sender, stream, self._position(sender, stream)[0]): None}))

    def _taken(self, sender: str, stream: str, spool: int, next_seq: int) -> None:
        self._positions[f"{sender}/{stream}"] = [spool, next_seq]
        self._on_disk.pop((sender, stream, spool), None)  # the latest comes last
        self._on_disk[sender, stream, spool] = next_seq
        of_stream = [key for key in self._on_disk if key[:2] == (sender, stream)]
        for key in of_stream[:-MOST_FORMER]:
            del self._on_disk[key]
        self._unanswered[sender, stream, spool] = None

    def _position(self, sender: str, stream: str) -> tuple[int, int]:
        """How far a stream has come on our disk, as (spool, next)."""
        spool, next_seq = self._positions.get(f"{sender}/{stream}", (NOTHING_TAKEN, 0))
        return spool, next_seq

    def _answer(self, sender: str, stream: str, spool: int) -> None:
        """Tell a sender how far we are in what it counts in: everything before that is on our disk."""
        next_seq = self._on_disk.get((sender, stream, spool))
        taken = (NOTHING_TAKEN, 0) if next_seq is None else (spool, next_seq)
        answer = encode_answer(Taken(self._agent.name, stream, *taken), sender)
        try:
            sent = self._client.publish(down_topic(sender), answer, self._agent.settings.qos)
        except TransportError as error:  # it is asked for again
            _LOG.debug("no answer agent=%s reason=%s", self._agent.name, error)
            return
        self._answers_in_flight += 1
        sent.add_done_callback(lambda _: self._agent.tell(self._answered))

    def _answered(self, now: float) -> None:
        self._answers_in_flight -= 1

    # How it is

    def status(self) -> dict[str, dict[str, Any]]:
        """What has not been taken by others, how far their streams have come here, and what of them came in vain."""
        sends = {
            name: {
                "not_taken": send.spool.count,
                "bytes": send.spool.size_bytes,
                "given_up": send.lost,
                "trouble": send.trouble,
            }
            for name, send in self._sends.items()
        }
        receives = {f"{sender}/{stream}": self._position(sender, stream)[1] for sender, stream in self._receives}
        receiving = self._receiving
        in_vain = {"duplicates": receiving.duplicates, "early_dropped": receiving.early_dropped}
        return {"sends": sends, "receives": receives, "in_vain": in_vain}

    @property
    def waiting(self) -> bool:
        """Whether tuples for other agents are in memory only."""
        return any(send.waiting for send in self._sends.values())

    @property
    def owes_answers(self) -> bool:
        """Whether a sender has not been told yet how far we are."""
        return bool(self._unanswered) or self._answers_in_flight > 0

    @property
    def left(self) -> int:
        """Crossings that not all receivers have taken over yet."""
        return sum([send.spool.count for send in self._sends.values()])

    def close(self) -> None:
        """Nothing is sent any more."""
        with ExitStack() as closing:
            for send in self._sends.values():
                closing.callback(send.close)

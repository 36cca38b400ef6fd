"""A running agent: what a program captures and what its plan delivers, on disk at once and in the cloud when it can be.

One thread writes and sends, so that neither the program nor its plan ever waits for a disk or a network.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, cast

from edge_agent.background import Background
from edge_agent.config import ConfigError, Settings, load_settings
from edge_agent.epoch import begin_epoch
from edge_agent.grouping import size_of
from edge_agent.lanes import CrossingLane, Lane, Uplink
from edge_agent.memory import Memory
from edge_agent.outbox import Outbox
from edge_agent.receiving import NOTHING_TAKEN, Receiving
from edge_agent.recovery import close_journal, gap_after_crash
from edge_agent.send_streams import SendStream
from edge_agent.sending import Sending
from edge_agent.spool import Spool, SpoolError, SpoolLocked
from edge_agent.transport import Client, Message, TransportError
from protocol.ids import StreamId
from protocol.mqttsn import RetryPolicy
from protocol.records import Declared, End, Gap, Origin, Received, Status
from protocol.structs import replaced
from protocol.topics import AGENT_NAME, down_topic, tuples_topic, up_topic
from protocol.wire.answers import Answer, Logged, Taken, decode_answer, encode_answer
from protocol.wire.batch import unframe
from protocol.wire.crossing import Crossing, decode_crossing, packed
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, Pending, pending
from protocol.wire.values import Packer
from protocol.wire.values import size_of as captured_size

if TYPE_CHECKING:  # a program without a plan should not wait for them
    from protocol.plan import PlanDocument

_LOG = logging.getLogger(__name__)
_MOST_ORIGINS = 2_000  # of one record; a delivery that has more is told in parts
_ROW_BYTES = 64  # that a record takes up in memory, besides its values
_STATUS_FILE_S = 2.0
_TROUBLE_S = 1.0  # how long to leave a disk alone that has failed
_LOOK_S = 0.02
# A receiver may well be offline, and what was sent waits for it on the way: to send it again would only pile it up
# there. A receiver that misses something says so.
_RECEIVERS = RetryPolicy(first_s=10.0, least_s=10.0, most_s=60.0)
_MOST_SIBLINGS = 100
_NEVER = float("inf")


class AgentFailed(RuntimeError):
    """The agent's thread has ended by a defect: nothing is written or sent any more."""


class Agent:
    """Takes records from the program and its plan, and gets them to the log, through crashes of everything.

    It is what `threadline-agent run` hands to `main(agent)`, and what the capture API uses.
    """

    def __init__(self, settings: Settings, plan: PlanDocument | None = None) -> None:
        if not settings.gateways:
            raise ConfigError("no gateway: set THREADLINE_GATEWAY or give --gateway HOST:PORT")
        self.settings = settings
        self.name = settings.name
        self.durable = settings.durable
        self.strict = settings.strict
        self.packer = Packer(strict=settings.strict)
        self.folder = Path(settings.spool)
        self.failure: Exception | None = None
        self._closing = threading.Lock()
        self._closed = self._finishing = self._ended = self._stopping = False
        self._keys = count()
        self.new_key: Callable[[], int] = self._keys.__next__
        self._spool = Spool.open(self.folder / "up", max_bytes=settings.spool_bytes, fsync=settings.fsync)
        self._memory = Memory(self.folder)
        self.epoch = begin_epoch(self.folder)
        left = close_journal(self._spool, self.name)
        gap = gap_after_crash(self._spool, self._memory.last, self.name, left)
        self._outbox = Outbox(self.name, self.epoch, self._spool, self._memory, self.packer, settings)
        self.put = self._outbox.put
        if gap is not None:
            self.emit(gap)  # first of all: an epoch of which anything is on disk has told of the one before it
        if plan is not None:
            self.emit(Declared(plan.to_json()))
        self._client = Client(settings.gateways, self.name, keep_alive_s=settings.keep_alive_s)
        self._uplink = Uplink(self.name, self._spool, self._publisher(up_topic(self.name)), settings.window)
        self._lanes: dict[str, Lane] = {up_topic(self.name): self._uplink}
        self._outbox.given_up = self._uplink.given_up
        self._sends: dict[str, SendStream] = {}
        self._crossing_lanes: dict[str, CrossingLane] = {}
        last = self._memory.last
        self._positions = self._outbox.state.positions = {} if last is None else last.positions
        self._receiving = Receiving(self._positions)
        self._receives: list[tuple[str, str]] = []
        self._unanswered: set[tuple[str, str]] = set()
        self._answers_in_flight = 0
        self.arrival = threading.Condition()
        self.arrived: deque[Crossing] = deque()
        """What other agents have sent, for whoever holds `arrival` and runs the plan; say `took` afterwards."""
        if plan is not None:
            self._join(plan)
        self._outbox.begin(left)
        self._inbox: deque[Callable[[float], None]] = deque()
        self._status_at = self._file_at = 0.0
        self.operators: Callable[[], dict[str, tuple[int, int, int, int]]] = dict
        self._thread = Background(target=self._run, name=f"agent {self.name}", daemon=True)

    def start(self) -> Agent:
        """Begin to write and to send."""
        self._client.start()
        self._client.subscribe(down_topic(self.name), self._on_down, qos=1)
        for sender, stream in self._receives:
            arrived = partial(self._on_crossing, sender, stream)
            subscribed = self._client.subscribe(tuples_topic(sender, stream), arrived, qos=1)
            subscribed.add_done_callback(partial(self._greet, sender, stream))
        self._thread.start()
        return self

    def _join(self, plan: PlanDocument) -> None:
        """The streams that lead to other agents, and those that come from them."""
        from protocol.plan import PlanError

        for node in plan.nodes:
            if node.operator == "receive":
                sender, received = cast(str, node.parameters["sender"]), cast(str, node.parameters["stream"])
                if sender == self.name:
                    raise PlanError(f"agent {self.name!r} cannot receive from itself", node.name)
                if (sender, received) not in self._receives:
                    self._receives.append((sender, received))
            elif node.operator == "send":
                name, receivers = node.name, cast("list[str]", node.parameters["to"])
                if self.name in receivers:
                    raise PlanError(f"agent {self.name!r} cannot send to itself", node.name)
                stream = StreamId(self.name, self.epoch.counter, name, self.epoch.nonce)
                sending = self._sends[name] = SendStream(stream, self.folder, self.settings)
                topic = tuples_topic(self.name, name)
                lane = CrossingLane(
                    self.name, sending.spool, sending.spool_id, receivers, self._publisher(topic), self.settings.window
                )
                lane.sending = Sending(self.settings.window, patience=_RECEIVERS)
                sending.given_up = lane.given_up
                self._lanes[topic] = self._crossing_lanes[name] = lane

    # What the program and its plan say

    def emit(self, record: Any) -> None:
        """A record of the plan, on its way. Nothing follows an End."""
        if not self._ended:
            for row in self.rows(record):
                self.put(row, size_of(row))

    def rows(self, record: Any) -> list[Pending]:
        """A record as it is at this moment, for later. A delivery of very many origins goes in parts."""
        row = pending(record, self.packer)
        if row[0] is not Kind.DELIVERY or len(row[6]) <= _MOST_ORIGINS:
            return [row]
        origins = row[6]
        return [
            (*row[:6], origins[at : at + _MOST_ORIGINS], int(at + _MOST_ORIGINS < len(origins)))
            for at in range(0, len(origins), _MOST_ORIGINS)
        ]

    def transmit(
        self, stream: StreamId, tuples: list[tuple[int, Any, Origin]], watermark: int, hold: int, idle: bool
    ) -> None:
        """What a Send of the plan says to other agents; it leaves when the deliveries before it are on disk."""
        if self._ended:
            return
        rows = packed(tuples, self.packer)
        size = sum([_ROW_BYTES + captured_size(data) for _, (_, data), _ in rows])

        def leave() -> None:
            self._sends[stream.name].add(rows, watermark, hold, idle, monotonic())

        self._outbox.after(leave, size)

    def took(self, crossing: Crossing, rows: list[Pending]) -> None:
        """A crossing went through the plan, and these rows came of it. They are put together, so that they are on disk
        with the news that it was taken; then its sender may forget it."""
        if self._ended:
            return
        sender, stream = crossing.stream.agent, crossing.stream.name
        together = [*rows, *self.rows(Received(sender, stream, crossing.spool, crossing.seq + 1))]
        self._outbox.put_all([(row, size_of(row)) for row in together])
        self._outbox.after(partial(self._taken, sender, stream, crossing.spool, crossing.seq + 1))

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything said so far is on disk. TimeoutError if it is not in time."""
        deadline = _NEVER if timeout is None else monotonic() + timeout
        while True:
            self.check()
            try:
                return self._outbox.flush(min(_TROUBLE_S, max(0.0, deadline - monotonic())))
            except TimeoutError:
                if monotonic() >= deadline:
                    reason = self._outbox.trouble or "the disk is slow"
                    raise TimeoutError(f"not on disk after {timeout} s: {reason}") from None

    def check(self) -> None:
        """AgentFailed if nothing is written or sent any more."""
        if self.failure is not None:
            raise AgentFailed(f"agent {self.name} stopped by a defect: {self.failure!r}") from self.failure

    # The thread

    def _run(self) -> None:
        self._outbox.take_over()
        try:
            while not self._stopping:
                try:
                    self._turn()
                except (SpoolError, OSError) as error:  # the disk's fault, not ours: it may be well again
                    _LOG.warning("the disk fails agent=%s error=%s", self.name, error)
                    self._outbox.wait(monotonic() + _TROUBLE_S)
        except Exception as error:
            _LOG.exception("the agent stopped by a defect agent=%s", self.name)
            self.failure = error
            self._outbox.fail()
            with self.arrival:
                self.arrival.notify_all()

    def _turn(self) -> None:
        """All that there is to do now; then sleep until there is more."""
        now = monotonic()
        while self._inbox:
            self._inbox.popleft()(now)
        until = self._outbox.step(now)
        while self._unanswered:
            self._answer(*self._unanswered.pop())
        for send in self._sends.values():
            until = min(until, send.step(now, self._finishing))
        for lane in self._lanes.values():
            until = min(until, lane.step(now))
        until = min(until, self._report(now))
        if not self._inbox:
            self._outbox.wait(until)

    def _tell(self, news: Callable[[float], None]) -> None:
        """On any thread: something for the agent's thread to do."""
        self._inbox.append(news)
        self._outbox.wake()

    def _publisher(self, topic: str) -> Callable[[bytes, int], None]:
        qos = self.settings.qos

        def publish(data: bytes, number: int) -> None:
            done = partial(self._tell, partial(self._over, topic, number))
            self._client.publish(topic, data, qos).add_done_callback(lambda _: done())

        return publish

    def _over(self, topic: str, number: int, now: float) -> None:
        self._lanes[topic].over(number, now)

    def _on_down(self, message: Message) -> None:
        try:
            answer = decode_answer(message.payload, self.name)
        except MalformedBatch as error:
            _LOG.warning("ignored an answer agent=%s error=%s", self.name, error)
        else:
            self._tell(partial(self._answered, answer))

    def _answered(self, answer: Answer, now: float) -> None:
        if isinstance(answer, Logged):
            self._uplink.logged(answer, now)
        elif answer.stream in self._crossing_lanes:
            lane = self._crossing_lanes[answer.stream]
            lane.taken(answer, now)
            if answer.nonce == NOTHING_TAKEN:  # a receiver has just begun, and may have missed all that is in flight
                for number in lane.sending.flights:
                    lane.sending.missing(number, now)

    def _on_crossing(self, sender: str, stream: str, message: Message) -> None:
        try:
            oldest, data = unframe(message.payload, sender)
            crossing = decode_crossing(data, sender, stream)
        except MalformedBatch as error:
            _LOG.warning("ignored what is no crossing agent=%s sender=%s error=%s", self.name, sender, error)
        else:
            self._tell(partial(self._crossed, crossing, oldest))

    def _crossed(self, crossing: Crossing, oldest: bool, now: float) -> None:
        ready, missing = self._receiving.arrived(crossing, oldest)
        sender, stream = crossing.stream.agent, crossing.stream.name
        if missing or any(each.lost for each in ready):
            lost = sum([each.lost for each in ready])
            messages = missing + sum([each.lost > 0 for each in ready])
            reason = f"given up by {sender}: {messages} messages of {stream} with {lost} tuples at most"
            _LOG.error("%s agent=%s", reason, self.name)
            self.emit(Gap(reason, crossing.stream.epoch, crossing.stream.nonce))
        if ready:
            with self.arrival:
                self.arrived.extend(ready)
                self.arrival.notify_all()
        elif self._positions.get(f"{sender}/{stream}") == self._receiving.position(sender, stream):
            # It came twice, or too early, and nothing that came before it is still on its way through the plan, to be
            # answered then: the sender does not know how far we are.
            self._unanswered.add((sender, stream))

    def _greet(self, sender: str, stream: str, subscribed: object) -> None:
        """On the client's thread, the stream is subscribed to: the sender need not wait with what it has for us."""
        self._tell(lambda _: self._unanswered.add((sender, stream)))

    def _taken(self, sender: str, stream: str, spool: int, next_seq: int) -> None:
        self._positions[f"{sender}/{stream}"] = [spool, next_seq]
        self._unanswered.add((sender, stream))

    def _answer(self, sender: str, stream: str) -> None:
        """Tell a sender how far we are: it has everything before that on our disk."""
        spool, next_seq = self._positions.get(f"{sender}/{stream}", (NOTHING_TAKEN, 0))
        answer = encode_answer(Taken(self.name, stream, spool, next_seq), sender)
        try:
            sent = self._client.publish(down_topic(sender), answer, self.settings.qos)
        except TransportError as error:  # it is asked for again
            _LOG.debug("no answer agent=%s reason=%s", self.name, error)
            return
        self._answers_in_flight += 1
        sent.add_done_callback(lambda _: self._tell(self._answered_one))

    def _answered_one(self, now: float) -> None:
        self._answers_in_flight -= 1

    # How it is

    def _report(self, now: float) -> float:
        """Tell the cloud, and whoever looks at the folder, how the agent is."""
        if now >= self._status_at and not self._finishing:
            self._status_at = now + self.settings.status_s
            self.emit(self._status())
        if now >= self._file_at:
            self._file_at = now + _STATUS_FILE_S
            self._write_status(self.status())
        return self._file_at if self._finishing else min(self._status_at, self._file_at)

    def _write_status(self, status: dict[str, Any]) -> None:
        """For whoever looks at the folder: always a whole file, also if we are killed meanwhile."""
        from json import dumps

        draft = self.folder / "status.json.new"
        try:
            draft.write_text(dumps(status))
            draft.replace(self.folder / "status.json")
        except OSError as error:
            _LOG.debug("no status file agent=%s error=%s", self.name, error)

    def _status(self) -> Status:
        stats = self._client.stats()
        link = {
            "state": stats.state,
            "round_trip_s": stats.round_trip_s,
            "sent": stats.sent,
            "resent": stats.resent,
            "reconnects": stats.reconnects,
            "congestion": stats.congestion,
        }
        return Status(
            clock_ms=time_ns() // 1_000_000,
            spool_batches=self._spool.count,
            spool_bytes=self._spool.size_bytes,
            unacknowledged=self._uplink.unacknowledged,
            dropped=self._outbox.dropped,
            replaced=self.packer.replaced,
            link=link,
            operators=self.operators(),
        )

    def status(self) -> dict[str, Any]:
        """The same for people: spool, acknowledgements, drops and the quality of the link."""
        state, status = self._outbox.state, self._status()
        return {
            "agent": self.name,
            "pid": os.getpid(),
            "epoch": self.epoch.counter,
            "batches": state.next_seq,
            "unacknowledged": status.unacknowledged,
            "spool_bytes": status.spool_bytes,
            "spool_most_bytes": self.settings.spool_bytes,
            "memory_bytes": self._outbox.held_bytes,
            "dropped": status.dropped,
            "replaced": status.replaced,
            "resent_batches": self._uplink.sending.resent,
            "duplicate_agent": self._uplink.duplicate,
            "trouble": str(self.failure or self._outbox.trouble),
            "sends": {
                name: {
                    "not_taken": send.spool.count,
                    "bytes": send.spool.size_bytes,
                    "given_up": send.lost,
                    "trouble": send.trouble,
                }
                for name, send in self._sends.items()
            },
            "receives": {
                f"{sender}/{stream}": self._positions.get(f"{sender}/{stream}", (NOTHING_TAKEN, 0))[1]
                for sender, stream in self._receives
            },
            "link": status.link,
            "at_ms": status.clock_ms,
        }

    # The end

    def let_go(self) -> None:
        """From now on nobody waits for room: whoever did so has to end."""
        self._outbox.close()

    def close(self, timeout: float = 10.0) -> int:
        """Say the end, try for so long to have everything acknowledged, and stop. Returns how much is left for the next
        start."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self.let_go()
                if self._thread.is_alive():
                    self._finish(monotonic() + timeout)
                self._stop()
        return self.left

    def _finish(self, deadline: float) -> None:
        self._finishing = True
        try:
            self.flush(max(1.0, deadline - monotonic()))
            if self._comes_true(lambda: not any(send.waiting for send in self._sends.values()), deadline):
                # Without an End the next start says that something was lost.
                self.emit(End(time_ns() // 1_000_000))
                self._ended = True
            else:
                _LOG.error("the last tuples for other agents are not on disk agent=%s", self.name)
            self._outbox.finish()
            self.flush(max(1.0, deadline - monotonic()))
        except (TimeoutError, AgentFailed) as error:
            _LOG.error("the last records are not on disk agent=%s error=%s", self.name, error)
        self._comes_true(lambda: not (self.left or self._unanswered or self._answers_in_flight), deadline)

    def _comes_true(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether the agent's thread sees that in time."""
        seen = threading.Event()

        def look(now: float) -> None:
            if condition():
                seen.set()

        while self._thread.is_alive():
            self._tell(look)
            if seen.wait(_LOOK_S):
                return True
            if monotonic() >= deadline:
                break
        return False

    def _stop(self) -> None:
        self._ended = self._stopping = True
        self._outbox.wake()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._client.close(timeout=1.0 if self._client.connected else 0.0)
        self._write_status({**self.status(), "pid": None})
        for send in self._sends.values():
            send.close()
        self._outbox.end()
        self._spool.close()
        self._memory.close()

    @property
    def left(self) -> int:
        """Batches and crossings that were not acknowledged yet."""
        return self._spool.count + sum([send.spool.count for send in self._sends.values()])

    def __enter__(self) -> Agent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def default_agent() -> Agent:
    """The agent of a program that was started by itself: configured by the environment, or the file that it names.

    Processes of one program share its name and may not share a spool: the second one is called name-2.
    """
    settings = load_settings()
    name = settings.name or host_name()
    folder = Path(settings.spool) if settings.spool else state_folder() / name
    for number in range(1, _MOST_SIBLINGS):
        suffix = "" if number == 1 else f"-{number}"
        own = replaced(settings, name=f"{name[: 23 - len(suffix)]}{suffix}", spool=f"{folder}{suffix}")
        try:
            return Agent(own).start()
        except SpoolLocked:
            continue
    raise ConfigError(f"{_MOST_SIBLINGS} processes use the spool {folder} and its siblings already")


def host_name() -> str:
    """The name of this machine, as far as it can be an agent's."""
    name = re.sub("[^a-z0-9-]", "-", socket.gethostname().lower())[:23]
    return name if re.fullmatch(AGENT_NAME, name) else "agent"


def state_folder() -> Path:
    """Where agents keep their spools if they are not told."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "threadline"

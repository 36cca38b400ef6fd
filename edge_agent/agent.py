"""A running agent: what a program captures and what its plan delivers, on disk at once and in the cloud when it can be.

One thread writes and sends, so that neither the program nor its plan ever waits for a disk or a network.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

from edge_agent.background import Background
from edge_agent.config import ConfigError, Settings, load_settings
from edge_agent.epoch import begin_epoch
from edge_agent.home import MOST_SIBLINGS, at_home, sibling
from edge_agent.lanes import Lane, Publish, Uplink
from edge_agent.logger import Logger
from edge_agent.outbox import Outbox
from edge_agent.outbox.memory import Memory
from edge_agent.outbox.recovery import close_journal, gap_after_crash
from edge_agent.renewal import Renewal
from edge_agent.spool import Spool, SpoolError, SpoolLocked
from edge_agent.status_file import StatusFile, WritingTimes
from edge_agent.transport import Client, Message
from protocol.records import Declared, End, Status
from protocol.topics import down_topic, up_topic
from protocol.wire.answers import Answer, Logged, decode_answer
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from protocol.wire.sections import Kind, Pending, in_parts, pending_sized

if TYPE_CHECKING:  # a program without a plan should not wait for them
    from edge_agent.exchange import Exchange
    from protocol.plan import PlanDocument

_LOG = Logger(__name__)
_MOST_ORIGINS = 2_000  # of one record; a delivery that has more is told in parts
# Of the time between two statuses: the next one may come earlier by so much, with records that leave anyway.
_EARLY = 0.2
_TROUBLE_S = 1.0  # how long to leave a disk alone that has failed
_LOOK_S = 0.5
_STUCK_S = 5.0  # how long its thread may take to end, once it is told to
_TELL_S = 60.0  # how often at most to tell of messages that mean nothing, and of a disk that fails


class AgentFailed(RuntimeError):
    """The agent's thread has ended, as a rule by a defect: nothing is written or sent any more."""


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
        self.folder = os.path.abspath(settings.spool)  # the program may change its own
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None  # for whoever would wait on and on
        self._awaited: Callable[[], None] = lambda: None
        self._closing = threading.Lock()
        self._closed = self._finishing = self._stopping = False
        self._ending = threading.Lock()
        self._has_ended = self._is_late = False
        """The thread has; or it could not when the agent was closed, so that it closes all files itself. Before that
        they are in its use: it would write to what the program has in their place by then."""
        self.unwritten = 0
        """Records that were still in memory only when it was closed, and are lost."""
        self._ignored = 0
        self._tell_at = 0.0
        self._trouble = ""  # a disk that fails elsewhere than in the outbox
        self._tell_trouble_at = 0.0
        self.ended = False
        """Nothing is said any more: the End was the last, or there is nobody left to write it."""
        self._keys = count()
        self.new_key: Callable[[], int] = self._keys.__next__
        self.operators: Callable[[], dict[str, tuple[int, int, int, int]]] = dict
        self.exchange: Exchange | None = None
        """With other agents, if the plan sends to any or receives from any."""
        self._inbox: deque[Callable[[float], None]] = deque()
        self._renewal = Renewal()
        self._status_file: StatusFile | None = None
        self._status_at = 0.0
        self._file_times = WritingTimes()
        self._thread = Background(target=self._run, name=f"agent {self.name}", daemon=True)
        self._opened = ExitStack()
        """What is to be closed at the end, each whatever becomes of the others; the spool, with its lock, last."""
        try:
            self._take_up(plan)
        except BaseException:  # else whoever tries again in this process would be locked out by itself
            self._opened.close()
            raise

    def _take_up(self, plan: PlanDocument | None) -> None:
        """Go on with what the last start has left in the folder."""
        settings = self.settings
        self._spool = Spool.open(os.path.join(self.folder, "up"), max_bytes=settings.spool_bytes, fsync=settings.fsync)
        self._opened.callback(self._spool.close)
        self._memory = Memory(self.folder)
        self._opened.callback(self._memory.close)
        self.epoch = begin_epoch(self.folder)
        left = close_journal(self._spool, self.name)
        gap = gap_after_crash(self._spool, self._memory.last, self.name, left, self.epoch)
        self._outbox = Outbox(self.name, self.epoch, self._spool, self._memory, self.packer, settings)
        self._opened.callback(self._outbox.end)
        self.put = self._outbox.put
        self._outbox.take_over()  # until its thread does: nobody else could make room for what it says first
        if gap is not None:
            self.emit(gap)  # first of all: an epoch of which anything is on disk has told of the one before it
        if plan is not None:
            self.emit(Declared(plan.to_json()))
        self._client = Client(settings.gateways, self.name, keep_alive_s=settings.keep_alive_s)
        self._uplink = Uplink(self.name, self._spool, self.publisher(up_topic(self.name)), settings.window)
        self._lanes: dict[str, Lane] = {up_topic(self.name): self._uplink}
        self._outbox.given_up = self._uplink.given_up
        if self._memory.last is not None:  # of all streams: what this plan does not receive, the next one may
            self._outbox.state.positions = self._memory.last.positions
        if plan is not None and any(node.operator in ("send", "receive") for node in plan.nodes):
            from edge_agent.exchange import Exchange

            self.exchange = Exchange(self, plan, self._outbox, self._client)
            self._opened.callback(self.exchange.close)
            self._lanes.update(self.exchange.lanes)
        self._outbox.begin(left)

    def start(self) -> Agent:
        """Begin to write and to send."""
        self._client.start()
        self.subscribe()
        self._thread.start()
        return self

    def subscribe(self) -> None:
        """Hear answers, and what other agents send."""
        self._client.subscribe(down_topic(self.name), self._on_down, qos=1)
        if self.exchange is not None:
            self.exchange.start()

    # What the program and its plan say

    def emit(self, record: Any) -> None:
        """A record of the plan, on its way. Nothing follows an End."""
        if not self.ended:
            row, size = pending_sized(record, self.packer)
            if row[0] is not Kind.DELIVERY or len(row[6]) <= _MOST_ORIGINS:  # as a rule
                self.put(row, size)
                return
            for part, part_size in _in_parts(row, size):
                self.put(part, part_size)

    def rows(self, record: Any) -> list[tuple[Pending, int]]:
        """A record as it is at this moment, for later, and its size. A delivery of very many origins goes in parts."""
        row, size = pending_sized(record, self.packer)
        return _in_parts(row, size) if row[0] is Kind.DELIVERY else [(row, size)]

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything said so far is on disk. TimeoutError if it is not in time."""
        self.check()
        if not self._has_stopped:  # else whatever came too late was told so
            self._outbox.flush(timeout, self._check_writing)

    def check(self) -> None:
        """AgentFailed if nothing is written or sent any more."""
        if self.failure is not None:
            raise AgentFailed(f"agent {self.name} stopped by a defect: {self.failure!r}") from self.failure

    def _check_writing(self) -> None:
        self.check()
        if self._has_stopped:
            raise AgentFailed(f"agent {self.name} has ended meanwhile")

    @property
    def _has_stopped(self) -> bool:
        return self._stopping and not self._thread.is_alive()

    # The thread

    def _run(self) -> None:
        self._outbox.take_over()
        self._write_and_send()
        with self._ending:
            self._has_ended = True
            if self._is_late:
                self._close_late()

    def _write_and_send(self) -> None:
        try:
            while not self._stopping:
                until = self.turn(monotonic())
                if not self._inbox:
                    self._outbox.wait(until)
        except Exception as error:
            _LOG.exception("the agent stopped by a defect agent=%s", self.name)
            self.failure = error
            self._outbox.refuse()
            self.on_failure()

    def _close_late(self) -> None:
        try:
            self._opened.close()
        except (SpoolError, OSError) as error:
            _LOG.error("the spool was not closed well agent=%s error=%s", self.name, error)

    def turn(self, now: float) -> float:
        """All that there is to do now; returns when to come back at the latest."""
        try:
            until = self._work(now)
            self._trouble = ""
        except (SpoolError, OSError) as error:  # the disk's fault, not ours: it may be well again
            self._meet_trouble(error, now)
            until = min(now + _TROUBLE_S, self._outbox.step(now))  # which may have to write before that
        self._renew(now)
        until = min(until, self._report(now))
        self._awaited()
        return until

    def _meet_trouble(self, error: Exception, now: float) -> None:
        if now >= self._tell_trouble_at:
            self._tell_trouble_at = now + _TELL_S
            _LOG.warning("the disk fails agent=%s error=%s", self.name, error)
        self._trouble = str(error)

    def _work(self, now: float) -> float:
        while self._inbox:
            self._inbox.popleft()(now)
        until = self._outbox.step(now)
        if self.exchange is not None:
            until = min(until, self.exchange.step(now, hurry=self._finishing))
        for lane in self._lanes.values():
            until = min(until, lane.step(now))
        return until

    def _renew(self, now: float) -> None:
        """Connect anew if nobody answers for very long: what the gateway knows of us may not be what we told it."""
        silent_since = self._uplink.sending.silent_since
        if self.exchange is not None:
            silent_since = min(silent_since, self.exchange.silent_since(now))
        if self._renewal.is_due(now, silent_since, self._client.connected):
            _LOG.warning("connects anew, as nobody answers agent=%s silent_s=%.0f", self.name, now - silent_since)
            self._client.renew()
            self.subscribe()

    def tell(self, news: Callable[[float], None]) -> None:
        """On any thread: something for the agent's thread to do."""
        self._inbox.append(news)
        self._outbox.wake()

    def publisher(self, topic: str) -> Publish:
        """What a lane publishes with; the agent's thread tells it when that is over."""

        def publish(data: bytes, number: int) -> None:
            sent = self._client.publish(topic, data, self.settings.qos)
            sent.add_done_callback(lambda _: self.tell(lambda now: self._lanes[topic].over(number, now)))

        return publish

    def _on_down(self, message: Message) -> None:
        try:
            answer = decode_answer(message.payload, self.name)
        except MalformedBatch as error:
            self.ignore("no answer", error)
        else:
            self.tell(partial(self._answered, answer))

    def ignore(self, what: str, error: MalformedBatch) -> None:
        """On the client's thread: a message means nothing. Anybody may send thousands, so they are counted, and told of
        now and then."""
        self._ignored += 1
        if monotonic() >= self._tell_at:
            self._tell_at = monotonic() + _TELL_S
            _LOG.warning("ignored what is %s agent=%s messages=%d error=%s", what, self.name, self._ignored, error)

    def _answered(self, answer: Answer, now: float) -> None:
        if isinstance(answer, Logged):
            self._uplink.logged(answer, now)
            declared_by = self._outbox.declared_by
            if self.exchange is not None and answer.nonce == self.epoch.nonce and declared_by is not None:
                self.exchange.logged(has_plan=answer.next_seq >= declared_by)
        elif self.exchange is not None:
            self.exchange.taken(answer, now)

    # How it is

    def _report(self, now: float) -> float:
        """Tell the cloud, and whoever looks at the folder, how the agent is."""
        early_s = _EARLY * self.settings.status_s if self._outbox.held_bytes else 0.0
        if now >= self._status_at - early_s and not self._finishing:
            if not self._status_at:
                self._outbox.hurry()  # that it has started, and with which plan, the cloud should know at once
            self._status_at = now + self.settings.status_s
            self.emit(self._status())
        file_at = self._report_in_file(now)
        return file_at if self._finishing else min(self._status_at, file_at)

    def _report_in_file(self, now: float) -> float:
        outbox, uplink = self._outbox, self._uplink
        held_bytes, trouble = outbox.held_bytes, outbox.trouble or self._trouble
        state = outbox.state.next_seq, uplink.acknowledged, held_bytes, outbox.dropped, trouble, self._client.connected
        is_complete = not (held_bytes or uplink.unacknowledged)
        if now >= self._file_times.due(now, state, is_complete=is_complete):
            self._write_status(self.status())
            self._file_times.written(now, state)
        return self._file_times.due(now, state, is_complete=is_complete)

    def _write_status(self, status: dict[str, Any]) -> None:
        """For whoever looks at the folder."""
        try:
            if self._status_file is None:
                self._status_file = StatusFile(self.folder)
                self._opened.callback(self._status_file.close)
            self._status_file.write(status)
        except OSError as error:
            _LOG.debug("no status file agent=%s error=%s", self.name, error)

    def _status(self) -> Status:
        stats = self._client.stats()
        link = {
            "state": stats.state,
            "round_trip_s": stats.round_trip_s,
            "sent": stats.sent,
            "resent": stats.resent,
            "duplicates": stats.duplicates,
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
            "acknowledged": self._uplink.acknowledged,
            "unacknowledged": status.unacknowledged,
            "spool_bytes": status.spool_bytes,
            "spool_most_bytes": self.settings.spool_bytes,
            "memory_bytes": self._outbox.held_bytes,
            "dropped": status.dropped,
            "unreadable": sum([len(numbers) for numbers in self._spool.lost]),
            "replaced": status.replaced,
            "resent_batches": self._uplink.sending.resent,
            "renewals": self._renewal.count,
            "ignored": self._ignored,
            "duplicate_agent": self._uplink.duplicate,
            "trouble": str(self.failure or self._outbox.trouble or self._trouble),
            **({"sends": {}, "receives": {}, "in_vain": {}} if self.exchange is None else self.exchange.status()),
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
                self.unwritten = self._outbox.unwritten
                if self.unwritten:
                    _LOG.error("records could not be written and are lost agent=%s count=%d", self.name, self.unwritten)
        return self.left

    def _finish(self, deadline: float) -> None:
        self._finishing = True
        exchange = self.exchange
        try:
            if exchange is not None:
                self.flush(max(1.0, deadline - monotonic()))  # then it has the last tuples
            if exchange is None or self._comes_true(lambda: not exchange.waiting, deadline):
                # Without an End the next start says that something was lost.
                self.emit(End(time_ns() // 1_000_000))
                self.ended = True
            else:
                _LOG.error("the last tuples for other agents are not on disk agent=%s", self.name)
            self._outbox.finish()
            self.flush(max(1.0, deadline - monotonic()))
        except (TimeoutError, AgentFailed) as error:
            _LOG.error("the last records are not on disk agent=%s error=%s", self.name, error)
        self._comes_true(lambda: not (self.left or (exchange is not None and exchange.owes_answers)), deadline)

    def _comes_true(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether the agent's thread sees that in time, after whatever it does."""
        seen = threading.Event()
        self._awaited = lambda: seen.set() if condition() else None
        self._outbox.wake()
        while not seen.wait(max(_LOOK_S / 5, min(_LOOK_S, deadline - monotonic()))):
            if monotonic() >= deadline or not self._thread.is_alive():
                return False
        return True

    def _stop(self) -> None:
        self._outbox.refuse(_discarded)
        self.ended = self._stopping = True
        self._outbox.wake()
        if self._thread.is_alive():
            self._thread.join(_STUCK_S)
        self._client.close(timeout=1.0 if self._client.connected else 0.0)
        with self._ending:
            self._is_late = self._thread.is_alive() and not self._has_ended
        if self._is_late:
            _LOG.error("the disk stands still: files stay open until it goes on agent=%s", self.name)
        else:
            self._write_status({**self.status(), "pid": None})
            self._opened.close()

    @property
    def left(self) -> int:
        """Batches and crossings that were not acknowledged yet."""
        return self._spool.count + (0 if self.exchange is None else self.exchange.left)

    def __enter__(self) -> Agent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _discarded() -> None:
    from edge_agent.capture.misuse import misuse  # whoever does not capture should not wait for it

    misuse.tell("discarded", "the agent has ended: what is captured now is discarded")


def _in_parts(delivery: Pending, size: int) -> list[tuple[Pending, int]]:
    parts = in_parts(delivery, _MOST_ORIGINS)
    return [(part, size // len(parts)) for part in parts]


def default_agent() -> Agent:
    """The agent of a program that was started by itself: configured by the environment, or the file that it names."""
    settings = at_home(load_settings())
    for number in range(1, MOST_SIBLINGS + 1):
        try:
            agent = Agent(sibling(settings, number)).start()
        except SpoolLocked:
            continue
        if os.path.exists(sibling(settings, number + 1).spool):  # more of them once ran at the same time
            from edge_agent.siblings import tell_of_left

            tell_of_left(settings)
        return agent
    raise ConfigError(f"{MOST_SIBLINGS} processes use the spool {settings.spool} and its siblings already")

"""A running agent: what a program captures and what its plan delivers, on disk at once and in the cloud when it can be.

One thread writes and sends, so that neither the program nor its plan ever waits for a disk or a network.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

from edge_agent.config import ConfigError, Settings, load_settings
from edge_agent.epoch import begin_epoch
from edge_agent.grouping import size_of
from edge_agent.lanes import Lane, Uplink
from edge_agent.memory import Memory
from edge_agent.outbox import Outbox
from edge_agent.recovery import close_journal, gap_after_crash
from edge_agent.spool import Spool, SpoolLocked
from edge_agent.transport import Client, Message
from protocol.records import Declared, End, Status
from protocol.topics import AGENT_NAME, down_topic, up_topic
from protocol.wire.answers import Answer, Logged, decode_answer
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, Pending, pending
from protocol.wire.values import Packer

_LOG = logging.getLogger(__name__)
_MOST_ORIGINS = 2_000  # of one record; a delivery that has more is told in parts
_ROW_BYTES = 64  # that a record takes up in memory, besides its values
_STATUS_FILE_S = 2.0
_MOST_SIBLINGS = 100
_NEVER = float("inf")


class Agent:
    """Takes records from the program and its plan, and gets them to the log, through crashes of everything.

    It is what `threadline-agent run` hands to `main(agent)`, and what the capture API uses.
    """

    def __init__(self, settings: Settings, plan: str | None = None) -> None:
        if not settings.gateways:
            raise ConfigError("no gateway: set THREADLINE_GATEWAY or give --gateway HOST:PORT")
        self.settings = settings
        self.name = settings.name
        self.durable = settings.durable
        self.packer = Packer(strict=settings.strict)
        self.folder = Path(settings.spool)
        self._keys = count()
        self.new_key: Callable[[], int] = self._keys.__next__
        self._spool = Spool.open(self.folder / "up", max_bytes=settings.spool_bytes, fsync=settings.fsync)
        self._memory = Memory(self.folder)
        self.epoch = begin_epoch(self.folder)
        close_journal(self._spool, self.name)
        gap = gap_after_crash(self._spool, self._memory.last, self.name)
        self._outbox = Outbox(self.name, self.epoch, self._spool, self._memory, self.packer, settings)
        self._memory.keep(self._outbox.state, durable=True)
        self.put = self._outbox.put
        self.flush = self._outbox.flush
        if plan is not None:
            self.emit(Declared(plan))
        if gap is not None:
            self.emit(gap)
        self._client = Client(settings.gateways, self.name, keep_alive_s=settings.keep_alive_s)
        self._uplink = Uplink(self.name, self._spool, self._publisher(up_topic(self.name)), settings.window)
        self._lanes: list[Lane] = [self._uplink]
        self._outbox.given_up = self._uplink.given_up
        self._inbox: deque[Callable[[float], None]] = deque()
        self._status_at = self._file_at = 0.0
        self._stopping = False
        self.operators: Callable[[], dict[str, tuple[int, int, int, int]]] = dict
        self._thread = threading.Thread(target=self._run, name=f"agent {self.name}", daemon=True)

    def start(self) -> Agent:
        """Begin to write and to send."""
        self._client.start()
        self._client.subscribe(down_topic(self.name), self._on_down, qos=1)
        self._thread.start()
        return self

    # What the program and its plan say

    def emit(self, record: Any) -> None:
        """A record of the plan, on its way. A delivery of very many origins goes in parts."""
        row = pending(record, self.packer)
        if row[0] is Kind.DELIVERY and len(row[6]) > _MOST_ORIGINS:
            self._emit_parts(row)
        else:
            self.put(row, _ROW_BYTES + size_of(row))

    def _emit_parts(self, row: Pending) -> None:
        origins = row[6]
        for at in range(0, len(origins), _MOST_ORIGINS):
            more = int(at + _MOST_ORIGINS < len(origins))
            part = (*row[:6], origins[at : at + _MOST_ORIGINS], more)
            self.put(part, _ROW_BYTES + size_of(part))

    # The thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                now = monotonic()
                while self._inbox:
                    self._inbox.popleft()(now)
                until = self._outbox.step(now)
                for lane in self._lanes:
                    until = min(until, lane.step(now))
                until = min(until, self._report(now))
                if not self._inbox:
                    self._outbox.wait(until)
        except Exception:
            _LOG.exception("the agent stopped by a defect agent=%s", self.name)
            self._outbox.close()

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
        self._uplink.over(number, now)

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

    # How it is

    def _report(self, now: float) -> float:
        """Tell the cloud, and whoever looks at the folder, how the agent is."""
        if now >= self._status_at:
            self._status_at = now + self.settings.status_s
            self.emit(self._status())
        if now >= self._file_at:
            self._file_at = now + _STATUS_FILE_S
            try:
                (self.folder / "status.json").write_text(json.dumps(self.status()))
            except OSError as error:
                _LOG.debug("no status file agent=%s error=%s", self.name, error)
        return min(self._status_at, self._file_at)

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
            "trouble": self._outbox.trouble,
            "link": status.link,
            "at_ms": status.clock_ms,
        }

    # The end

    def close(self, timeout: float = 10.0) -> int:
        """Say the end, try for so long to have everything acknowledged, and stop. Returns how many batches are left for
        the next start."""
        if self._stopping:
            return self._spool.count
        deadline = monotonic() + timeout
        self.emit(End(time_ns() // 1_000_000))
        self._outbox.finish()
        try:
            self.flush(max(1.0, timeout))
        except TimeoutError as error:
            _LOG.error("the last records are not on disk agent=%s error=%s", self.name, error)
        drained = threading.Event()

        def look(now: float) -> None:
            if self._spool.count == 0:
                drained.set()

        while not drained.wait(0.02) and monotonic() < deadline and self._thread.is_alive():
            self._tell(look)
        self._stopping = True
        self._outbox.close()
        self._outbox.wake()
        self._thread.join(5.0)
        self._client.close(timeout=1.0)
        left = self._spool.count
        try:
            (self.folder / "status.json").write_text(json.dumps({**self.status(), "pid": None}))
        except OSError:
            pass
        self._spool.close()
        self._memory.close()
        return left

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
    folder = Path(settings.spool) if settings.spool else _state_folder() / name
    for number in range(1, _MOST_SIBLINGS):
        suffix = "" if number == 1 else f"-{number}"
        own = replace(settings, name=f"{name[: 23 - len(suffix)]}{suffix}", spool=f"{folder}{suffix}")
        try:
            return Agent(own).start()
        except SpoolLocked:
            continue
    raise ConfigError(f"{_MOST_SIBLINGS} processes use the spool {folder} and its siblings already")


def host_name() -> str:
    """The name of this machine, as far as it can be an agent's."""
    name = re.sub("[^a-z0-9-]", "-", socket.gethostname().lower())[:23]
    return name if re.fullmatch(AGENT_NAME, name) else "agent"


def _state_folder() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "threadline"

"""The translator: from MQTT to the log.

Batches are gathered while the last commit is on its way to the disk and committed together, shard by shard; only then
are the agents told. Whatever is lost in between, here or in the broker, the agents send again.

Two threads: one listens and answers, the other does everything that touches a shard, one thing after the other. So no
disk ever keeps the broker waiting, and nothing is taken while a commit runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import aiomqtt
from paho.mqtt.reasoncodes import ReasonCode

from collector.brake import EVERY_S, MOST_UNREAD_BYTES, Brake
from collector.log import LogError, ShardInUse, has_segments, listed, log_id
from collector.quarantine import Quarantine
from collector.registry import Registry, RegistryError
from collector.shard_log import RETIRE_AFTER_S, Counters, ShardLog
from collector.side_by_side import side_by_side
from protocol.topics import agent_of_up, down_topic, shard_of
from protocol.wire.answers import Logged, encode_answer

_LOG = logging.getLogger(__name__)
_RECONNECT_S = 1.0
_LOCK_RETRY_S = 0.5
_TROUBLE_S = 1.0
_RETIRE_EVERY_S = 10.0
_GOODBYE_S = 2.0
_TELL_S = 10.0
_MOST_TOGETHER = 1_000
_MOST_WAITING_BYTES = 64 << 20
_MOST_WAITING_OF_ONE = 1_000  # batches of one agent; honest ones have a window of some dozens

Answers = list[tuple[str, Logged]]


@dataclass(frozen=True, slots=True)
class TranslatorOptions:
    """Where from, where to, and which part."""

    mqtt: tuple[str, int]
    log: Path
    shards: Sequence[int]
    commit_s: float = 0.005
    retire_after_s: float = RETIRE_AFTER_S
    most_unread_bytes: int | None = MOST_UNREAD_BYTES
    """How much of the log may be unread: above that, nothing more is taken. None: however much."""
    metrics: tuple[str, int] | None = None


class _Trouble(NamedTuple):
    """A shard whose log cannot be written."""

    text: str
    since: float
    again_at: float


class Translator:
    """Translates some shards until it is stopped."""

    def __init__(self, options: TranslatorOptions) -> None:
        self._options = options
        self._registry = _registry_of(options.log)
        self._quarantine = Quarantine(options.log / "quarantine")
        self._inbox: list[tuple[str, bytes]] = []
        self._waiting: Counter[str] = Counter()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._has_shard = asyncio.Event()
        self._client: aiomqtt.Client | None = None
        self._away_since: float | None = monotonic()
        self._to_greet: list[int] = []
        self._stopping = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, "shards")
        self.commits = 0
        self.commit_s = 0.0
        self.not_mine = 0
        self.overrun = 0
        self.untold = 0
        self.troubled = 0
        self.must_wait = 0
        self.held_back = 0
        # From here on: the worker's own.
        self._shards: dict[int, ShardLog] = {}
        self._in_trouble: dict[int, _Trouble] = {}
        self._brake = Brake(options.log, options.most_unread_bytes)
        self._told_of_waiting = ""
        self._retire_at = monotonic() + _RETIRE_EVERY_S

    async def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        if self._options.metrics is not None:
            from collector.metrics import serve

            serve(self, *self._options.metrics)
        listening = asyncio.create_task(self._listen())
        working = [asyncio.create_task(each) for each in (self._take_shards(), self._commit_all())]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([listening, *working, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a defect
        finally:
            for task in [*working, stopping]:
                task.cancel()
            await asyncio.gather(*working, stopping, return_exceptions=True)
            # Whatever the worker is doing, it ends that first.
            answers = await loop.run_in_executor(self._worker, self._end)
            try:
                async with asyncio.timeout(_GOODBYE_S):
                    await self._tell(answers)
            except TimeoutError:
                pass  # the agents hear it from the successor
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            self._worker.shutdown()

    def totals(self) -> dict[str, int]:
        """The counters of all shards together. For any thread."""
        shards = list(self._shards.values())
        counted = {each.name: sum(getattr(shard.counters, each.name) for shard in shards) for each in fields(Counters)}
        return {
            **counted,
            "duplicates": sum(shard.duplicates for shard in shards),
            "early_dropped": sum(shard.early_dropped for shard in shards),
            "agents": sum(shard.agents for shard in shards),
            "shards": len(shards),
            "shards_in_trouble": len(self._in_trouble),
            "commits": self.commits,
            "not_mine": self.not_mine,
            "overrun": self.overrun,
            "untold": self.untold,
            "troubled": self.troubled,
            "must_wait": self.must_wait,
            "held_back": self.held_back,
            "is_holding_back": int(self._brake.is_on),
            "unread_bytes": self._brake.unread.size_bytes,
            "most_unread_bytes": self._brake.most_bytes or 0,
            "quarantine_full": self._quarantine.not_kept,
        }

    @property
    def held_s(self) -> float:
        """For how long nothing could be taken, as often as that was."""
        return self._brake.held_s

    # MQTT

    async def _listen(self) -> None:
        host, port = self._options.mqtt
        told = ""
        while True:
            try:
                async with aiomqtt.Client(
                    host,
                    port,
                    identifier=f"tl-translator-{socket.gethostname()[:24]}-{os.getpid()}",
                    queue_type=_handed_to(self._put),
                    socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],  # answers are small, and waited for
                ) as client:
                    client.pending_calls_threshold = 1_000_000
                    self._client, told = client, ""
                    await side_by_side(self._subscribe(client), self._receive(client))
            except aiomqtt.MqttError as error:
                if str(error) != told:
                    _LOG.warning("mqtt is away host=%s:%d error=%s", host, port, error)
                    told = str(error)
            finally:
                self._client = None
                self._away_since = self._away_since or monotonic()
            await asyncio.sleep(_RECONNECT_S)

    async def _subscribe(self, client: aiomqtt.Client) -> None:
        """Listen to the agents of every shard as soon as it was taken, and tell those that wait how far they are."""
        served: list[int] = []
        while True:
            self._has_shard.clear()
            for shard in [each for each in list(self._shards) if each not in served]:  # the worker adds some meanwhile
                granted = await client.subscribe(f"tl/{shard}/+/up", qos=1)
                if any(_is_refusal(code) for code in granted):
                    raise aiomqtt.MqttError(f"the broker does not let us listen to tl/{shard}/+/up")
                served.append(shard)
                self._to_greet.append(shard)
                self._arrived.set()
            if len(served) == len(self._options.shards):
                _LOG.info("translator ready mqtt=%s:%d shards=%d", *self._options.mqtt, len(served))
            await self._has_shard.wait()

    async def _receive(self, client: aiomqtt.Client) -> None:
        """Until the connection is lost. What comes is taken right away, and never by this way."""
        async for _ in client.messages:
            pass

    def _put(self, topic: str, payload: bytes) -> None:
        """A batch waits for its turn. If there is no room for it, the agent sends it again: later, and that is well."""
        agent = agent_of_up(topic)
        if agent is None or shard_of(agent) not in self._shards:
            self.not_mine += 1
        elif self._waiting[agent] >= _MOST_WAITING_OF_ONE or self._waiting_bytes + len(payload) > _MOST_WAITING_BYTES:
            self.overrun += 1
        else:
            self._waiting[agent] += 1
            self._waiting_bytes += len(payload)
            self._inbox.append((agent, payload))
            self._arrived.set()

    async def _tell(self, answers: Answers) -> None:
        """All at once: were each sent before the next is begun, everything that comes in the meantime would be read in
        between, and a thousand agents would wait for seconds, and send again."""
        client = self._client
        if client is None:
            self.untold += len(answers)  # the agents ask again
            return
        sending = [
            asyncio.ensure_future(client.publish(down_topic(agent), encode_answer(answer, agent), qos=0, timeout=inf))
            for agent, answer in answers
        ]
        try:
            async with asyncio.timeout(_TELL_S):
                await asyncio.gather(*sending, return_exceptions=True)
        except TimeoutError:
            pass
        for each in sending:
            error = None if each.cancelled() else each.exception()
            if each.cancelled() or isinstance(error, aiomqtt.MqttError):
                self.untold += 1
            elif error is not None:
                raise error  # a defect

    # Between the threads

    async def _take_shards(self) -> None:
        """Take every shard as soon as nobody else has it; each is one writer's."""
        loop = asyncio.get_running_loop()
        waiting: dict[int, LogError | RegistryError] = {}
        while len(self._shards) < len(self._options.shards):
            told = {shard: _why(error) for shard, error in waiting.items()}
            for shard in [each for each in self._options.shards if each not in self._shards]:
                trouble = await loop.run_in_executor(self._worker, self._open, shard)
                if trouble is None:
                    waiting.pop(shard, None)
                    self._has_shard.set()
                else:
                    waiting[shard] = trouble
            _tell_waiting({shard: error for shard, error in waiting.items() if _why(error) != told.get(shard)})
            if waiting:
                await asyncio.sleep(_LOCK_RETRY_S)
        _LOG.info("translator has its shards count=%d", len(self._shards))
        await asyncio.Future()

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._arrived.wait()
                await asyncio.sleep(self._options.commit_s)  # so that more come along
            except TimeoutError:
                pass
            self._arrived.clear()
            batches, self._inbox = self._inbox[:_MOST_TOGETHER], self._inbox[_MOST_TOGETHER:]
            for agent, payload in batches:
                self._waiting[agent] -= 1
                self._waiting_bytes -= len(payload)
            self._waiting += Counter()  # those that are none are forgotten
            greeted, self._to_greet = self._to_greet, []
            away_s = 0.0
            if self._client is not None and self._away_since is not None:
                away_s, self._away_since = monotonic() - self._away_since, None
            await self._tell(await loop.run_in_executor(self._worker, self._work, batches, greeted, away_s))
            if self._inbox:
                self._arrived.set()

    def _pause_s(self) -> float:
        """How long to wait for batches."""
        if self._brake.is_on:
            return EVERY_S
        return _TROUBLE_S if self._in_trouble else _RETIRE_EVERY_S

    # The worker

    def _open(self, shard: int) -> LogError | RegistryError | None:
        """Take a shard, or say why not."""
        options = self._options
        try:
            self._shards[shard] = ShardLog(
                options.log, shard, self._registry, self._quarantine, retire_after_s=options.retire_after_s
            )
        except (LogError, RegistryError) as error:
            return error
        return None

    def _work(self, batches: list[tuple[str, bytes]], greeted: list[int], away_s: float) -> Answers:
        """One round: batches into the log, and what to tell their agents."""
        away_s += self._look_at_backlog()
        if away_s:
            for shard in self._shards.values():
                shard.excuse(away_s)
        for number in greeted:
            self._shards[number].greet()
        for agent, payload in batches:
            self._take(agent, payload)
        if monotonic() >= self._retire_at and self._client is not None and not self._brake.is_on:
            self._retire_at = monotonic() + _RETIRE_EVERY_S
            self._retire()
        answers: Answers = []
        for number, shard in self._shards.items():
            trouble = self._in_trouble.get(number)
            if not shard.idle and (trouble is None or monotonic() >= trouble.again_at):
                answers += self._commit(shard)
        return answers

    def _look_at_backlog(self) -> float:
        """Whether more may be taken. If so from now on: for how long it could not; those who wait are told."""
        held_s = self._brake.look(sum(shard.counters.bytes for shard in self._shards.values()))
        if held_s:
            for shard in self._shards.values():
                shard.greet()
        return held_s

    def _take(self, agent: str, payload: bytes) -> None:
        if self._brake.is_on:
            self.held_back += 1
            return
        shard = self._shards[shard_of(agent)]
        if shard.shard in self._in_trouble:
            self.troubled += 1
            return
        try:
            shard.take(agent, payload)
            self._told_of_waiting = ""
        except (LogError, RegistryError) as error:  # not taken, not acknowledged: it comes again
            self.must_wait += 1
            if str(error) != self._told_of_waiting:
                self._told_of_waiting = str(error)
                _LOG.warning("batches must wait agent=%s error=%s", agent, error)

    def _retire(self) -> None:
        for number, shard in self._shards.items():
            if number in self._in_trouble:  # nobody is heard there
                continue
            try:
                shard.retire()
            except LogError as error:
                _LOG.warning("silent agents are not retired yet shard=%d error=%s", shard.shard, error)

    def _commit(self, shard: ShardLog) -> Answers:
        begun = monotonic()
        try:
            answers = shard.commit()
            trouble = self._in_trouble.pop(shard.shard, None)
            if trouble is not None:
                _LOG.warning("the log is written again shard=%d", shard.shard)
                shard.excuse(monotonic() - trouble.since)
                shard.greet()
                answers += shard.commit()
        except LogError as error:
            told = self._in_trouble.get(shard.shard)
            if told is None or told.text != str(error):
                _LOG.error("the log cannot be written shard=%d error=%s", shard.shard, error)
            since = begun if told is None else told.since
            self._in_trouble[shard.shard] = _Trouble(str(error), since, monotonic() + _TROUBLE_S)
            return []
        self.commits += 1
        self.commit_s += monotonic() - begun
        return answers

    def _end(self) -> Answers:
        """The last commit; then the shards are free for a successor."""
        answers: Answers = []
        for shard in self._shards.values():
            if not shard.idle:
                answers += self._commit(shard)
            shard.close()
        self._registry.close()
        _LOG.info("translator stopped %s", " ".join(f"{name}={value}" for name, value in self.totals().items()))
        return answers


def _registry_of(log: Path) -> Registry:
    """The numbers that were given in a log. They mean something within that one only: if nobody can tell any more which
    it is, none is given."""
    if (log / "id").exists():
        try:
            log_id(log)
        except LogError as error:
            raise RegistryError(str(error)) from error
    return Registry(log / "registry.db", may_create=not has_segments(log))


def _handed_to(take: Callable[[str, bytes], None]) -> type[asyncio.Queue[aiomqtt.Message]]:
    """A queue that nothing is ever in: what is put there is taken at once. To wait for each message takes longer
    than all else that is done to receive it."""

    class Handed(asyncio.Queue[aiomqtt.Message]):
        def put_nowait(self, message: aiomqtt.Message) -> None:
            if isinstance(message.payload, bytes):
                take(message.topic.value, message.payload)

    return Handed


def _why(error: LogError | RegistryError) -> str:
    """What is wrong with a shard, in words that are the same for all that one process holds."""
    return error.holder if isinstance(error, ShardInUse) else str(error)


def _tell_waiting(waiting: dict[int, LogError | RegistryError]) -> None:
    """One line per reason, not one per shard."""
    by_reason: dict[tuple[bool, str], list[int]] = {}
    for shard, error in waiting.items():
        by_reason.setdefault((isinstance(error, ShardInUse), _why(error)), []).append(shard)
    for (is_taken, why), shards in by_reason.items():
        if is_taken:
            _LOG.info("waiting for a shard or more shards=%s written_by=%s", listed(shards), why)
        else:
            _LOG.error("shards cannot be opened shards=%s error=%s", listed(shards), why)


def _is_refusal(code: int | ReasonCode) -> bool:
    """Whether a broker's answer to a subscription says no."""
    return (code if isinstance(code, int) else code.value) >= 0x80

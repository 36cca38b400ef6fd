"""The translator: from MQTT to the log.

Batches are gathered while the last commit is on its way to the disk and committed together, shard by shard; only then
are the agents told. Whatever is lost in between, here or in the broker, the agents send again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from time import monotonic

import aiomqtt

from collector.log import LogError, ShardInUse
from collector.quarantine import Quarantine
from collector.registry import Registry, RegistryError
from collector.shard_log import RETIRE_AFTER_S, Counters, ShardLog
from protocol.topics import agent_of_up, down_topic, shard_of
from protocol.wire.answers import Logged, encode_answer

_LOG = logging.getLogger(__name__)
_RECONNECT_S = 1.0
_LOCK_RETRY_S = 0.5
_TROUBLE_S = 1.0
_RETIRE_EVERY_S = 10.0
_MOST_QUEUED = 20_000
_MOST_TOGETHER = 2_000


@dataclass(frozen=True, slots=True)
class TranslatorOptions:
    """Where from, where to, and which part."""

    mqtt: tuple[str, int]
    log: Path
    shards: Sequence[int]
    commit_s: float = 0.005
    retire_after_s: float = RETIRE_AFTER_S
    metrics: tuple[str, int] | None = None


class Translator:
    """Translates some shards until it is stopped."""

    def __init__(self, options: TranslatorOptions) -> None:
        self._options = options
        self._registry = Registry(options.log / "registry.db")
        self._quarantine = Quarantine(options.log / "quarantine")
        self._shards: dict[int, ShardLog] = {}
        self._inbox: list[tuple[str, bytes]] = []
        self._arrived = asyncio.Event()
        self._client: aiomqtt.Client | None = None
        self._stopping = asyncio.Event()
        self.commits = 0
        self.commit_s = 0.0
        self.not_mine = 0

    async def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        if self._options.metrics is not None:
            from collector.metrics import serve

            serve(self, *self._options.metrics)
        tasks = [asyncio.create_task(each) for each in (self._take_shards(), self._listen(), self._commit_all())]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a defect
        finally:
            for task in [*tasks, stopping]:
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
            self._end()

    def _end(self) -> None:
        for shard in self._shards.values():
            try:
                shard.commit()
            except LogError as error:
                _LOG.error("the last batches are not in the log shard=%d error=%s", shard.shard, error)
            shard.close()
        self._registry.close()
        _LOG.info("translator stopped %s", " ".join(f"{name}={value}" for name, value in self.totals().items()))

    def totals(self) -> dict[str, int]:
        """The counters of all shards together."""
        counted = {
            each.name: sum(getattr(shard.counters, each.name) for shard in self._shards.values())
            for each in fields(Counters)
        }
        shards = self._shards.values()
        return {
            **counted,
            "duplicates": sum(shard.duplicates for shard in shards),
            "early_dropped": sum(shard.early_dropped for shard in shards),
            "agents": sum(shard.agents for shard in shards),
            "shards": len(shards),
            "commits": self.commits,
            "not_mine": self.not_mine,
            "quarantine_full": self._quarantine.not_kept,
        }

    # Shards

    async def _take_shards(self) -> None:
        """Take every shard as soon as nobody else has it; each is one writer's."""
        waiting: dict[int, str] = dict.fromkeys(self._options.shards, "")
        while waiting:
            for shard, told in list(waiting.items()):
                try:
                    taken = ShardLog(
                        self._options.log,
                        shard,
                        self._registry,
                        self._quarantine,
                        retire_after_s=self._options.retire_after_s,
                    )
                except ShardInUse as error:
                    if str(error) != told:
                        _LOG.info("waiting for a shard shard=%d reason=%s", shard, error)
                        waiting[shard] = str(error)
                    continue
                except (LogError, RegistryError) as error:
                    if str(error) != told:
                        _LOG.error("a shard cannot be opened shard=%d error=%s", shard, error)
                        waiting[shard] = str(error)
                    continue
                del waiting[shard]
                self._shards[shard] = taken
                if self._client is not None:
                    await self._serve(self._client, [shard])
            if waiting:
                await asyncio.sleep(_LOCK_RETRY_S)
        _LOG.info("translator has its shards count=%d", len(self._shards))
        await asyncio.Future()

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
                    max_queued_incoming_messages=_MOST_QUEUED,
                ) as client:
                    client.pending_calls_threshold = 1_000_000
                    self._client = client
                    await self._serve(client, list(self._shards))
                    _LOG.info("translator ready mqtt=%s:%d shards=%d", host, port, len(self._shards))
                    told = ""
                    async for message in client.messages:
                        if isinstance(message.payload, bytes):
                            self._inbox.append((message.topic.value, message.payload))
                            self._arrived.set()
            except aiomqtt.MqttError as error:
                if str(error) != told:
                    _LOG.warning("mqtt is away host=%s:%d error=%s", host, port, error)
                    told = str(error)
            finally:
                self._client = None
            await asyncio.sleep(_RECONNECT_S)

    async def _serve(self, client: aiomqtt.Client, shards: list[int]) -> None:
        """Listen to the agents of shards, and tell those that wait how far they had come."""
        try:
            for shard in shards:
                await client.subscribe(f"tl/{shard}/+/up", qos=1)
                await self._tell(self._shards[shard].greetings())
        except aiomqtt.MqttError as error:
            _LOG.warning("subscribing failed error=%s", error)

    async def _tell(self, answers: list[tuple[str, Logged]]) -> None:
        client = self._client
        if client is None:
            return  # the agents ask again
        for agent, answer in answers:
            try:
                await client.publish(down_topic(agent), encode_answer(answer, agent), qos=0)
            except aiomqtt.MqttError:
                return

    # The log

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        retire_at = monotonic() + _RETIRE_EVERY_S
        while True:
            try:
                await asyncio.wait_for(self._arrived.wait(), _RETIRE_EVERY_S)
                await asyncio.sleep(self._options.commit_s)  # so that more come along
            except TimeoutError:
                pass
            self._arrived.clear()
            self._take()
            if monotonic() >= retire_at:
                retire_at = monotonic() + _RETIRE_EVERY_S
                for shard in self._shards.values():
                    shard.retire()
            for shard in [each for each in self._shards.values() if not each.idle]:
                await self._commit(loop, shard)
            if self._inbox:
                self._arrived.set()

    def _take(self) -> None:
        batches, self._inbox = self._inbox[:_MOST_TOGETHER], self._inbox[_MOST_TOGETHER:]
        for topic, payload in batches:
            agent = agent_of_up(topic)
            shard = None if agent is None else self._shards.get(shard_of(agent))
            if agent is None or shard is None:
                self.not_mine += 1
                continue
            try:
                shard.take(agent, payload)
            except (LogError, RegistryError) as error:  # not taken, not acknowledged: it comes again
                _LOG.warning("a batch must wait agent=%s error=%s", agent, error)

    async def _commit(self, loop: asyncio.AbstractEventLoop, shard: ShardLog) -> None:
        while True:
            begun = monotonic()
            try:
                answers = await loop.run_in_executor(None, shard.commit)
            except LogError as error:
                _LOG.error("the log cannot be written shard=%d error=%s", shard.shard, error)
                await asyncio.sleep(_TROUBLE_S)
                continue
            self.commits += 1
            self.commit_s += monotonic() - begun
            await self._tell(answers)
            return


def parse_shards(text: str, most: int) -> list[int]:
    """`0-15` or `1,4-6` as numbers. ValueError says what is wrong."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text!r} is no list of shards such as 0-15 or 1,4-6")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= most:
            raise ValueError(f"shards are 0 to {most - 1}, not {part.strip()}")
        found.update(numbers)
    return sorted(found)

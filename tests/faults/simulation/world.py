"""Everything together: machines, processes and what lies between them, and the faults that happen to them."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from edge_agent.config import Settings
from protocol.topics import shard_of
from tests.faults.simulation.cloud import FlakyRegistry, GraphJob, TranslatorProcess
from tests.faults.simulation.device import Device, NotedSend, PromptSyncer, SteppedClient
from tests.faults.simulation.disk import Disks, Killed
from tests.faults.simulation.fleet import AGENTS, VERSIONS, plan_of
from tests.faults.simulation.gateway import Address, GatewayProcess
from tests.faults.simulation.link import Link, Weather
from tests.faults.simulation.mqtt import Broker
from tests.faults.simulation.timeline import Process, Timeline
from tests.faults.simulation.truth import Life

_CLOCKS = (
    "edge_agent.agent.monotonic",
    "edge_agent.exchange.exchange.monotonic",
    "edge_agent.outbox.intake.monotonic",
    "edge_agent.outbox.outbox.monotonic",
    "edge_agent.transport.client.monotonic",
)
_EPOCH_MS = 1_700_000_000_000
_PATIENCE_S = 3_000.0
"""How long everything may take at the most to come to rest when nothing is wrong any more."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is made of, besides what happens in it."""

    agents: tuple[str, ...] = AGENTS
    settings: dict[str, Any] = field(default_factory=dict)
    late: bool = False
    """Whether things may come late: an agent was retired, or its disk forgot what it had taken, so that it takes it
    again and tells results a second time."""
    send_bytes: int | None = None
    """What the spool of a Send holds, if that is less than the agent's own."""


class World:
    """One run."""

    def __init__(self, folder: Path, seed: int, options: Options) -> None:
        self.options = options
        self.dice = Random(f"{seed}/world")
        self.timeline = timeline = Timeline()
        timeline.on_killed = self._killed
        self.disks = Disks(folder, seed)
        self.link = Link(timeline, Random(f"{seed}/link"))
        self.broker = Broker(timeline, Random(f"{seed}/broker"))
        self.lives: list[Life] = []
        self.devices: dict[str, Device] = {}
        self.happened: Counter[str] = Counter()
        self.versions = {name: self.dice.randrange(VERSIONS) for name in options.agents}
        self.clocks_ms = dict.fromkeys(options.agents, _EPOCH_MS)
        self._folder = folder
        self._seed = seed
        self._addresses = dict.fromkeys(options.agents, 0)
        self._shards = sorted({shard_of(name) for name in options.agents})
        self._random_bytes = Random(f"{seed}/urandom")
        self._starts = 0
        self.gateway: GatewayProcess | None = None
        self.translator: TranslatorProcess | None = None
        log = self.disks.of("log").folder
        self.registry = FlakyRegistry(log / "registry.db")
        self.job = GraphJob(timeline, log, Random(f"{seed}/job"), late=options.late)

    # The world begins and ends

    @contextmanager
    def exists(self) -> Iterator[World]:
        """Time, chance and disks are simulated for so long."""
        with ExitStack() as stack:
            for name in _CLOCKS:
                stack.enter_context(patch(name, self._monotonic))
            stack.enter_context(patch("edge_agent.agent.time_ns", lambda: int(self.timeline.now * 1e9)))
            stack.enter_context(patch("edge_agent.agent.Client", SteppedClient))
            stack.enter_context(
                patch("edge_agent.exchange.exchange.SendStream", partial(NotedSend, self.options.send_bytes))
            )
            stack.enter_context(patch("edge_agent.outbox.outbox.Syncer", PromptSyncer))
            stack.enter_context(patch("os.urandom", self._random_bytes.randbytes))
            stack.enter_context(self.disks)
            disabled = logging.root.manager.disable
            logging.disable(logging.CRITICAL)
            stack.callback(logging.disable, disabled)
            stack.callback(self._close)
            self.start_gateway()
            self.start_translator()
            for name in self.options.agents:
                self.start_device(name)
            yield self

    def _close(self) -> None:
        for name in list(self.devices):
            self.kill_device(name)
        self.kill_gateway()
        self.kill_translator()
        self.registry.close()

    def _monotonic(self) -> float:
        return self.timeline.now

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.timeline.run(seconds)

    def _killed(self, process: Process, error: BaseException) -> None:
        if not isinstance(error, Killed):
            raise error
        self.happened["killed in the middle of something"] += 1
        if isinstance(process, Device):
            self.kill_device(process.name)
        elif process is self.gateway:
            self.kill_gateway()
        elif process is self.translator:
            self.kill_translator()

    # The network

    def _to_gateway(self, name: str, datagram: bytes) -> None:
        address = (name, self._addresses[name])
        self.link.carry(name, datagram, partial(self._reach_gateway, address))

    def _reach_gateway(self, address: Address, datagram: bytes) -> None:
        if self.gateway is not None:
            self.gateway.datagram(address, datagram)

    def _to_device(self, datagram: bytes, address: Address) -> None:
        self.link.carry(address[0], datagram, partial(self._reach_device, address))

    def _reach_device(self, address: Address, datagram: bytes) -> None:
        """An address that the device has left leads nowhere."""
        name, port = address
        device = self.devices.get(name)
        if device is not None and self._addresses[name] == port:
            device.datagram(datagram)

    def move(self, name: str) -> None:
        """The device's datagrams come from another address from now on."""
        self._addresses[name] += 1

    # Devices

    def start_device(self, name: str, dies_after: int | None = None) -> None:
        """A process for an agent that has none."""
        if name in self.devices:
            return
        version = self.versions[name]
        disk = self.disks.of(name)
        self._starts += 1
        dice = Random(f"{self._seed}/{name}/{self._starts}")
        settings = Settings(name=name, gateway="127.0.0.1:1884", spool=str(disk.folder), **self.options.settings)
        plan = plan_of(name, version, self.options.agents)
        device = Device(self.timeline, disk, settings, plan, version, dice, self._to_gateway)
        device.clock_ms = self.clocks_ms[name]
        self.devices[name] = device
        self._addresses[name] += 1
        disk.die_after(dies_after)
        try:
            device.begin(self.lives)
        except Killed:
            self.kill_device(name)

    def kill_device(self, name: str) -> Life | None:
        """What is left is what is in its files now."""
        device = self.devices.pop(name, None)
        if device is None:
            return None
        self.clocks_ms[name] = max(self.clocks_ms[name], device.clock_ms)
        device.disk.die_after(None)
        device.drop()
        if device.life is not None:
            device.life.killed = True
        return device.life

    def cut_power_of(self, name: str) -> None:
        life = self.kill_device(name)
        self.disks.of(name).cut_power()
        self._power_cut(name, life)

    def _power_cut(self, name: str, life: Life | None) -> None:
        """It takes from earlier lives, too, what they had not synced."""
        for each in self.lives:
            if each.agent == name and (each is life or not each.power_cut):
                each.power_cut = True

    def stop_device(self, name: str) -> None:
        """It says its end, and ends; its batches stay for the next start. If there is no room for what others are to
        get, it ends without a word."""
        device = self.devices.get(name)
        if device is None:
            return
        if self.options.send_bytes is not None:
            device.flush()
            self.run(0.05)
        if self.devices.get(name) is device and not device.has_no_room:
            device.end()
        self.run(0.05)
        if self.devices.get(name) is device:
            life = self.kill_device(name)
            assert life is not None
            life.killed = not life.written.ended

    def reflash(self, name: str) -> None:
        """A new card: nothing is known of what was, but the name."""
        self.kill_device(name)
        for life in self.lives:
            if life.agent == name:
                life.reflashed = True
        shutil.rmtree(self.disks.of(name).folder)
        self.disks.forget(name)

    # The cloud

    def start_gateway(self) -> None:
        if self.gateway is None:
            folder = self._folder / "gateway"
            self._starts += 1
            dice = Random(f"{self._seed}/gateway/{self._starts}")
            self.gateway = GatewayProcess(self.timeline, folder, self.broker, self._to_device, dice)

    def kill_gateway(self) -> None:
        if self.gateway is not None:
            gateway, self.gateway = self.gateway, None
            gateway.end()

    def start_translator(self) -> None:
        if self.translator is None:
            disk = self.disks.of("log")
            self.translator = TranslatorProcess(self.timeline, disk, self.broker, self.registry, self._shards)
            try:
                self.translator.begin()
            except Killed:
                self.kill_translator()

    def kill_translator(self) -> None:
        if self.translator is not None:
            translator, self.translator = self.translator, None
            translator.disk.die_after(None)
            translator.end()

    def cut_power_of_log(self) -> None:
        self.kill_translator()
        self.disks.of("log").cut_power()

    # The end

    def heal(self) -> None:
        """Nothing is wrong any more: everything is sent, ended, and in the graph."""
        self.link.weather = Weather()
        self.link.partitioned.clear()
        self.broker.delay_s = 0.01
        self.registry.is_full = False
        self._rest("the broker is back", lambda: self.broker.is_up)
        for name in [*self.options.agents, "log"]:
            disk = self.disks.of(name)
            disk.is_full = False
            disk.die_after(None)
        self.job.pace_s, self.job.dies = 4.0, None
        self.start_gateway()
        assert self.gateway is not None
        self.gateway.dies_in_turn = 0
        self.start_translator()
        for name in self.options.agents:
            self.start_device(name)
            self.devices[name].wake()
        self._rest("everything is sent", lambda: all(each.is_quiet for each in self.devices.values()))
        for name in self.options.agents:  # those who send come first
            device = self.devices[name]
            device.close_source()
            self._rest(f"{name} has nothing more to tell", lambda: all(each.is_quiet for each in self.devices.values()))
            device.end()
            self._rest(f"{name} has ended", lambda device=device: device.is_quiet and device.life.durable.ended)
        self.run(5.0)
        while self.job.run_batch():
            pass

    def _rest(self, what: str, is_so: Any) -> None:
        give_up = self.timeline.now + _PATIENCE_S
        while not is_so():
            assert self.timeline.now < give_up, f"{what}: not within {_PATIENCE_S:.0f} s: {self._state()}"
            self.run(1.37)  # not in step with anybody

    def _state(self) -> str:
        return ", ".join(
            f"{name}: {device.agent.left if device.agent else '-'} left, "
            f"{device.agent._client._session.state.value if device.agent else '-'}"
            for name, device in self.devices.items()
        )


def temporary_root() -> str | None:
    """Where files cost least."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

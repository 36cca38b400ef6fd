"""The whole chain as processes on this machine, each of which may be hurt and comes back where it was.

Mosquitto, gateway, translator, Spark job and API; seven agents, each behind a bad link of its own; and, where the
schedule wants them, small disks under the log, the store or a spool.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from edge_agent.queries.split import accidents_center
from edge_agent.spool import Spool
from tests.faults.chain.schedule import AGENTS, CHECKPOINT, WATCH, Schedule
from tests.faults.chain.small_disk import CannotMount, SmallDisk
from tests.faults.chain.works import CENTER, ROADSIDE, app_file, end_file, noise_file, roadside_app
from tests.system.delivery.site import App
from tests.system.split.fleet import AgentProcess
from threadline.lab import ApiService, GatewayService, Mosquitto, Service, SparkService, TranslatorService, free_port
from threadline.lossy_link import LossyLink

FLUSH_S = 0.2
_SETTINGS: dict[str, Any] = {"flush_s": FLUSH_S, "batch_age_s": 0.3, "fsync": "never", "status_s": 2.0}
_THIN: dict[str, Any] = {"spool_bytes": 64 << 10, "memory_bytes": 64 << 10}
_THIN_BYTES = 300
_DISK_BYTES = {"translator": 24 << 20, "spark": 48 << 20, CHECKPOINT: 96 << 20}
_SPOOL_DISK_BYTES = 4 << 20
_FAIR_WEATHER: dict[str, Any] = {"loss": 0.02, "duplicate": 0.01, "delay_s": (0.0, 0.02), "corrupt": 0.0}
_CALM: dict[str, Any] = {"loss": 0.0, "duplicate": 0.0, "delay_s": (0.0, 0.0), "corrupt": 0.0}
_FORGIVEN_BATCHES = 3
"""When Spark has committed so many more micro-batches, what was done to it before is no reason any more to end: it has
run some from beginning to end since."""
_READY_S = 240.0
_DRAIN_S = 90.0
_SENDS_TO = {"quarry": "mill", "mill": "yard", ROADSIDE: CENTER}


class Broken(AssertionError):
    """Something ended, or did not come back, though nobody had told it to."""


@dataclass(frozen=True, slots=True)
class Incident:
    """What was done to an agent that may cost it something, and until when it lasted, in monotonic ns."""

    agent: str
    kind: str
    at_ns: int
    until_ns: int


class SparkTree(SparkService):
    """The job with all its processes: the driver, Java and the Python workers."""

    def __init__(self, folder: Path, log_folder: Path) -> None:
        self.metrics_port = free_port()
        metrics = ("--metrics", f"127.0.0.1:{self.metrics_port}")
        super().__init__(folder, log_folder, "--trigger", "300ms", *metrics)

    @property
    def tree(self) -> list[psutil.Process]:
        """From the driver down."""
        with suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self.pid)
            return [driver, *driver.children(recursive=True)]
        return []

    @property
    def workers(self) -> list[psutil.Process]:
        """The Python processes in which stages run."""
        return [each for each in self.tree[1:] if "pyspark.daemon" in _line(each)]

    @property
    def committed(self) -> int:
        """The last micro-batch that it will not run again; -1 if there is none."""
        return max((int(path.name) for path in self.checkpoint.glob("commits/[0-9]*")), default=-1)


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Stage:
    """Everything that takes part in a run."""

    def __init__(self, folder: Path, schedule: Schedule, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.schedule = schedule
        self.say = say
        self.disks: dict[str, SmallDisk] = {}
        self.links: dict[str, LossyLink] = {}
        self.services: dict[str, Service] = {}
        self.incidents: list[Incident] = []
        self.wiped: dict[str, list[int]] = {}
        """Agents whose spool was deleted: when, in monotonic ns."""
        self.wiped_lives: set[int] = set()
        """Of the watch: with which of its lives."""
        self.away: set[str] = set()
        self.gone: set[str] = set()
        """Agents that never return."""
        self.finished: set[str] = set()
        """Agents that have come to their ends."""
        self.relaunched: set[str] = set()
        """Who was started more than once, and counts from its last start."""
        self.is_spark_hurt = False
        """Something was done to it that may have made it do its work twice, or end."""
        self._forgiven_at: int | None = None
        self._returning: set[str] = set()
        self._launched_at: dict[str, float] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._stack = stack
            self._mount()
            self._build()
            for service in self.services.values():
                stack.callback(Service.kill, service)
            for each in (self.mosquitto, self.translator):
                each.start()
            self.spark.launch()  # it takes its time
            self.gateway.start()
            for name in ("api", *reversed(AGENTS)):
                self.services[name].launch()
            now = time.monotonic()
            self._launched_at = dict.fromkeys(self.services, now)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for disk in self.disks.values():
            disk.keep = disk.keep or error is not None
        self._stack.close()

    def _mount(self) -> None:
        for target in sorted(self.schedule.disks):
            disk = SmallDisk(self.folder / f"disk-of-{target}", _DISK_BYTES.get(target, _SPOOL_DISK_BYTES))
            try:
                self.disks[target] = self._stack.enter_context(disk)
            except CannotMount as error:
                self.say(f"no full disk in this run: {error}")
                return

    def _place(self, target: str) -> Path:
        """Where somebody keeps things: on a disk of its own, if it has one."""
        return self.disks[target].folder if target in self.disks else self.folder

    def _build(self) -> None:
        folder = self.folder
        self.mosquitto = Mosquitto(folder)
        self.gateway = GatewayService(folder, self.mosquitto)
        self.translator_metrics = free_port()
        options = ["--metrics", f"127.0.0.1:{self.translator_metrics}"]
        options += ["--retire-after", str(self.schedule.retire_after_s)]
        self.translator = TranslatorService(self._place("translator"), self.mosquitto, *options)
        self.translator.log = folder / "translator.log"
        self.spark = SparkTree(folder, self.translator.log_folder)
        self.spark.store_path = self._place("spark") / "graph.db"
        self.spark.checkpoint = self._place(CHECKPOINT) / "spark-checkpoint"
        self.api = ApiService(folder, self.mosquitto, self.spark.store)
        self.services = {
            "mosquitto": self.mosquitto,
            "gateway": self.gateway,
            "translator": self.translator,
            "spark": self.spark,
            "api": self.api,
        }
        for number, name in enumerate(AGENTS):
            link = LossyLink(self.gateway.address, seed=self.schedule.seed * 100 + number, **_FAIR_WEATHER)
            self.links[name] = self._stack.enter_context(link)
            self.services[name] = self._agent(name, link)

    def _agent(self, name: str, link: LossyLink) -> Service:
        gateway = ",".join([link.url] * 4)  # who has several gateways tries again sooner after an outage
        spool = self._place(name) / f"{name}-spool"
        settings = {**_SETTINGS, "spool": str(spool), "qos": self.schedule.qos.get(name, 1)}
        is_thin = name in self.schedule.thin
        if is_thin:
            settings |= _THIN
            noise_file(self.folder, name).write_text(str(_THIN_BYTES))
        if name == WATCH:
            pad, settings["durable"] = _THIN_BYTES if is_thin else 20, self.schedule.durable
            app = App(self.folder, gateway, rate=40.0, pad=pad, close_s=_DRAIN_S, name=name, **settings)
            app.log = self.folder / f"{name}.log"
            return app
        app_path = self._app(name)
        agent = AgentProcess(self.folder, name, app_path, gateway, drain_s=_DRAIN_S, **settings)
        agent.spool = spool
        return agent

    def _app(self, name: str) -> Path:
        if name == ROADSIDE:
            return roadside_app(self.folder, self.schedule.seed, self.schedule.duration_s)
        return Path(accidents_center.__file__) if name == CENTER else app_file(self.folder, name)

    # Who is there

    @property
    def watch(self) -> App:
        app = self.services[WATCH]
        assert isinstance(app, App)
        return app

    @property
    def agents(self) -> list[AgentProcess]:
        return [each for each in self.services.values() if isinstance(each, AgentProcess)]

    def is_ready(self, name: str) -> bool:
        """Whether it is at work."""
        service = self.services[name]
        is_there = name not in self.away and service.process is not None and service.process.poll() is None
        return is_there and service.is_ready()

    def processes(self, name: str) -> list[psutil.Process]:
        """Of a service, with those that it has started."""
        if name == "spark":
            return self.spark.tree
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(self.services[name].pid)]
        return []

    def bring_back(self, name: str) -> None:
        """Start it again as soon as it is gone."""
        self._returning.add(name)

    def forgive_spark(self) -> None:
        """It may end by itself, because of what is done to it now, until it has got over that."""
        self.is_spark_hurt = True
        self._forgiven_at = self.spark.committed

    def _is_forgiven(self, name: str) -> bool:
        if name != "spark" or self._forgiven_at is None:
            return False
        return self._is_checkpoint_full or self.spark.committed < self._forgiven_at + _FORGIVEN_BATCHES

    @property
    def _is_checkpoint_full(self) -> bool:
        return CHECKPOINT in self.disks and self.disks[CHECKPOINT].is_full

    def look(self) -> None:
        """Start those that are to come back; see whether all others are there."""
        for name in list(self._returning):
            process = self.services[name].process
            if process is None or process.poll() is not None:
                self._returning.remove(name)
                self._launch(name)
        for name, service in self.services.items():
            if name in self.away or name in self.finished or service.process is None:
                continue
            code = service.process.poll()
            if code == 0 and isinstance(service, AgentProcess) and end_file(self.folder).exists():
                self.finished.add(name)
            elif code is not None:
                if not self._is_forgiven(name):
                    raise Broken(f"{name} has ended by itself with code {code}:\n{service.tail()}")
                if not self._is_checkpoint_full:
                    self._forgiven_at = None
                self._launch(name)
            elif time.monotonic() > self._launched_at[name] + _READY_S and not service.is_ready():
                raise Broken(f"{name} is not ready after {_READY_S:.0f} s:\n{service.tail()}")

    def _launch(self, name: str) -> None:
        self.away.discard(name)
        self.relaunched.add(name)
        self._launched_at[name] = time.monotonic()
        self.services[name].launch()

    # The end

    def heal(self) -> None:
        """Good links, and everybody at work."""
        for link in self.links.values():
            link.partitioned = link.one_way = False
            link.set(**_CALM)
        give_up = time.monotonic() + _READY_S
        while missing := [name for name in self._expected() if not self.is_ready(name)]:
            self.look()
            if time.monotonic() > give_up:
                raise Broken(f"not ready after {_READY_S:.0f} s: {', '.join(missing)}")
            time.sleep(0.1)

    def _expected(self) -> list[str]:
        return [name for name in self.services if name not in self.gone and name not in self.finished]

    def end_sources(self) -> None:
        """From now on, plans come to their ends."""
        end_file(self.folder).touch()

    def finish_agents(self) -> None:
        """Every agent comes to its end and has everything acknowledged."""
        self.end_sources()
        process = self.watch.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            self.watch.wait(_DRAIN_S)
            for agent in self.agents:
                if agent.name not in self.gone:
                    self._comes_to_its_end(agent)
        except Exception as error:
            raise Broken(f"an agent does not come to its end: {error}") from error
        self.finished.update(AGENTS)

    def _comes_to_its_end(self, agent: AgentProcess) -> None:
        """With everything acknowledged; but the last answer of a receiver that has taken everything may have been lost,
        if a subscription was damaged, and nobody is there to repeat it when that has ended. The next start would be
        answered."""
        try:
            agent.ends_acknowledged(_DRAIN_S)
        except AssertionError:
            receiver = next((each for each in self.agents if each.name == _SENDS_TO.get(agent.name)), None)
            with Spool.open(agent.spool / "up", fsync="never") as spool:
                is_all_logged = not spool.count
            assert agent.process is not None
            if receiver is None or receiver.name in self.gone or agent.process.poll() != 0 or not is_all_logged:
                raise
            receiver.ends_acknowledged(_DRAIN_S)
            for stream, next_seq in _sent(agent).items():
                assert receiver.status["receives"][f"{agent.name}/{stream}"] == next_seq, "it has not taken everything"
            self.say(f"the last answer of {receiver.name} did not come to {agent.name}")

    def stop_services(self) -> None:
        """As one should; each has to end well."""
        for service in (self.api, self.spark, self.translator, self.gateway, self.mosquitto):
            code = service.stop()
            if code != 0 and (service is not self.mosquitto or code not in (-signal.SIGTERM, 128 + signal.SIGTERM)):
                raise Broken(f"{service.name} was stopped and ended with code {code}:\n{service.tail()}")

    def wipe(self, name: str) -> None:
        """The spool of an agent that does not run is gone."""
        service = self.services[name]
        assert isinstance(service, (AgentProcess, App))
        shutil.rmtree(service.spool)
        self.wiped.setdefault(name, []).append(time.monotonic_ns())
        if name == WATCH:
            self.wiped_lives.add(len(self.watch.lives()) - 1)


def _sent(agent: AgentProcess) -> dict[str, int]:
    """How many messages it had for others, by the streams."""
    found: dict[str, int] = {}
    for folder in agent.spool.glob("send-*"):
        with Spool.open(folder, fsync="never") as spool:
            found[folder.name.removeprefix("send-")] = spool.next
    return found


def fair_weather(link: LossyLink) -> None:
    """As it was at the beginning."""
    link.set(**_FAIR_WEATHER)

"""`threadline lab`: all services and two agents as processes on this machine, until it is told to stop.

It is docker-compose.yml without Docker: the same services under the same names, with the same commands, started in the
same order, and started again when they end. One loop looks at all of them; nothing else runs here, so there is nothing
to lock, and a signal only has to leave a mark.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import typer

from protocol.address import format_address
from threadline.lab import (
    AgentService,
    ApiService,
    EmbeddedBroker,
    GatewayService,
    Mosquitto,
    Service,
    ServiceFailed,
    SparkService,
    TranslatorService,
    free_port,
    mqtt_broker,
)

APPS = Path(__file__).parent.parent / "examples" / "lab"
_LOOK_S = 0.1
_LAST_LINES = 6  # of a log, when something ends
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_STEADY_S = 60.0  # whoever ran for so long is not one that cannot run
_HURRY_AFTER_S = 1.0  # some senders of signals send them twice
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOPPED = (0, 128 + signal.SIGTERM, -signal.SIGTERM)  # how what was told to stop may end


class CannotRun(RuntimeError):
    """The lab cannot be set up as asked; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class LabOptions:
    """What `threadline lab` was asked for."""

    folder: Path | None = None
    """Where everything is kept. None: nothing is kept."""
    api: tuple[str, int] = ("127.0.0.1", 0)
    gateway: tuple[str, int] = ("127.0.0.1", 0)
    embedded: bool = False
    with_spark: bool = True
    with_agents: bool = True
    duration_s: float | None = None
    """How long to run once everything is ready. None: until it is told to stop."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the lab runs, under the names of docker-compose.yml."""

    broker: Mosquitto | EmbeddedBroker
    gateway: GatewayService
    translator: TranslatorService
    spark: SparkService | None
    collector: ApiService
    agents: Sequence[AgentService]

    @classmethod
    def of(cls, options: LabOptions, folder: Path) -> Services:
        """Services that are not started yet."""
        broker = mqtt_broker(folder, options.embedded)
        gateway = GatewayService(folder, broker, listen=options.gateway)
        translator = TranslatorService(folder, broker, *_metrics())
        spark = SparkService(folder, translator.log_folder, *_metrics())
        return cls(
            broker,
            gateway,
            translator,
            spark if options.with_spark else None,
            ApiService(folder, broker, spark.store, name="collector", listen=options.api),
            [
                AgentService(folder, f"accidents-{each}", _app(each), gateway.address, name=f"agent-{each}")
                for each in (("center", "roadside") if options.with_agents else ())
            ],
        )

    def parts(self) -> list[Part]:
        """In the order in which they are started. They are stopped the other way round: who sends before who receives,
        and all agents while the cloud is there to take what they have left."""
        cloud = [Part(self.broker), Part(self.gateway, self.broker), Part(self.translator, self.broker)]
        spark = [] if self.spark is None else [Part(self.spark, self.translator)]
        agents = [Part(agent, self.gateway, self.translator) for agent in self.agents]
        return [*cloud, *spark, Part(self.collector, self.broker), *agents]


class Part:
    """A service, those that have to be ready before it, and how it fares."""

    def __init__(self, service: Service, *needs: Service) -> None:
        self.service = service
        self.needs = [each.name for each in needs]
        self.restarts = 0
        self.ready_at: float | None = None
        self._was_ready = False
        self._launched_at = 0.0
        self._again_at = 0.0
        self._wait_s = _FIRST_WAIT_S

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def runs(self) -> bool:
        """Whether it was started and has not been seen to end."""
        return self.service.process is not None

    def may_start(self, ready: set[str], now: float) -> bool:
        """What it needs is waited for only the first time: everything can do without everything else for a while."""
        return not self.runs and now >= self._again_at and (self._was_ready or ready.issuperset(self.needs))

    def start(self, now: float) -> None:
        self._launched_at = now
        try:
            self.service.launch(apart=True)
        except OSError as error:
            raise ServiceFailed(f"{self.name} cannot be started: {error}") from error

    def look(self, now: float) -> str | None:
        """What is to be told of it, if anything. ServiceFailed if it ended without ever having been ready."""
        process = self.service.process
        assert process is not None
        code = process.poll()
        if code is not None:
            return self._ended(f"ended {_with(code)}", now)
        if self.ready_at is None and self.service.is_ready():
            is_back, self._was_ready, self.ready_at = self._was_ready, True, now
            return "runs again" if is_back else None
        if self.ready_at is None and now > self._launched_at + self.service.start_s:
            return self._ended(f"was killed because it was not ready after {self.service.start_s:.0f} s", now)
        return None

    def _ended(self, what: str, now: float) -> str:
        self.end()  # or what it has left
        if not self._was_ready:
            raise ServiceFailed(f"{self.name} did not start, it {what}:\n{self.service.tail()}")
        if self.ready_at is not None and now >= self.ready_at + _STEADY_S:
            self._wait_s = _FIRST_WAIT_S
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, _LONGEST_WAIT_S)
        self.restarts += 1
        self.ready_at, self._again_at = None, now + wait_s
        return f"{what}, it is started again in {wait_s:g} s (restart {self.restarts}); {self._last_words()}"

    def stop(self, is_hurried: Callable[[], bool]) -> str:
        """Tell it to stop, wait for that, and say how it went."""
        process = self.service.process
        assert process is not None
        process.terminate()
        give_up = time.monotonic() + self.service.stop_s
        while process.poll() is None and time.monotonic() < give_up and not is_hurried():
            time.sleep(_LOOK_S / 2)
        code = process.poll()
        self.end()
        if code in _STOPPED:
            return "has stopped"
        if code is not None:
            return f"ended {_with(code)} when it was to stop; {self._last_words()}"
        if is_hurried():
            return "was killed, as asked"
        return f"was killed: it did not stop within {self.service.stop_s:.0f} s; {self._last_words()}"

    def end(self) -> None:
        """At once, and all that it has started."""
        process, self.service.process = self.service.process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _last_words(self) -> str:
        lines = self.service.tail().splitlines()[-_LAST_LINES:]
        return "its log ends with" + "".join(f"\n    {line}" for line in lines) if lines else "its log is empty"


def run(options: LabOptions) -> None:
    """Run the lab until SIGINT, SIGTERM or SIGHUP, or for as long as asked. CannotRun, or ServiceFailed if something
    does not start."""
    with ExitStack() as stack:
        if options.folder is None:
            made = tempfile.TemporaryDirectory(prefix="threadline-lab-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        else:
            folder = options.folder.resolve()
            stack.enter_context(_taken(folder))
        stack.enter_context(Lab(options, folder)).run()


class Lab:
    """The processes, from the first start to the last end."""

    def __init__(self, options: LabOptions, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._services = Services.of(options, folder)
        self._parts = self._services.parts()
        self._stop_asked_at: float | None = None
        self._is_hurried = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Lab:
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if number != signal.SIGHUP or before != signal.SIG_IGN:  # nohup
                self._handlers[number] = before
                signal.signal(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing that was started here goes on."""
        try:
            self._stop()
        finally:
            for part in reversed(self._parts):
                part.end()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def run(self) -> None:
        """Until it is told to stop."""
        begun = time.monotonic()
        self._introduce()
        stop_at: float | None = None
        while self._stop_asked_at is None and (stop_at is None or time.monotonic() < stop_at):
            self._look()
            if stop_at is None and all(part.ready_at is not None for part in self._parts):
                now, duration_s = time.monotonic(), self._options.duration_s
                until = "Ctrl-C stops it." if duration_s is None else f"It stops in {duration_s:g} s."
                self._say(f"Everything runs ({now - begun:.1f} s). {until}")
                stop_at = inf if duration_s is None else now + duration_s
            time.sleep(_LOOK_S)

    def _look(self) -> None:
        """At all parts, once."""
        for part in self._parts:
            now = time.monotonic()
            if part.runs:
                news = part.look(now)
                if news is not None:
                    self._tell(part, news)
            elif part.may_start({each.name for each in self._parts if each.ready_at is not None}, now):
                part.start(now)

    def _stop(self) -> None:
        """All parts, the last one first, each when those behind it are gone."""
        for part in reversed(self._parts):
            if part.runs:
                self._tell(part, part.stop(lambda: self._is_hurried))
        restarts = ", ".join(f"{part.name} {part.restarts}" for part in self._parts if part.restarts)
        self._say(f"Everything has stopped. Restarts: {restarts or 'none'}.")

    def _signalled(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self._stop_asked_at is None:
            self._stop_asked_at = now
        elif number == signal.SIGINT and now > self._stop_asked_at + _HURRY_AFTER_S:
            self._is_hurried = True

    def _introduce(self) -> None:
        """Where everything is."""
        services = self._services
        broker = "amqtt, embedded" if isinstance(services.broker, EmbeddedBroker) else "Mosquitto"
        lines = [
            ("API", f"{services.collector.url} (to try it out: /docs)"),
            ("gateway", f"{format_address(*services.gateway.address)} (MQTT-SN over UDP)"),
            ("MQTT", f"{services.broker.address} ({broker})"),
            ("log", str(services.translator.log_folder)),
        ]
        if services.spark is not None:
            lines.append(("store", services.spark.store))
        if services.agents:
            lines.append(("agents", f"{', '.join(each.agent for each in services.agents)} (of {APPS})"))
        kept = "is kept" if self._options.folder else "is removed at the end"
        lines.append(("folder", f"{self._folder} ({kept})"))
        lines += [("" if index else "log files", str(part.service.log)) for index, part in enumerate(self._parts)]
        self._say("\n".join(f"{name:10}{text}" for name, text in lines))

    def _tell(self, part: Part, news: str) -> None:
        self._say(f"{time.strftime('%H:%M:%S')} {part.name} {news}")

    def _say(self, text: str) -> None:
        try:
            typer.echo(text)
        except OSError:  # nobody reads it any more: that is an end as well
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._stop_asked_at = self._stop_asked_at or time.monotonic()


def _metrics() -> Sequence[str]:
    return "--metrics", f"127.0.0.1:{free_port()}"


def _app(name: str) -> Path:
    app = APPS / f"{name}.py"
    if not app.is_file():
        raise CannotRun(f"there is no {app}: run the lab in a checkout, or with --without-agents")
    return app


def _with(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        with suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
    return f"with code {code}"


def _taken(folder: Path) -> TextIO:
    """A folder that is kept, as this lab's and nobody else's until the file is closed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lab.lock").open("a+")
    except OSError as error:
        raise CannotRun(f"--folder {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with lock:
            lock.seek(0)
            owner = lock.read().strip()
        raise CannotRun(f"another lab (pid {owner}) has {folder}: stop it, or take another --folder") from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock

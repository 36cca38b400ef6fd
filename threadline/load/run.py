"""One run, from the start of the chain to the verdict: connect all devices, have them speak, wait until everything has
arrived, and look for what has not."""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from os import cpu_count
from pathlib import Path
from typing import Any

from collector.store import StoreError
from threadline.load import chain as chains
from threadline.load.chain import SPARK, Chain
from threadline.load.fleet import DeviceEnd, Fleet
from threadline.load.histogram import Histogram
from threadline.load.latency import Arrivals
from threadline.load.loss import Loss, held_by_log, lost_before_graph, lost_before_log
from threadline.load.profiles import Profile, Said
from threadline.load.questions import Asked, asking
from threadline.load.steps import CLOSE, Bottleneck, Step, Stepper, bottleneck, judge
from threadline.load.watch import EVERY_S, Sample, Watch
from threadline.load.worker import total

_LOOK_S = 0.1
_MOST_STEPS = 20
_BREATH_S = 2.0
_WARM_S = 120.0
_WARM_BATCHES = 5
_WARM_STEPS = 8
_WARM_SHARE = 0.1
_QUIET_LOOKS = 4
_DRAIN_OF_EACH_S = 0.05  # all say goodbye at the same time
_STEP_BATCHES = 6
_MOST_STEP = 4  # times as long as asked for


class CannotLoad(RuntimeError):
    """The run cannot be made as asked; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What was asked for."""

    profile: Profile
    devices: int
    rate: float
    duration_s: float
    processes: int
    find_max: bool = False
    step_s: float = 20.0
    close: float = CLOSE
    """How many times the highest rate that holds may be below the lowest that does not."""
    users: int = 0
    """That ask the API meanwhile."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the agents."""
    folder: Path | None = None
    embedded: bool = False
    with_spark: bool = True
    chain: Chain | None = None
    """One that runs already. None: a new one is started."""
    connect_s: float = 60.0
    drain_s: float = 60.0
    """How long everything may take to arrive, once it comes no nearer."""


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    options: LoadOptions
    connected: int = 0
    connect_s: float = 0.0
    from_s: float = 0.0
    to_s: float = 0.0
    """When the devices were at work, on the clock of the samples."""
    samples: list[Sample] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    highest: Step | None = None
    bottleneck: Bottleneck | None = None
    ends: list[DeviceEnd] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    checked: tuple[str, ...] = ()
    """Where it was looked for losses."""
    drained_s: float = 0.0
    asked: Asked | None = None
    was_stopped: bool = False

    @property
    def said(self) -> Said:
        return total(end.said for end in self.ends)

    @property
    def measured(self) -> list[Sample]:
        """The looks from the moment on when the devices were at work, until everything had arrived."""
        return [each for each in self.samples if each.at_s > self.from_s]

    @property
    def units(self) -> int:
        """What was said in that time."""
        before = [each.said for each in self.samples if each.at_s <= self.from_s]
        measured = self.measured
        return measured[-1].said - (before[-1] if before else 0) if measured else 0

    @property
    def caller_us(self) -> Histogram:
        return _merged(each.caller_us for each in self.measured)

    @property
    def late_ms(self) -> Histogram:
        return _merged(each.late_ms for each in self.measured)

    @property
    def left(self) -> int:
        """Batches that are still with the devices."""
        return sum(end.left for end in self.ends)

    @property
    def is_whole(self) -> bool:
        """All devices were there, unless nobody wanted to wait for them, and nothing is lost."""
        were_there = self.was_stopped or self.connected == self.options.devices
        return were_there and not self.losses and not self.left


def _merged(parts: Iterator[Histogram]) -> Histogram:
    found = Histogram()
    for each in parts:
        found.merge(each)
    return found


class Listener:
    """Told how it goes. This one does not care."""

    def phase(self, text: str) -> None:
        """Something else begins."""

    def sample(self, sample: Sample) -> None:
        """Every second."""

    def step(self, step: Step) -> None:
        """A rate was tried."""


def run(options: LoadOptions, stop: threading.Event, listener: Listener) -> Outcome:
    """Do all of it. `stop` ends it early, with what was measured so far. ServiceFailed, FleetFailed or CannotLoad if it
    cannot be done."""
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(options.folder))
        if options.chain is None:
            listener.phase("starting broker, gateway, translator" + (", Spark and API" if options.with_spark else ""))
            started = chains.started(folder, embedded=options.embedded, with_spark=options.with_spark)
            chain = stack.enter_context(started)
        else:
            chain = options.chain
        return _Run(options, chain, folder, stop, listener).go()


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="threadline-load-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    folder = wanted.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotLoad(f"--folder {wanted}: {error.strerror}") from error
    if any(folder.iterdir()):
        raise CannotLoad(f"--folder {wanted} is not empty: every run begins anew")
    yield folder


class _Run:
    def __init__(
        self, options: LoadOptions, chain: Chain, folder: Path, stop: threading.Event, listener: Listener
    ) -> None:
        self._options = options
        self._chain = chain
        self._folder = folder
        self._stop = stop
        self._listener = listener
        self._outcome = Outcome(options)

    def go(self) -> Outcome:
        options, outcome = self._options, self._outcome
        settings = {**options.settings, "gateway": self._chain.gateway}
        prefix = f"load-{secrets.token_hex(2)}"
        fleet = Fleet(options.profile, options.devices, options.processes, self._folder / "devices", settings, prefix)
        self._listener.phase(f"connecting {options.devices} devices")
        begun = time.monotonic()
        with fleet:
            is_ready = fleet.wait_ready(begun + options.connect_s, self._stop)
            outcome.connect_s = time.monotonic() - begun
            with self._arrivals(fleet) as arrivals, Watch(self._chain, fleet, arrivals) as watch:
                watch.on_sample = self._listener.sample
                outcome.samples = watch.samples
                if is_ready:
                    outcome.connected = options.devices
                    self._warm_up(watch, arrivals)
                    self._speak(watch)
                else:
                    outcome.connected = fleet.state().connected
                self._end(fleet, watch, arrivals)
        outcome.was_stopped = self._stop.is_set()
        return outcome

    def _arrivals(self, fleet: Fleet) -> Any:
        store = self._chain.store
        with_tasks = self._options.profile.plan is None
        return nullcontext() if store is None else Arrivals(store, fleet.starts, with_tasks)

    # While they speak

    def _warm_up(self, watch: Watch, arrivals: Arrivals | None) -> None:
        """The first micro-batches of Spark take many times as long as the others: they are not measured."""
        if arrivals is None:
            return
        self._listener.phase("warming up")
        self._sleep(1.2 * EVERY_S, watch)
        if self._has_batches(watch):  # somebody else has warmed it up
            arrivals.since_ms = time.time_ns() // 1_000_000
            return
        step = self._options.profile.per_step
        watch.set_rate(min(self._options.rate, max(_WARM_SHARE * self._options.rate, _WARM_STEPS * step)))
        give_up = time.monotonic() + _WARM_S
        while not self._is_warm(watch, arrivals) and time.monotonic() < give_up and self._sleep(1.0, watch):
            pass
        watch.set_rate(0.0)
        self._wait_for(lambda: self._is_quiet(watch), watch, self._progress)
        arrivals.take_ms()
        arrivals.since_ms = time.time_ns() // 1_000_000

    def _is_warm(self, watch: Watch, arrivals: Arrivals) -> bool:
        tells = bool(watch.samples) and watch.samples[-1].counted(SPARK, "batches") is not None
        return arrivals.seen > 0 and (not tells or self._has_batches(watch))

    def _has_batches(self, watch: Watch) -> bool:
        batches = watch.samples[-1].counted(SPARK, "batches") if watch.samples else None
        return batches is not None and batches >= _WARM_BATCHES

    def _speak(self, watch: Watch) -> None:
        options, outcome = self._options, self._outcome
        outcome.from_s = watch.now_s
        with asking(self._chain.api, options.users, self._folder) as asked:
            if options.find_max:
                self._find_max(watch)
            else:
                self._listener.phase("")
                watch.set_rate(options.rate)
                self._sleep(options.duration_s, watch)
            watch.set_rate(0.0)
            outcome.to_s = watch.now_s
        outcome.asked = asked.result

    def _find_max(self, watch: Watch) -> None:
        outcome, stepper = self._outcome, Stepper(self._options.rate, self._options.close)
        while (rate := stepper.rate) is not None and len(outcome.steps) < _MOST_STEPS:
            self._listener.phase("")
            from_s = watch.now_s
            watch.set_rate(rate)
            if not self._sleep(self._options.step_s, watch) or not self._see_batches(watch, from_s):
                return
            step = judge(watch.samples, rate, from_s, watch.now_s)
            outcome.steps.append(step)
            self._listener.step(step)
            stepper.went(rate, step.is_sustained)
            if not step.is_sustained:
                watch.set_rate(0.0)
                self._settle(watch)
        sustained = [step for step in outcome.steps if step.rate == stepper.highest and step.is_sustained]
        failed = [step for step in outcome.steps if step.rate == stepper.lowest_failed and not step.is_sustained]
        outcome.highest = sustained[-1] if sustained else None
        outcome.bottleneck = bottleneck(failed[-1], cpu_count() or 1) if failed else None

    def _see_batches(self, watch: Watch, from_s: float) -> bool:
        """Go on until Spark has stored often enough to see a trend; False if nobody wants to wait for that."""
        while watch.now_s - from_s < _MOST_STEP * self._options.step_s:
            batch_s = watch.samples[-1].counted(SPARK, "batch_seconds")
            if batch_s is None or watch.now_s - from_s > _STEP_BATCHES * batch_s:
                break
            if not self._sleep(EVERY_S, watch):
                return False
        return True

    def _settle(self, watch: Watch) -> None:
        """Until what has piled up is gone, or it comes no nearer."""
        self._listener.phase("waiting for what has piled up")
        self._sleep(_BREATH_S, watch)
        self._wait_for(lambda: self._is_quiet(watch), watch, self._progress)

    def _is_quiet(self, watch: Watch) -> bool:
        """Whether everything is acknowledged, and nothing has become visible for some looks."""
        last = watch.samples[-_QUIET_LOOKS:]
        return len({(each.seen, each.said) for each in last}) == 1 and last[-1].unacknowledged == 0

    def _progress(self, watch: Watch) -> Any:
        last = watch.samples[-1]
        return last.unacknowledged, last.seen

    # When they have ended

    def _end(self, fleet: Fleet, watch: Watch, arrivals: Arrivals | None) -> None:
        outcome, chain = self._outcome, self._chain
        self._listener.phase("waiting until everything is acknowledged")
        begun = time.monotonic()
        outcome.ends = fleet.stop(self._options.drain_s + _DRAIN_OF_EACH_S * self._options.devices)
        if chain.log is None:
            return
        held = held_by_log(chain.log, [(end.agent, end.nonce) for end in outcome.ends])
        outcome.losses += lost_before_log(outcome.ends, held)
        outcome.checked = ("log",)
        if chain.store is not None:
            self._listener.phase("waiting until everything is in the graph")
            missing = {loss.agent for loss in outcome.losses}
            whole = [end for end in outcome.ends if end.agent not in missing]
            outcome.losses += self._lost_before_graph(whole, chain.store, watch)
            outcome.checked = ("log", "graph")
        outcome.drained_s = time.monotonic() - begun
        self._sleep(1.2 * EVERY_S, watch, although_stopped=True)  # so that the last look has seen it all

    def _lost_before_graph(self, ends: list[DeviceEnd], store: str, watch: Watch) -> list[Loss]:
        found: list[Loss] = []

        def is_complete() -> bool:
            nonlocal found
            try:
                found = list(lost_before_graph(ends, store))
            except StoreError as error:
                found = [Loss("all devices", "graph", f"results ({error})", 1, 0)]
            return not found

        self._wait_for(is_complete, watch, lambda watch: [each.found for each in found], although_stopped=True)
        return found

    # Waiting

    def _sleep(self, duration_s: float, watch: Watch, although_stopped: bool = False) -> bool:
        """Whether it was not told to stop meanwhile."""
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            if watch.failure is not None:
                raise watch.failure
            if self._stop.is_set() and not although_stopped:
                return False
            time.sleep(min(_LOOK_S, max(0.0, until - time.monotonic())))
        return True

    def _wait_for(
        self,
        condition: Callable[[], bool],
        watch: Watch,
        progress: Callable[[Watch], Any],
        although_stopped: bool = False,
    ) -> None:
        """Until it is true, or it comes no nearer for too long."""
        last, give_up = None, time.monotonic() + self._options.drain_s
        while not condition() and (although_stopped or not self._stop.is_set()) and time.monotonic() < give_up:
            now = progress(watch)
            if now != last:
                last, give_up = now, time.monotonic() + self._options.drain_s
            self._sleep(0.5, watch, although_stopped)

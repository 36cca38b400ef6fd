"""One run, from the start of the chain to the verdict: connect all devices, have them speak, wait until everything has
arrived, and look for what has not."""

from __future__ import annotations

import math
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from os import cpu_count
from os.path import realpath
from pathlib import Path
from typing import Any

from collector.log import LogError, Position
from collector.store import StoreError
from threadline.load import chain as chains
from threadline.load.breakdown import Breakdown
from threadline.load.chain import SPARK, Chain, Stopped
from threadline.load.fleet import DeviceEnd, Fleet
from threadline.load.latency import Arrivals
from threadline.load.loss import GRAPH, LOG, Loss, held_by_log, log_ends, lost_before_graph, lost_before_log, unreadable
from threadline.load.outcome import LoadOptions, Outcome
from threadline.load.questions import NoApi, Users, check_api
from threadline.load.quiet import distance, is_quiet
from threadline.load.steps import Step, Stepper, bottleneck, judge
from threadline.load.watch import EVERY_S, Sample, Watch

_LOOK_S = 0.1
_MOST_STEPS = 20
_BREATH_S = 2.0
_USERS_S = 60.0
_WARM_S = 120.0
_WARM_BATCHES = 5
_WARM_STEPS = 8
_WARM_SHARE = 0.1
_DRAIN_OF_EACH_S = 0.3  # all say goodbye at the same time
_STEP_BATCHES = 6
_LEAST_ROOM = 64 << 10
_MOST_STEP = 4  # times as long as asked for


class CannotLoad(RuntimeError):
    """The run cannot be made as asked; the text says why and what to do."""


class Listener:
    """Told how it goes. This one does not care."""

    def phase(self, text: str) -> None:
        """Something else begins."""

    def sample(self, sample: Sample) -> None:
        """Every second."""

    def step(self, step: Step) -> None:
        """A rate was tried."""


def run(options: LoadOptions, stop: threading.Event, listener: Listener) -> Outcome:
    """Do all of it. `stop` ends it early, with what was measured so far; Stopped if that is nothing. ServiceFailed,
    Breakdown or CannotLoad if it cannot be begun."""
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(options.folder))
        try:
            if options.chain is None:
                listener.phase("starting broker, gateway, translator" + ", Spark and API" * options.with_spark)
                started = chains.started(
                    folder, embedded=options.embedded, with_spark=options.with_spark, is_stopping=stop.is_set
                )
                chain = stack.enter_context(started)
            else:
                chain = options.chain
            return _Run(options, chain, folder, stop, listener).go()
        except Stopped:
            listener.phase("stopping")
            raise


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="threadline-load-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    folder = Path(realpath(wanted))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
        if is_empty:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_LEAST_ROOM))
    except OSError as error:
        raise CannotLoad(f"--folder {wanted} cannot be used: {error.strerror}") from error
    if not is_empty:
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
        self._users: Users | None = None

    def go(self) -> Outcome:
        options, outcome = self._options, self._outcome
        self._check_api()
        settings = {**options.settings, "gateway": self._chain.gateway}
        prefix = f"load-{secrets.token_hex(2)}"
        fleet = Fleet(options.profile, options.devices, options.processes, self._folder / "devices", settings, prefix)
        log_begins = self._log_begins()
        self._listener.phase(f"connecting {options.devices} devices")
        begun = time.monotonic()
        with fleet:
            is_ready = fleet.wait_ready(options.connect_s, self._look)
            outcome.connect_s = time.monotonic() - begun
            outcome.connected = options.devices if is_ready else fleet.state().connected
            with self._arrivals(fleet) as arrivals, Watch(self._chain, fleet, arrivals) as watch:
                watch.on_sample = self._listener.sample
                outcome.samples = watch.samples
                try:
                    if is_ready:
                        self._warm_up(watch, arrivals)
                        self._speak(watch)
                    self._end(fleet, watch, log_begins)
                except Breakdown as error:
                    outcome.failure = error.told(watch.now_s)
                    last_s = watch.samples[-1].at_s if watch.samples else 0.0  # nobody has looked since then
                    outcome.to_s = max(outcome.from_s, min(outcome.to_s, last_s))
        return outcome

    def _look(self) -> None:
        """Whether it is worth to wait for the devices."""
        if self._stop.is_set():
            raise Stopped
        self._chain.check()

    def _check_api(self) -> None:
        if self._options.users and self._options.chain is not None and self._chain.api is not None:
            try:
                check_api(self._chain.api)
            except NoApi as error:
                raise CannotLoad(f"--api: {error}") from error

    def _arrivals(self, fleet: Fleet) -> Any:
        store = self._chain.store
        with_tasks = self._options.profile.plan is None
        return nullcontext() if store is None else Arrivals(store, fleet.starts, with_tasks)

    def _log_begins(self) -> dict[int, Position]:
        """Where the log is before devices are there: what they say comes behind it."""
        folder = self._chain.log
        try:
            return {} if folder is None else log_ends(folder)
        except (LogError, OSError) as error:
            raise CannotLoad(f"--log {folder} cannot be read: {error}") from error

    # While they speak

    def _look_first(self, watch: Watch) -> None:
        """How it is before they speak is what all else is compared with."""
        while not watch.samples and self._sleep(_LOOK_S, watch):
            pass

    def _warm_up(self, watch: Watch, arrivals: Arrivals | None) -> None:
        """The first micro-batches of Spark take many times as long as the others: they are not measured. Stopped if
        that is all that there is time for."""
        self._look_first(watch)
        if arrivals is not None:
            if not self._has_batches(watch):  # or else somebody has warmed it up
                self._whisper(watch, arrivals)
            arrivals.take_ms()
            arrivals.since_ms = time.time_ns() // 1_000_000
        if self._stop.is_set():
            raise Stopped

    def _whisper(self, watch: Watch, arrivals: Arrivals) -> None:
        """Until Spark has got going, and has worked through all of it. If that takes too long, it is measured as it is,
        and told so."""
        self._listener.phase("warming up")
        before_s = watch.now_s
        step = self._options.profile.per_step
        watch.set_rate(min(self._options.rate, max(_WARM_SHARE * self._options.rate, _WARM_STEPS * step)))
        give_up = time.monotonic() + _WARM_S
        while not self._is_warm(watch, arrivals) and time.monotonic() < give_up and self._sleep(1.0, watch):
            pass
        self._outcome.was_cold = not self._is_warm(watch, arrivals)
        watch.set_rate(0.0)
        self._settle(watch, before_s)

    def _is_warm(self, watch: Watch, arrivals: Arrivals) -> bool:
        tells = bool(watch.samples) and watch.samples[-1].counted(SPARK, "batches") is not None
        return arrivals.seen > 0 and (not tells or self._has_batches(watch))

    def _has_batches(self, watch: Watch) -> bool:
        batches = watch.samples[-1].counted(SPARK, "batches") if watch.samples else None
        return batches is not None and batches >= _WARM_BATCHES

    def _speak(self, watch: Watch) -> None:
        options, outcome = self._options, self._outcome
        with ExitStack() as stack:
            if options.users and self._chain.api is not None:
                self._users = stack.enter_context(Users(self._chain.api, options.users, self._folder))
                self._await(self._users, watch)
            outcome.from_s = watch.now_s
            stack.callback(self._fall_silent, watch)
            if options.find_max:
                self._find_max(watch)
            else:
                self._listener.phase("")
                watch.set_rate(options.rate)
                outcome.was_stopped = not self._sleep(options.duration_s, watch)
        self._users = None

    def _await(self, users: Users, watch: Watch) -> None:
        self._outcome.asked = users.asked
        self._listener.phase("waiting for the users")
        give_up = time.monotonic() + _USERS_S
        while not users.have_begun and time.monotonic() < give_up and self._sleep(_LOOK_S, watch):
            pass
        if self._stop.is_set():
            raise Stopped

    def _fall_silent(self, watch: Watch) -> None:
        watch.set_rate(0.0)
        self._outcome.to_s = watch.now_s

    def _find_max(self, watch: Watch) -> None:
        outcome, stepper = self._outcome, Stepper(self._options.rate, self._options.close)
        cores = cpu_count() or 1
        while (rate := stepper.rate) is not None and len(outcome.steps) < _MOST_STEPS:
            self._listener.phase("")
            step = self._try(rate, watch)
            if step is None:
                break
            outcome.steps.append(step)
            self._listener.step(step)
            if not step.is_known:  # and another rate would not be, either
                break
            stepper.went(rate, step.is_sustained, is_plausible=step.is_sustained or step.fills(cores))
            if not step.is_sustained and stepper.rate is not None:
                watch.set_rate(0.0)
                self._listener.phase("waiting for what has piled up")
                self._sleep(_BREATH_S, watch)
                self._settle(watch, outcome.from_s)
        sustained = [step for step in outcome.steps if step.rate == stepper.highest and step.is_sustained]
        failed = [step for step in outcome.steps if step.rate == stepper.lowest_failed and not step.is_sustained]
        outcome.highest = sustained[-1] if sustained else None
        outcome.is_search_finished = stepper.rate is None
        outcome.was_stopped = self._stop.is_set() and not outcome.is_search_finished
        outcome.bottleneck = bottleneck(failed[-1], cores) if failed else None

    def _try(self, rate: float, watch: Watch) -> Step | None:
        """For as long as was asked for, and longer until there are looks enough, and Spark has stored often enough, to
        see a trend. None if nobody wants to wait for that."""
        from_s = watch.now_s
        watch.set_rate(rate)
        duration_s = self._options.step_s
        while self._sleep(duration_s, watch):
            step = judge(
                *(watch.samples, rate, from_s, watch.now_s),
                with_spark=self._options.with_spark,
                per_step=self._options.profile.per_step,
            )
            took_s = watch.now_s - from_s
            if step is not None:
                batch_s = watch.samples[-1].counted(SPARK, "batch_seconds") or 0.0
                is_clear = step.is_known and took_s > _STEP_BATCHES * batch_s
                if is_clear or took_s >= _MOST_STEP * self._options.step_s:
                    return step
            duration_s = EVERY_S
        return None

    def _settle(self, watch: Watch, before_s: float) -> None:
        """Until what has piled up is gone, or it comes no nearer."""
        self._wait_for(lambda: is_quiet(watch.samples, before_s), lambda: distance(watch.samples), watch)

    # When they have ended

    def _end(self, fleet: Fleet, watch: Watch, log_begins: dict[int, Position]) -> None:
        outcome, chain = self._outcome, self._chain
        self._phase("waiting until everything is acknowledged")
        begun = time.monotonic()
        outcome.ends = fleet.stop(self._options.drain_s + _DRAIN_OF_EACH_S * self._options.devices, watch.check)
        if chain.log is not None:
            outcome.losses += self._lost_before_log(outcome.ends, chain.log, log_begins)
            outcome.checked += (LOG,)
        if chain.store is not None:
            self._phase("waiting until everything is in the graph")
            missing = {loss.agent for loss in outcome.losses}
            whole = [end for end in outcome.ends if end.agent not in missing]
            outcome.losses += self._lost_before_graph(whole, chain.store, watch)
            outcome.checked += (GRAPH,)
        outcome.drained_s = time.monotonic() - begun
        self._sleep(1.2 * EVERY_S, watch, although_stopped=True)  # so that the last look has seen it all

    def _phase(self, text: str) -> None:
        self._listener.phase(f"stopping: {text}" if self._stop.is_set() else text)

    def _lost_before_log(self, ends: list[DeviceEnd], log: Path, begins: dict[int, Position]) -> list[Loss]:
        try:
            return list(lost_before_log(ends, held_by_log(log, begins, [(end.agent, end.nonce) for end in ends])))
        except (LogError, OSError) as error:
            return [unreadable(LOG, ends, error)]

    def _lost_before_graph(self, ends: list[DeviceEnd], store: str, watch: Watch) -> list[Loss]:
        found: list[Loss] = []

        def is_complete() -> bool:
            nonlocal found
            try:
                found = list(lost_before_graph(ends, store))
            except StoreError as error:
                found = [unreadable(GRAPH, ends, error)]
            return not found

        def missing() -> float:
            return sum(abs(each.said - each.found) for each in found)

        self._wait_for(is_complete, missing, watch, although_stopped=True)
        return found

    # Waiting

    def _sleep(self, duration_s: float, watch: Watch, although_stopped: bool = False) -> bool:
        """Whether it was not told to stop meanwhile."""
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            watch.check()
            self._look_around(watch.now_s)
            if self._stop.is_set() and not although_stopped:
                return False
            time.sleep(min(_LOOK_S, max(0.0, until - time.monotonic())))
        return True

    def _look_around(self, at_s: float) -> None:
        """Who is gone, though the run can go on."""
        if self._users is not None:
            self._users.look(at_s)
        for name, pid in self._chain.gone().items() if self._options.chain is not None else ():
            self._outcome.gone.setdefault(name, f"{name} (process {pid}) died at {at_s:.0f} s")

    def _wait_for(
        self,
        condition: Callable[[], bool],
        distance_to: Callable[[], float],
        watch: Watch,
        although_stopped: bool = False,
    ) -> None:
        """Until it is true, or it comes no nearer for too long."""
        nearest, give_up = math.inf, time.monotonic() + self._options.drain_s
        while not condition() and (although_stopped or not self._stop.is_set()) and time.monotonic() < give_up:
            if (now := distance_to()) < nearest:
                nearest, give_up = now, time.monotonic() + self._options.drain_s
            self._sleep(0.5, watch, although_stopped)

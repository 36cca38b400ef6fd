"""One run, from the start of the chain to the verdict: connect all devices, have them speak, wait until everything has
arrived, and look for what has not."""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from os.path import realpath
from pathlib import Path
from typing import Any

from collector.log import LogError, Position
from collector.store import StoreError
from threadline.load import chain as chains
from threadline.load.breakdown import Breakdown
from threadline.load.chain import Chain, Stopped
from threadline.load.fleet import DeviceEnd, Fleet
from threadline.load.latency import Arrivals
from threadline.load.listener import Listener
from threadline.load.loss import GRAPH, LOG, Loss, held_by_log, log_ends, lost_before_graph, lost_before_log, unreadable
from threadline.load.outcome import LoadOptions, Outcome
from threadline.load.patience import LOOK_S, Patience
from threadline.load.questions import NoApi, Users, check_api
from threadline.load.search import find_max
from threadline.load.warm_up import warm_up
from threadline.load.watch import EVERY_S, Watch

_USERS_S = 60.0
_DRAIN_OF_EACH_S = 0.3  # all say goodbye at the same time
_LEAST_ROOM = 64 << 10


class CannotLoad(RuntimeError):
    """The run cannot be made as asked; the text says why and what to do."""


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
                patience = Patience(self._stop, watch, options.drain_s, self._look_around)
                try:
                    if is_ready:
                        warm_up(outcome, watch, arrivals, patience, self._listener)
                        self._speak(watch, patience)
                    self._end(fleet, watch, patience, log_begins)
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

    def _speak(self, watch: Watch, patience: Patience) -> None:
        options, outcome = self._options, self._outcome
        with ExitStack() as stack:
            if options.users and self._chain.api is not None:
                self._users = stack.enter_context(Users(self._chain.api, options.users, self._folder))
                self._await(self._users, patience)
            outcome.from_s = watch.now_s
            stack.callback(self._fall_silent, watch)
            if options.find_max:
                find_max(outcome, watch, patience, self._listener)
            else:
                self._listener.phase("")
                watch.set_rate(options.rate)
                outcome.was_stopped = not patience.sleep(options.duration_s)
        self._users = None

    def _await(self, users: Users, patience: Patience) -> None:
        self._outcome.asked = users.asked
        self._listener.phase("waiting for the users")
        give_up = time.monotonic() + _USERS_S
        while not users.have_begun and time.monotonic() < give_up and patience.sleep(LOOK_S):
            pass
        if patience.is_over:
            raise Stopped

    def _fall_silent(self, watch: Watch) -> None:
        watch.set_rate(0.0)
        self._outcome.to_s = watch.now_s

    def _look_around(self, at_s: float) -> None:
        """Who is gone, though the run can go on."""
        if self._users is not None:
            self._users.look(at_s)
        for name, pid in self._chain.gone().items() if self._options.chain is not None else ():
            self._outcome.gone.setdefault(name, f"{name} (process {pid}) died at {at_s:.0f} s")

    # When they have ended

    def _end(self, fleet: Fleet, watch: Watch, patience: Patience, log_begins: dict[int, Position]) -> None:
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
            outcome.losses += self._lost_before_graph(whole, chain.store, patience)
            outcome.checked += (GRAPH,)
        outcome.drained_s = time.monotonic() - begun
        patience.sleep(1.2 * EVERY_S, although_stopped=True)  # so that the last look has seen it all

    def _phase(self, text: str) -> None:
        self._listener.phase(f"stopping: {text}" if self._stop.is_set() else text)

    def _lost_before_log(self, ends: list[DeviceEnd], log: Path, begins: dict[int, Position]) -> list[Loss]:
        try:
            return list(lost_before_log(ends, held_by_log(log, begins, [(end.agent, end.nonce) for end in ends])))
        except (LogError, OSError) as error:
            return [unreadable(LOG, ends, error)]

    def _lost_before_graph(self, ends: list[DeviceEnd], store: str, patience: Patience) -> list[Loss]:
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

        patience.wait_for(is_complete, missing, although_stopped=True)
        return found

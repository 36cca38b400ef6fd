"""Carries out a schedule: each fault begins when its target is at work, and is undone when its time is over."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree

from tests.faults.chain.schedule import AGENTS, CHECKPOINT, CLOUD, LINK_KINDS, WATCH, Fault, Kind
from tests.faults.chain.stage import Incident, Stage, fair_weather
from tests.faults.chain.works import GAUGE, clock_file, end_file, plan_file

Undo = Callable[[], object]
_TICK_S = 0.05
_PATIENCE_S = 15.0
_PATIENCE_WITH_SPARK_S = 90.0
"""How long after all others a fault may still begin, if its target was not at work."""
_LONGEST_JUMP_MS = 3_600_000


class Player:
    """Plays the faults of a schedule on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.played: list[Fault] = []

    def play(self) -> None:
        """Until all faults have begun and are over."""
        stage, schedule = self.stage, self.stage.schedule
        waiting = [fault for fault in schedule.faults if fault.kind != Kind.FULL_DISK or fault.target in stage.disks]
        under_way: list[tuple[float, Undo]] = []
        free_at: dict[str, float] = {}
        begun = time.monotonic()
        try:
            while waiting or under_way or time.monotonic() < begun + schedule.duration_s:
                now = time.monotonic()
                for fault in [each for each in waiting if now >= begun + each.at_s]:
                    if fault.renews_exchange and end_file(stage.folder).exists():
                        waiting.remove(fault)
                        stage.say(f"{now - begun:5.1f} s  no {fault.kind} at {fault.target}: plans come to their ends")
                    elif self._can_begin(fault) and now > max(free_at.get(each, 0.0) for each in fault.busies):
                        waiting.remove(fault)
                        stage.say(f"{now - begun:5.1f} s  {fault.kind} at {fault.target} for {fault.for_s:.1f} s")
                        under_way.append((now + fault.for_s, _BEGIN[fault.kind](stage, fault)))
                        free_at |= dict.fromkeys(fault.busies, now + fault.for_s + fault.apart_s)
                        self.played.append(fault)
                    elif fault.target in stage.finished or now > begun + schedule.duration_s + _patience_s(fault):
                        waiting.remove(fault)
                        stage.say(f"{now - begun:5.1f} s  no {fault.kind} at {fault.target}: it is not at work")
                for entry in [each for each in under_way if now >= each[0]]:
                    under_way.remove(entry)
                    entry[1]()
                if schedule.ends_at_s is not None and now >= begun + schedule.ends_at_s:
                    stage.end_sources()
                stage.look()
                time.sleep(_TICK_S)
        finally:
            for _, undo in under_way:
                undo()

    def _can_begin(self, fault: Fault) -> bool:
        """Whether its target is at work, and, if a worker is to be killed, has one."""
        if fault.kind == Kind.WORKER and not self.stage.spark.workers:
            return False
        hit = {"cloud": CLOUD, CHECKPOINT: ("spark",)}.get(fault.target, (fault.target,))
        return all(self.stage.is_ready(name) for name in hit)


def _patience_s(fault: Fault) -> float:
    return _PATIENCE_WITH_SPARK_S if "spark" in fault.busies else _PATIENCE_S


def _weather(stage: Stage, fault: Fault) -> Undo:
    link, strength = stage.links[fault.target], fault.strength
    if fault.kind == Kind.LOSS:
        link.set(loss=0.1 + 0.4 * strength)
    elif fault.kind == Kind.DUPLICATES:
        link.set(duplicate=0.1 + 0.4 * strength)
    elif fault.kind == Kind.REORDERING:
        link.set(delay_s=(0.0, 0.1 + 0.9 * strength))
    else:
        link.set(corrupt=0.02 + 0.2 * strength)
    return partial(fair_weather, link)


def _partition(stage: Stage, fault: Fault) -> Undo:
    link = stage.links[fault.target]
    link.partitioned = True
    return partial(setattr, link, "partitioned", False)


def _one_way(stage: Stage, fault: Fault) -> Undo:
    link = stage.links[fault.target]
    link.one_way = True
    return partial(setattr, link, "one_way", False)


def _rebind(stage: Stage, fault: Fault) -> Undo:
    stage.links[fault.target].rebind()
    return lambda: None


def _kill(stage: Stage, fault: Fault) -> Undo:
    name = fault.target
    stage.away.add(name)
    at_ns = time.monotonic_ns()
    stage.services[name].kill()
    if name in AGENTS:
        stage.incidents.append(Incident(name, "kill", at_ns, time.monotonic_ns()))
    return partial(stage.bring_back, name)


def _black_out(stage: Stage, fault: Fault) -> Undo:
    undone = [_kill(stage, replace(fault, target=name)) for name in CLOUD]
    return lambda: [undo() for undo in undone]


def _forget(stage: Stage, fault: Fault) -> Undo:
    undo = _kill(stage, fault)
    data = stage.folder / "mosquitto-data"
    rmtree(data)
    data.mkdir()
    return undo


def _kill_worker(stage: Stage, fault: Fault) -> Undo:
    stage.forgive_spark()
    workers = stage.spark.workers
    victim = workers[int(fault.strength * len(workers))]
    stage.say(f"         one of {len(workers)} workers, process {victim.pid}")
    victim.send_signal(signal.SIGKILL)
    return lambda: None


def _stop(stage: Stage, fault: Fault) -> Undo:
    processes = stage.processes(fault.target)
    for each in processes:
        each.send_signal(signal.SIGSTOP)

    def go_on() -> None:
        for each in reversed(processes):
            if each.is_running():
                each.send_signal(signal.SIGCONT)

    return go_on


def _fill_disk(stage: Stage, fault: Fault) -> Undo:
    disk = stage.disks[fault.target]
    disk.fill()
    if fault.target != CHECKPOINT:
        return disk.free
    stage.forgive_spark()

    def free() -> None:
        disk.free()
        stage.forgive_spark()  # it may have tried in vain to start

    return free


def _slow_reader(stage: Stage, fault: Fault) -> Undo:
    """It asks for everything that happens, and reads none of it."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    reader.connect((stage.api.host, stage.api.port))
    reader.sendall(b"GET /v1/graph/stream?since=start HTTP/1.1\r\nHost: api\r\nAccept: text/event-stream\r\n\r\n")
    return reader.close


def _sleep(stage: Stage, fault: Fault) -> Undo:
    name = fault.target
    stage.away.add(name)
    process = stage.services[name].process
    assert process is not None
    at_ns = time.monotonic_ns()
    process.send_signal(signal.SIGTERM)

    def wake() -> None:
        if process.poll() is None and name != WATCH:
            process.send_signal(signal.SIGTERM)  # a second one: it does not wait for acknowledgements any more
        stage.incidents.append(Incident(name, "sleep", at_ns, time.monotonic_ns()))
        stage.bring_back(name)

    return wake


def _reflash(stage: Stage, fault: Fault) -> Undo:
    undo = _kill(stage, fault)
    stage.wipe(fault.target)
    return undo


def _lose(stage: Stage, fault: Fault) -> Undo:
    """It is killed and never comes back, nor what lay on its card."""
    _kill(stage, fault)
    stage.wipe(fault.target)
    stage.gone.add(fault.target)
    return lambda: None


def _replan(stage: Stage, fault: Fault) -> Undo:
    undo = (_kill if fault.strength < 0.5 else _sleep)(stage, fault)
    _replace(plan_file(stage.folder, fault.target), lambda number: number + 1)
    return undo


def _skew(stage: Stage, fault: Fault) -> Undo:
    """Only the gauge may go back in time: it has no receivers who would take what it says then for late."""
    undo = _kill(stage, fault)
    jump_ms = int((2 * fault.strength - 1 if fault.target == GAUGE else fault.strength) * _LONGEST_JUMP_MS)
    _replace(clock_file(stage.folder, fault.target), lambda ahead_ms: ahead_ms + jump_ms)
    return undo


def _replace(path: Path, change: Callable[[int], int]) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(str(change(int(path.read_text()) if path.exists() else 0)))
    draft.replace(path)


_BEGIN: dict[Kind, Callable[[Stage, Fault], Undo]] = {
    Kind.LOSS: _weather,
    Kind.DUPLICATES: _weather,
    Kind.REORDERING: _weather,
    Kind.CORRUPTION: _weather,
    Kind.PARTITION: _partition,
    Kind.ONE_WAY: _one_way,
    Kind.REBINDING: _rebind,
    Kind.KILL: _kill,
    Kind.BLACKOUT: _black_out,
    Kind.FORGET: _forget,
    Kind.WORKER: _kill_worker,
    Kind.STOP: _stop,
    Kind.FULL_DISK: _fill_disk,
    Kind.SLOW_READER: _slow_reader,
    Kind.SLEEP: _sleep,
    Kind.REFLASH: _reflash,
    Kind.REPLAN: _replan,
    Kind.SKEW: _skew,
    Kind.GONE: _lose,
}
assert LINK_KINDS < _BEGIN.keys() == set(Kind)

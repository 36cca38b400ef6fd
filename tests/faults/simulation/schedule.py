"""What happens in a run: a list of steps, made from a seed. Fewer steps make a run of their own, so failures shrink."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from tests.faults.simulation.disk import Killed
from tests.faults.simulation.fleet import AGENTS, VERSIONS
from tests.faults.simulation.link import Weather
from tests.faults.simulation.world import Options, World

_MUCH = (0.0, 0.02, 0.1, 0.3, 1.0)
_ALWAYS = {"read": 6, "capture": 3, "flush": 2, "wait": 8}
_TORRENT = "torrent"
_SEND_BYTES = 4 << 10
_FLEETS = (AGENTS, ("car", "center"), ("car", "hub", "center"), ("car", "hub", "cam"), ("cam",))


class Step(NamedTuple):
    """Something happens to somebody, more or less of it."""

    action: str
    agent: str
    much: float


def _read(world: World, step: Step) -> None:
    device = world.devices.get("car")
    if device is not None and device.agent is not None:
        device.read(1 + int(step.much * 20), 16)


def _capture(world: World, step: Step) -> None:
    device = world.devices.get("cam") or world.devices.get(step.agent)
    if device is not None and device.agent is not None:
        device.capture(1 + int(step.much * 20), 8)


def _flood(world: World, step: Step) -> None:
    """More than fits into the spool, if nobody takes it, or even into memory, if the disk does not."""
    device = world.devices.get(step.agent)
    if device is not None and device.agent is not None:
        for _ in range(10):
            device.capture(25 if device.disk.is_full else 5, 700)
            world.run(0.3)
            if world.devices.get(step.agent) is not device:
                return


def _torrent(world: World, step: Step) -> None:
    """More than fits into the small spool of a Send while one of those who receive it cannot be reached."""
    device, reachable = world.devices.get("car"), world.link.partitioned
    world.link.partitioned = reachable | {step.agent}
    for _ in range(10 + int(step.much * 20)):
        if device is None or device.agent is None or world.devices.get("car") is not device:
            break
        device.read(15, 62)
        world.run(0.5)
    world.link.partitioned = reachable


def _flush(world: World, step: Step) -> None:
    device = world.devices.get(step.agent)
    if device is not None and device.agent is not None:
        device.flush()


def _wait(world: World, step: Step) -> None:
    world.run(0.02 + 6 * step.much)


def _weather(world: World, step: Step) -> None:
    much = step.much
    kinds = (
        Weather(),
        Weather(loss=much / 2),
        Weather(copies=much / 2, jitter_s=much),
        Weather(jitter_s=2 * much, very_late=much / 10),
        Weather(loss=much / 3, copies=much / 3, jitter_s=much),
    )
    world.link.weather = world.dice.choice(kinds)


def _corruption(world: World, step: Step) -> None:
    world.link.weather = Weather(loss=step.much / 5, corrupt=step.much / 5, jitter_s=0.05)


def _partition(world: World, step: Step) -> None:
    world.link.partitioned ^= {step.agent}


def _kill_device(world: World, step: Step) -> None:
    world.kill_device(step.agent)
    world.timeline.later(step.much, lambda: world.start_device(step.agent))


def _kill_while_writing(world: World, step: Step) -> None:
    if step.agent in world.devices:
        world.disks.of(step.agent).die_after(int(step.much * 40))


def _kill_at_start(world: World, step: Step) -> None:
    world.kill_device(step.agent)
    world.start_device(step.agent, dies_after=int(step.much * 40))


def _power_cut(world: World, step: Step) -> None:
    world.cut_power_of(step.agent)


def _stop_device(world: World, step: Step) -> None:
    world.stop_device(step.agent)


def _pause_device(world: World, step: Step) -> None:
    if step.agent in world.devices:
        world.devices[step.agent].pause(30 * step.much)


def _nap(world: World, step: Step) -> None:
    device = world.devices.get(step.agent)
    if device is not None and device.agent is not None:
        device.sleep(10 + int(100 * step.much))


def _wake(world: World, step: Step) -> None:
    device = world.devices.get(step.agent)
    if device is not None and device.agent is not None:
        device.wake()


def _move(world: World, step: Step) -> None:
    world.move(step.agent)


def _reflash(world: World, step: Step) -> None:
    world.reflash(step.agent)


def _change_plan(world: World, step: Step) -> None:
    world.kill_device(step.agent)
    world.versions[step.agent] = (world.versions[step.agent] + 1) % VERSIONS


def _clock_jump(world: World, step: Step) -> None:
    """The device's clock is wrong: an hour ahead, or some seconds back."""
    jump_ms = int(world.dice.choice((3_600_000, 60_000, -5_000, -60_000)) * step.much)
    device = world.devices.get(step.agent)
    if device is not None:
        device.clock_ms += jump_ms
    world.clocks_ms[step.agent] += jump_ms


def _device_full(world: World, step: Step) -> None:
    disk = world.disks.of(step.agent)
    disk.is_full = not disk.is_full


def _kill_gateway(world: World, step: Step) -> None:
    world.kill_gateway()
    world.timeline.later(3 * step.much, world.start_gateway)


def _kill_gateway_in_turn(world: World, step: Step) -> None:
    if world.gateway is not None:
        world.gateway.dies_in_turn = 1 + int(step.much * 20)


def _pause_gateway(world: World, step: Step) -> None:
    if world.gateway is not None:
        world.gateway.pause(20 * step.much)


def _kill_broker(world: World, step: Step) -> None:
    world.broker.kill(0.1 + 5 * step.much)


def _slow_broker(world: World, step: Step) -> None:
    world.broker.delay_s = 0.01 + 3 * step.much


def _kill_translator(world: World, step: Step) -> None:
    world.kill_translator()
    world.timeline.later(5 * step.much, world.start_translator)


def _kill_translator_while_writing(world: World, step: Step) -> None:
    if world.translator is not None:
        world.translator.disk.die_after(int(step.much * 40))


def _power_cut_log(world: World, step: Step) -> None:
    world.cut_power_of_log()


def _pause_translator(world: World, step: Step) -> None:
    if world.translator is not None:
        world.translator.pause(20 * step.much)


def _log_full(world: World, step: Step) -> None:
    disk = world.disks.of("log")
    disk.is_full = not disk.is_full


def _registry_full(world: World, step: Step) -> None:
    world.registry.is_full = not world.registry.is_full


def _retire(world: World, step: Step) -> None:
    if world.translator is not None:
        world.translator.retire()


def _kill_job(world: World, step: Step) -> None:
    world.job.dies = "before it is stored" if step.much < 0.1 else "after it is stored"


def _slow_job(world: World, step: Step) -> None:
    world.job.pace_s = 1.0 + 60 * step.much


def _remove_old(world: World, step: Step) -> None:
    with suppress(Killed):  # in the middle of it
        world.job.remove_old()


ACTIONS: dict[str, Callable[[World, Step], None]] = {
    "read": _read,
    "capture": _capture,
    "flush": _flush,
    "wait": _wait,
    "flood": _flood,
    _TORRENT: _torrent,
    "weather": _weather,
    "corruption": _corruption,
    "partition": _partition,
    "kill device": _kill_device,
    "kill device while it writes": _kill_while_writing,
    "kill device at its start": _kill_at_start,
    "power cut of device": _power_cut,
    "stop device": _stop_device,
    "pause device": _pause_device,
    "device sleeps": _nap,
    "device wakes": _wake,
    "device moves": _move,
    "reflash": _reflash,
    "change of plan": _change_plan,
    "clock jump": _clock_jump,
    "device's disk is full": _device_full,
    "kill gateway": _kill_gateway,
    "kill gateway in a turn": _kill_gateway_in_turn,
    "pause gateway": _pause_gateway,
    "kill broker": _kill_broker,
    "slow broker": _slow_broker,
    "kill translator": _kill_translator,
    "kill translator while it writes": _kill_translator_while_writing,
    "power cut of the log": _power_cut_log,
    "pause translator": _pause_translator,
    "log's disk is full": _log_full,
    "registry is full": _registry_full,
    "retire": _retire,
    "kill graph job": _kill_job,
    "slow graph job": _slow_job,
    "old segments go": _remove_old,
}
FAULTS = tuple(name for name in ACTIONS if name not in _ALWAYS and name != _TORRENT)


def plan_run(seed: int) -> tuple[Options, list[Step]]:
    """A run: who takes part, how they are set, and what happens. Not every run has every fault, so that each has room
    to do its worst."""
    dice = Random(f"{seed}/schedule")
    agents = dice.choice(_FLEETS)
    faults = dice.sample(FAULTS, dice.randint(3, 12))
    weights = _ALWAYS | {fault: dice.choice((1, 2, 4)) for fault in faults}
    settings: dict[str, Any] = {
        "fsync": dice.choice(("batch", "interval", "never")),
        "when_full": dice.choice(("block", "drop-oldest")),
        "qos": dice.choice((0, 1, 1, 2)),
        "batch_bytes": dice.choice((100, 300, 1_200)),
        "batch_age_s": dice.choice((0.05, 1.0)),
        "spool_bytes": dice.choice((64 << 10, 1 << 20)),
        "window": dice.choice((4, 16)),
        "memory_bytes": Random(f"{seed}/memory").choice((64 << 10, 64 << 20)),
        "keep_alive_s": 20,
        "status_s": 60.0,
    }
    steps = [
        Step(dice.choices(list(weights), list(weights.values()))[0], dice.choice(agents), dice.choice(_MUCH))
        for _ in range(dice.randrange(20, 70))
    ]
    send_bytes = _SEND_BYTES if _add_torrents(seed, agents, steps) else None
    happens = {step.action for step in steps}
    forgets = "reflash" in happens or ("power cut of device" in happens and settings["fsync"] != "batch")
    return Options(agents, settings, late=forgets or "retire" in happens, send_bytes=send_bytes), steps


def _add_torrents(seed: int, agents: tuple[str, ...], steps: list[Step]) -> bool:
    """In some runs of those who send, for which the spools are small; all others stay what they were. Tells whether."""
    dice = Random(f"{seed}/{_TORRENT}")
    if dice.randrange(10) or "car" not in agents:
        return False
    for _ in range(dice.randint(1, 4)):
        step = Step(_TORRENT, dice.choice(agents[1:]), dice.choice(_MUCH))
        steps.insert(dice.randint(0, len(steps)), step)
    return True


def act(world: World, step: Step) -> None:
    """One step; whoever has died comes back by and by."""
    if step.action != "clock jump" or step.agent == "car":  # nobody else has a clock that matters
        world.happened[step.action] += 1
    ACTIONS[step.action](world, step)
    world.run(0.01)
    if world.dice.random() < 0.5:
        world.start_gateway()
        world.start_translator()
        for name in world.options.agents:
            world.start_device(name)

"""Who dies when: a schedule from a seed, carried out while everything works."""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random, SystemRandom

from threadline.lab import Service

SEED_VARIABLE = "THREADLINE_KILL_SEED"


def kill_seed() -> int:
    """A new one each time, unless one is to be tried again; either way it is printed."""
    seed = int(os.environ.get(SEED_VARIABLE) or SystemRandom().randrange(1_000_000))
    print(f"{SEED_VARIABLE}={seed}")
    return seed


def kill_and_restart(
    services: list[Service], kills: int, random: Random, *, lives_s: tuple[float, float], away_s: tuple[float, float]
) -> Counter[str]:
    """Kill -9 so often, each of the services in turn but in no order, and bring it back after a while; others die
    meanwhile. Returns when all are back, with how often each has died."""
    died: Counter[str] = Counter()
    back: dict[str, Future[Service]] = {}
    with ThreadPoolExecutor(len(services)) as pool:
        for victim in _victims(services, kills, random):
            time.sleep(random.uniform(*lives_s))
            if victim.name in back:
                back[victim.name].result()
            assert victim.process is not None and victim.process.poll() is None, f"{victim.name} has died by itself"
            victim.kill()
            died[victim.name] += 1
            back[victim.name] = pool.submit(_start_later, victim, random.uniform(*away_s))
        for future in back.values():
            future.result()
    return died


def _start_later(service: Service, away_s: float) -> Service:
    time.sleep(away_s)
    return service.start()


def _victims(services: list[Service], kills: int, random: Random) -> list[Service]:
    chosen: list[Service] = []
    while len(chosen) < kills:
        chosen += random.sample(services, len(services))
    return chosen[:kills]

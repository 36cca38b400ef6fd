"""The disk of Spark's checkpoint is full again and again, from the first micro-batch on: the graph is what it would
have been."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from tests.faults.chain.small_disk import CannotMount, SmallDisk
from tests.support.waiting import wait_until
from tests.system.graph.test_kills import Growing, Victim, finish

SIZE_BYTES = 96 << 20
TIMES = 6


def has_committed(checkpoint: Path, batches: int) -> bool:
    """Whether there are so many micro-batches that Spark will not run again."""
    return max((int(path.name) + 1 for path in checkpoint.glob("commits/[0-9]*")), default=0) >= batches


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_job_whose_checkpoint_has_no_room_goes_on_when_it_has(tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    (tmp_path / "log").mkdir()
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(SmallDisk(tmp_path / "disk", SIZE_BYTES))
        except CannotMount as error:
            pytest.skip(str(error))
        spark = Victim(tmp_path, tmp_path / "log")
        spark.checkpoint = disk.folder / "checkpoint"
        spark.start_s = 300.0  # a soak may have a busy machine
        growing = Growing(tmp_path / "log", seed, pause_s=0.3)
        with closing(growing), spark.killed_at_last():
            for batches in range(TIMES):
                spark.start()
                wait_until(partial(has_committed, spark.checkpoint, batches), "micro-batches", 200)
                time.sleep(chance.uniform(0.0, 2.0))
                disk.fill()
                wait_until(lambda: not spark.is_running, "the job says that there is no room", 60)
                assert "the disk of the checkpoint is full" in spark.output()
                disk.free()
        finish(spark, growing.log.told)

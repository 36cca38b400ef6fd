"""What a stage forgives Spark: to end because of what was just done to it, not because of anything else later."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.chain.schedule import CHECKPOINT, Schedule
from tests.faults.chain.small_disk import SmallDisk
from tests.faults.chain.stage import Broken, SparkTree, Stage


class FakeSpark(SparkTree):
    """A job that ends, and commits, when a test says so."""

    launches = 0

    def launch(self, apart: bool = False) -> Any:
        self.launches += 1
        self.process: Any = SimpleNamespace(poll=lambda: None)
        return self.process

    def is_ready(self) -> bool:
        return True

    def end(self) -> None:
        self.process = SimpleNamespace(poll=lambda: 1)

    def commit(self, batch: int) -> None:
        folder = self.checkpoint / "commits"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(batch)).touch()
        (folder / f".{batch}.crc").touch()


@pytest.fixture
def spark(tmp_path: Path) -> FakeSpark:
    made = FakeSpark(tmp_path, tmp_path / "log")
    made.log.touch()
    made.launch()
    return made


@pytest.fixture
def stage(tmp_path: Path, spark: FakeSpark) -> Stage:
    made = Stage(tmp_path, Schedule(seed=1, duration_s=1.0), lambda _: None)
    made.spark = spark
    made.services = {"spark": spark}
    made._launched_at = {"spark": 0.0}
    return made


def test_spark_may_end_once_of_what_was_done_to_it(stage: Stage, spark: FakeSpark) -> None:
    spark.commit(4)
    stage.forgive_spark()
    spark.commit(5)  # it was under way
    spark.end()
    assert stage.relaunched == set()
    stage.look()
    assert (spark.launches, stage.relaunched) == (2, {"spark"}), "and counts anew"
    spark.end()
    with pytest.raises(Broken, match="spark has ended by itself with code 1"):
        stage.look()


def test_what_spark_has_got_over_is_no_reason_to_end(stage: Stage, spark: FakeSpark) -> None:
    stage.forgive_spark()
    for batch in range(3):
        stage.look()
        spark.commit(batch)
    spark.end()
    with pytest.raises(Broken):
        stage.look()


def test_while_its_disk_is_full_spark_may_end_again_and_again(stage: Stage, spark: FakeSpark, tmp_path: Path) -> None:
    disk = stage.disks[CHECKPOINT] = SmallDisk(tmp_path, 0)
    (tmp_path / "ballast").touch()
    stage.forgive_spark()
    for batch in range(5):
        spark.commit(batch)
        spark.end()
        stage.look()
    disk.free()
    stage.forgive_spark()
    spark.end()
    stage.look()
    spark.end()
    with pytest.raises(Broken):
        stage.look()

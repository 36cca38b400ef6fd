"""When everything that was said counts as gone through, on samples that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.threadline.load.samples import sample
from threadline.load.chain import SPARK
from threadline.load.quiet import distance, is_quiet
from threadline.load.watch import Sample

BEFORE_S = 4.0


def looks(*behind: int, said: float = 1_000, unacknowledged: float = 0) -> list[Sample]:
    """Four before devices speak, with Spark three rows behind at most; and those afterwards."""
    before = [sample(at_s, said=0, rows=10, rows_read=10 - at_s % 4) for at_s in range(1, 5)]
    after = [
        sample(5 + place, said=said, rows=900, rows_read=900 - rows, unacknowledged=unacknowledged, seen=20)
        for place, rows in enumerate(behind)
    ]
    return before + after


@pytest.mark.parametrize(
    ("behind", "quiet"),
    [
        ((0, 0, 0, 0), True),
        ((0, 2, 1, 3), True),  # agents tell how they are all the time
        ((500, 500, 500, 500), False),  # in the midst of a long micro-batch
        ((9, 6, 3, 0), False),  # it still reads
        ((0, 0, 0), False),
    ],
)
def test_spark_has_to_be_as_close_behind_the_log_as_before(behind: tuple[int, ...], quiet: bool) -> None:
    assert is_quiet(looks(*behind), BEFORE_S) is quiet


def test_what_is_with_the_devices_or_just_became_visible_is_not_quiet() -> None:
    assert not is_quiet(looks(0, 0, 0, 0, unacknowledged=1), BEFORE_S)
    samples = looks(0, 0, 0, 0)
    samples[-1].seen = 21
    assert not is_quiet(samples, BEFORE_S)
    samples = looks(0, 0, 0, 0)
    samples[-1] = replace(samples[-1], said=samples[-1].said + 1)
    assert not is_quiet(samples, BEFORE_S), "they still speak"


def test_a_spark_that_has_stopped_to_tell_is_not_quiet() -> None:
    samples = looks(0, 0, 0, 0)
    for each in samples[-4:]:
        del each.metrics[SPARK]
    assert not is_quiet(samples, BEFORE_S)
    for each in samples:
        each.metrics.pop(SPARK, None)
    assert is_quiet(samples, BEFORE_S), "it never told"


def test_the_distance_shrinks_with_all_that_goes_through() -> None:
    far = distance(looks(500, unacknowledged=9))
    assert distance(looks(400, unacknowledged=9)) == far - 100
    assert distance(looks(500, unacknowledged=4)) == far - 5
    samples = looks(500, 500, unacknowledged=9)
    samples[-1].seen = 27
    assert distance(samples) == far - 7
    del samples[-1].metrics[SPARK]
    assert distance(samples) == far - 7, "what was told last"

"""Limits only grow, and are kept."""

from __future__ import annotations

import numpy as np

from protocol.ranges import Ranges
from protocol.records import BEGINNING
from spark_jobs.limits import Limits
from tests.support.plain_state import PlainState


def test_they_grow_and_never_shrink() -> None:
    limits = Limits(PlainState(), "purged")
    limits.rise(3, -5)
    limits.rise(3, -7)
    limits.rise(9, 4)
    assert limits.of(np.array([9, 3, 4, 9])).tolist() == [4, -5, BEGINNING, 4]
    assert limits.of(np.empty(0, "<i8")).tolist() == []
    assert limits.streams == [3, 9]


def test_they_are_kept_under_their_name_once_something_has_changed() -> None:
    state = PlainState()
    limits = Limits(state, "purged")
    limits.save()
    assert state == {}
    limits.rise(3, 7)
    limits.save()
    assert Limits(state, "purged").of(np.array([3])).tolist() == [7]
    assert Limits(state, "labelled").streams == []


def test_those_of_streams_that_are_gone_are_still_known_but_not_read_each_time() -> None:
    state = PlainState()
    limits = Limits(state, "purged")
    for stream in (3, 5, 2_000):
        limits.rise(stream, stream)
    limits.set_aside([3, 4])
    limits.save()
    limits = Limits(state, "purged")
    limits.set_aside([2_000])
    limits.forget([4])
    limits.save()
    limits, gone = Limits(state, "purged"), Ranges()
    gone.add([3, 4, 2_000])
    assert limits.streams == [5]
    assert limits.of(np.array([3, 4, 5, 2_000]), gone).tolist() == [3, BEGINNING, 5, 2_000]
    for time, highest in ((1, 3), (7, 7)):  # something came of it after all
        limits.rise(3, time)
        assert limits.of(np.array([3]), gone).tolist() == [highest]
        limits.set_aside([3])
        assert limits.of(np.array([3]), gone).tolist() == [highest]
    limits.forget([5])
    limits.save()
    assert Limits(state, "purged").streams == []

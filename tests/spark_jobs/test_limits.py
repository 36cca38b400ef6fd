"""Limits only grow, and are kept."""

from __future__ import annotations

import numpy as np

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

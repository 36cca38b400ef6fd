"""Buckets are spread evenly over partitions. That the hash is Spark's own is tested where Spark runs (test_job)."""

from __future__ import annotations

import pytest

from spark_jobs.placement import Placement, hash_of


@pytest.mark.parametrize(("buckets", "partitions"), [(1, 1), (4, 2), (5, 2), (2, 5), (64, 7)])
def test_each_bucket_has_a_key_of_its_own_in_its_partition(buckets: int, partitions: int) -> None:
    placement = Placement(buckets, partitions)
    assert [hash_of(key) % partitions for key in placement.keys] == [bucket % partitions for bucket in range(buckets)]
    assert len(set(placement.keys)) == buckets
    assert [placement.bucket(key) for key in placement.keys] == list(range(buckets))


def test_a_key_that_is_nobodys_is_refused() -> None:
    placement = Placement(2, 2)
    with pytest.raises(KeyError):
        placement.bucket(max(placement.keys) + 1)

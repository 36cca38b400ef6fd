"""Which Spark partition works on a bucket: bucket 0 in the first, 1 in the second, and so on around.

Spark places rows by a hash of their key. A few buckets by their own numbers would often meet in one partition and leave
another idle, so every bucket gets a key whose hash puts it where it belongs.
"""

from __future__ import annotations

from functools import cached_property
from itertools import count

_SEED = 42
_MASK = 0xFFFFFFFF


class Placement:
    """How many buckets there are, and the partitions that work on them. Both are fixed with the checkpoint."""

    def __init__(self, buckets: int, partitions: int) -> None:
        self.buckets = buckets
        self.partitions = partitions

    @cached_property
    def keys(self) -> list[int]:
        """The key of each bucket, no two alike."""
        keys: list[int] = []
        for bucket in range(self.buckets):
            place = bucket % self.partitions
            least = keys[bucket - self.partitions] + 1 if bucket >= self.partitions else 0
            keys.append(next(key for key in count(least) if hash_of(key) % self.partitions == place))
        return keys

    def bucket(self, key: int) -> int:
        """Whose key this is."""
        return self._buckets[key]

    @cached_property
    def _buckets(self) -> dict[int, int]:
        return {key: bucket for bucket, key in enumerate(self.keys)}


def hash_of(key: int) -> int:
    """Spark's hash of a 32-bit number: Murmur3 with its seed, as a signed number."""
    mixed = key * 0xCC9E2D51 & _MASK
    mixed = _rotated(mixed, 15) * 0x1B873593 & _MASK
    mixed = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _MASK) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    mixed ^= mixed >> 16
    return mixed - (mixed >> 31 << 32)


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _MASK

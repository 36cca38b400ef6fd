"""Object Annotation: what a vehicle's LiDAR and its left and right camera recognise, ten frames a second.

A source tuple is a whole frame: three lists of objects with a track number, a label and a place relative to the
vehicle. Most of it is background: vehicles all around, bicycles out of reach, pedestrians whom one camera sees.
Planted are rides of bicycles in front of the vehicle and pedestrians who cross from the left camera's view to the
right one's.

`frames(count=500_000)` makes half a million tuples. They are large: about twenty objects each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

VEHICLE: Final = 0
PEDESTRIAN: Final = 1
BICYCLE: Final = 2

FRAME_MS: Final = 100
RIDE_EVERY: Final = 100  # frames
CROSSING_EVERY: Final = 50

# Track numbers say what they are: bicycles ahead, pedestrians who cross, and the background, which has the rest.
FIRST_RIDE: Final = 1_000_000
FIRST_CROSSING: Final = 2_000_000
FIRST_BACKGROUND: Final = 3_000_000


@dataclass
class Annotation:
    track: int
    label: int
    x: float
    y: float
    z: float


@dataclass
class Frame:
    lidar: list[Annotation]
    left: list[Annotation]
    right: list[Annotation]


@dataclass
class Ride:
    """A planted bicycle: within 20 m in `frames` frames from `first` on, farther ahead just before and after."""

    track: int
    first: int
    frames: int


@dataclass
class Crossing:
    """A planted pedestrian: the frames with a sighting by the left camera, and those by the right one."""

    track: int
    left: list[int]
    right: list[int]


def rides(count: int = 1_200, seed: int = 1) -> list[Ride]:
    """What `frames` of the same arguments plants for the first query; some rides are too short for it."""
    rng = random.Random(seed)
    found: list[Ride] = []
    for slot in range(0, count - RIDE_EVERY + 1, RIDE_EVERY):
        track = FIRST_RIDE + slot // RIDE_EVERY
        found.append(Ride(track, slot + rng.randrange(5, 30), rng.randrange(6, 60)))
    return found


def crossings(count: int = 1_200, seed: int = 1) -> list[Crossing]:
    """What `frames` of the same arguments plants for the second query.

    Of every three pedestrians one is for a moment in both pictures of one frame, one steps out of the left picture
    and a little later into the right one, and one dawdles for two seconds or more and so has not crossed.
    """
    rng = random.Random(seed)
    found: list[Crossing] = []
    for slot in range(0, count - CROSSING_EVERY + 1, CROSSING_EVERY):
        number = slot // CROSSING_EVERY
        first = slot + rng.randrange(10)
        last = first + rng.randrange(4)
        begin = last
        if number % 3 == 1:
            begin = last + rng.randrange(1, 9)
        elif number % 3 == 2:
            begin = last + rng.randrange(20, 26)
        end = begin + rng.randrange(4)
        found.append(Crossing(FIRST_CROSSING + number, list(range(first, last + 1)), list(range(begin, end + 1))))
    return found


def frames(count: int = 1_200, seed: int = 1) -> Iterator[tuple[int, Frame]]:
    """The frames. The background moves once a second, and the frames of that second share its objects."""
    planned = rides(count, seed)
    walkers = crossings(count, seed)
    rng = random.Random(seed)
    scene = Frame([], [], [])
    for index in range(count):
        if index % 10 == 0:
            scene = _background(index, rng)
        lidar = scene.lidar.copy()
        left = scene.left.copy()
        right = scene.right.copy()
        if index // RIDE_EVERY < len(planned):
            ride = planned[index // RIDE_EVERY]
            since = index - ride.first
            if 0 <= since < ride.frames:
                lidar.append(Annotation(ride.track, BICYCLE, 5 + 14 * rng.random(), 10 * rng.random() - 5, 0.4))
            elif -5 <= since < ride.frames + 5:
                lidar.append(Annotation(ride.track, BICYCLE, 20 + 10 * rng.random(), 10 * rng.random() - 5, 0.4))
        if index // CROSSING_EVERY < len(walkers):
            walker = walkers[index // CROSSING_EVERY]
            if index in walker.left:
                left.append(Annotation(walker.track, PEDESTRIAN, 6 + rng.random(), 1 + rng.random(), 0.9))
            if index in walker.right:
                right.append(Annotation(walker.track, PEDESTRIAN, 6 + rng.random(), -1 - rng.random(), 0.9))
        yield index * FRAME_MS, Frame(lidar, left, right)


def _background(index: int, rng: random.Random) -> Frame:
    """Tracks last ten seconds. Vehicles are in front and in both pictures; bicycles are too far ahead or aside."""
    track = FIRST_BACKGROUND + index // RIDE_EVERY * 20
    lidar: list[Annotation] = []
    left: list[Annotation] = []
    right: list[Annotation] = []
    for _ in range(8):
        vehicle = Annotation(track, VEHICLE, 80 * rng.random() - 40, 30 * rng.random() - 15, 0.8)
        lidar.append(vehicle)
        if track % 4 == 0:
            left.append(vehicle)
            right.append(vehicle)
        track += 1
    for _ in range(2):
        lidar.append(Annotation(track, BICYCLE, 21 + 40 * rng.random(), 10 * rng.random(), 0.4))
        lidar.append(Annotation(track + 1, BICYCLE, 15 * rng.random(), -21 - 10 * rng.random(), 0.4))
        track += 2
    for _ in range(2):
        one = Annotation(track, PEDESTRIAN, 15 * rng.random(), 8 + rng.random(), 0.9)
        other = Annotation(track + 1, PEDESTRIAN, 15 * rng.random(), -8 - rng.random(), 0.9)
        lidar += [one, other]
        left.append(one)
        right.append(other)
        track += 2
    return Frame(lidar, left, right)

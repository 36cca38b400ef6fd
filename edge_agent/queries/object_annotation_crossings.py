"""Object Annotation, crossed pedestrians: one person in both cameras' pictures within 2 s (Ananke's Q2).

The left sightings are joined with the right ones, in windows of 2 s every 1 s: one result for each pair and each
window that holds both, as in Ananke's code. That code joins the stream with itself, under a key that swaps the sides,
so that it finds every pair a second time with left and right exchanged. The mirrored results have the same stamp and
the same two sources and tell nothing new, so they are not kept: here the two streams are split first and joined once.

A pedestrian whom both cameras have in one frame has crossed too; that alert has the one frame as its only source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_agent.queries.object_annotation import PEDESTRIAN, Annotation, Frame, frames
from edge_agent.stream import Plan, Stream, seconds

LEFT: Final = 0
RIGHT: Final = 1


@dataclass
class Sighting:
    camera: int
    seen: Annotation


@dataclass
class CrossedPedestrian:
    track: int
    left_x: float
    left_y: float
    right_x: float
    right_y: float


def sightings(frame: Frame) -> list[Sighting]:
    return [Sighting(LEFT, seen) for seen in frame.left] + [Sighting(RIGHT, seen) for seen in frame.right]


def is_pedestrian(sighting: Sighting) -> bool:
    return sighting.seen.label == PEDESTRIAN


def is_left(sighting: Sighting) -> bool:
    return sighting.camera == LEFT


def is_right(sighting: Sighting) -> bool:
    return sighting.camera == RIGHT


def track_of(sighting: Sighting) -> int:
    return sighting.seen.track


def crossed(left: Sighting, right: Sighting) -> CrossedPedestrian:
    return CrossedPedestrian(left.seen.track, left.seen.x, left.seen.y, right.seen.x, right.seen.y)


def crossed_pedestrians(frames: Stream[Frame]) -> Stream[CrossedPedestrian]:
    pedestrians = frames.flat_map(sightings, name="sightings").filter(is_pedestrian, name="pedestrians")
    left = pedestrians.filter(is_left, name="left")
    right = pedestrians.filter(is_right, name="right")
    return left.key_by(track_of).join_window(
        right.key_by(track_of), seconds(2), seconds(1), combine=crossed, name="both sides"
    )


def build(provenance: str = "segments") -> Plan:
    plan = Plan("object-annotation-crossings", provenance=provenance)
    crossed_pedestrians(plan.source("frames", frames)).sink("crossed-pedestrians")
    return plan

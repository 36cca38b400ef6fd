"""Object Annotation, cycles in front: a bicycle within 20 m in more than 11 frames of 6 s (Ananke's Q1).

The flat map turns one frame into many objects, so the sources of an alert are whole frames: one for each time the
bicycle was seen, whatever else is in the frame.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.queries.object_annotation import BICYCLE, Annotation, Frame, frames
from edge_agent.stream import Count, Plan, Stream, seconds


@dataclass
class CycleInFront:
    track: int
    frames: int


def lidar_objects(frame: Frame) -> list[Annotation]:
    return frame.lidar


def is_cycle_in_front(seen: Annotation) -> bool:
    return seen.label == BICYCLE and -20 < seen.x < 20 and -20 < seen.y < 20


def cycle_in_front(track: int, frames: int) -> CycleInFront:
    return CycleInFront(track, frames)


def is_lasting(cycle: CycleInFront) -> bool:
    return cycle.frames > 11


def cycles_in_front(frames: Stream[Frame]) -> Stream[CycleInFront]:
    return (
        frames.flat_map(lidar_objects, name="lidar objects")
        .filter(is_cycle_in_front, name="cycles in front")
        .key_by("track")
        .window(seconds(6), seconds(3))
        .aggregate(Count(), into=cycle_in_front, name="per track")
        .filter(is_lasting, name="lasting")
    )


def build(provenance: str = "segments") -> Plan:
    plan = Plan("object-annotation-cycles", provenance=provenance)
    cycles_in_front(plan.source("frames", frames)).sink("cycles-in-front")
    return plan

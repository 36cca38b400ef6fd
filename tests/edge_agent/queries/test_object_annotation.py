"""Cycles in front and crossings: what was planted, and a brute-force evaluation, against the engine."""

from __future__ import annotations

import pytest

from edge_agent.queries import object_annotation_crossings, object_annotation_cycles
from edge_agent.queries.object_annotation import (
    BICYCLE,
    FRAME_MS,
    PEDESTRIAN,
    Annotation,
    Frame,
    crossings,
    frames,
    rides,
)
from tests.edge_agent.queries.alerts import Alert, Items, check, check_replay, ends, fields

SIZES = [(1_200, 1), (700, 7), (1_500, 2024)]


def cycles_by_brute_force(items: Items) -> list[Alert]:
    groups: dict[tuple[int, int], list[int]] = {}
    for index, (ts, frame) in enumerate(items):
        for seen in frame.lidar:
            if seen.label == BICYCLE and abs(seen.x) < 20 and abs(seen.y) < 20:
                for end in ends(ts, 6_000, 3_000):
                    groups.setdefault((end, seen.track), []).append(index)
    return [
        (end, (track, len(members)), tuple(members)) for (end, track), members in groups.items() if len(members) > 11
    ]


def crossings_by_brute_force(items: Items) -> list[Alert]:
    """Every pair of pictures of one pedestrian, once for each window that has both."""
    left: dict[tuple[int, int], list[tuple[int, Annotation]]] = {}
    right: dict[tuple[int, int], list[tuple[int, Annotation]]] = {}
    for index, (ts, frame) in enumerate(items):
        for side, picture in ((left, frame.left), (right, frame.right)):
            for seen in picture:
                if seen.label == PEDESTRIAN:
                    for end in ends(ts, 2_000, 1_000):
                        side.setdefault((end, seen.track), []).append((index, seen))
    found: list[Alert] = []
    for (end, track), lefts in left.items():
        for i, one in lefts:
            for j, other in right.get((end, track), []):
                alert = object_annotation_crossings.CrossedPedestrian(track, one.x, one.y, other.x, other.y)
                found.append((end, fields(alert), tuple(sorted({i, j}))))
    return found


def planted_cycles(count: int, seed: int) -> list[Alert]:
    found: list[Alert] = []
    for ride in rides(count, seed):
        for end in range(30, count + 60, 30):
            causes = range(max(ride.first, end - 60), min(ride.first + ride.frames, end))
            if len(causes) > 11:
                found.append((end * FRAME_MS, (ride.track, len(causes)), tuple(causes)))
    return found


def planted_crossings(count: int, seed: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """(timestamp, track, causes)"""
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for crossing in crossings(count, seed):
        for end in range(10, count + 20, 10):
            for one in crossing.left:
                for other in crossing.right:
                    if end - 20 <= one < end and end - 20 <= other < end:
                        found.append((end * FRAME_MS, crossing.track, tuple(sorted({one, other}))))
    return sorted(found)


@pytest.mark.parametrize(("count", "seed"), SIZES)
def test_cycles_in_front(count: int, seed: int) -> None:
    items = list(frames(count, seed))
    expected = planted_cycles(count, seed)
    assert len(expected) >= 5
    assert len({track for _, (track, _), _ in expected}) < len(rides(count, seed))
    assert sorted(cycles_by_brute_force(items)) == sorted(expected)
    check(object_annotation_cycles.build, "frames", "cycles-in-front", items, expected)
    check_replay(object_annotation_cycles.build, "frames", "cycles-in-front", items, expected)


@pytest.mark.parametrize(("count", "seed"), SIZES)
def test_crossed_pedestrians(count: int, seed: int) -> None:
    items = list(frames(count, seed))
    expected = crossings_by_brute_force(items)
    assert sorted((ts, alert[0], causes) for ts, alert, causes in expected) == planted_crossings(count, seed)
    assert {len(causes) for _, _, causes in expected} == {1, 2}
    check(object_annotation_crossings.build, "frames", "crossed-pedestrians", items, expected)
    check_replay(object_annotation_crossings.build, "frames", "crossed-pedestrians", items, expected)


def seen_by(left: list[int], right: list[int], count: int = 40) -> list[tuple[int, Frame]]:
    """Pedestrian 9 in the left picture of some frames and in the right one of others."""
    one, other = Annotation(9, PEDESTRIAN, 5.0, 1.0, 0.0), Annotation(9, PEDESTRIAN, 5.0, -1.0, 0.0)
    return [
        (index * FRAME_MS, Frame([], [one] if index in left else [], [other] if index in right else []))
        for index in range(count)
    ]


def test_a_crossing_is_found_once_per_common_window_and_not_from_both_sides() -> None:
    # frames  0         10   L R  20        30      windows of 20 frames, every 10
    #         |---------+----L-R--|                 [ 0, 20)
    #                   |----L-R--+---------|       [10, 30)
    crossed = (9, 5.0, 1.0, 5.0, -1.0)
    expected: list[Alert] = [(2_000, crossed, (15, 17)), (3_000, crossed, (15, 17))]
    check(object_annotation_crossings.build, "frames", "crossed-pedestrians", seen_by([15], [17]), expected)


def test_both_cameras_in_one_frame_are_one_source() -> None:
    crossed = (9, 5.0, 1.0, 5.0, -1.0)
    expected: list[Alert] = [(2_000, crossed, (15,)), (3_000, crossed, (15,))]
    check(object_annotation_crossings.build, "frames", "crossed-pedestrians", seen_by([15], [15]), expected)


def test_two_seconds_apart_is_no_crossing() -> None:
    check(object_annotation_crossings.build, "frames", "crossed-pedestrians", seen_by([10], [30]), [])


def test_eleven_frames_are_not_enough() -> None:
    bicycle = Annotation(4, BICYCLE, 19.9, -19.9, 0.0)
    borders = [Annotation(4, BICYCLE, x, y, 0.0) for x, y in ((20.0, 0.0), (-20.0, 0.0), (0.0, 20.0), (0.0, -20.0))]
    items = [(index * FRAME_MS, Frame([bicycle, *borders], [], [])) for index in range(12)]
    expected: list[Alert] = [(3_000, (4, 12), tuple(range(12))), (6_000, (4, 12), tuple(range(12)))]
    check(object_annotation_cycles.build, "frames", "cycles-in-front", items, expected)
    check(object_annotation_cycles.build, "frames", "cycles-in-front", items[:11], [])

"""Where the boxes of a plan go: layers from left to right, few crossings, nothing on top of anything.

The steps are Sugiyama's. An operator's layer is the longest way to it from a source, so every edge points right. An
edge that skips layers gets a bend in each of them, which holds its place like a box. Each layer is sorted by the
barycentre of its neighbours, there and back a few times; then every item moves as near to the middle of its neighbours
as the order allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from protocol.plan import PlanDocument, in_order

LAYER_GAP = 64.0
BOX_GAP = 22.0
BEND_HEIGHT = 4.0
SWEEPS = 8
# Bends are for the eye; a plan with more of them than this is beyond it.
MOST_BENDS = 5_000


@dataclass(frozen=True, slots=True)
class Box:
    """An operator's place; x and y are its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Edge:
    """One input of one operator, from the source's right side to the target's left side.

    Between `points` it runs level through its layer and crosses to the next one, by turns.
    """

    source: str
    target: str
    place: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    boxes: Mapping[str, Box]
    edges: tuple[Edge, ...]
    width: float
    height: float


@dataclass(slots=True, eq=False)
class _Item:
    """A box or a bend in its layer. `y` is its middle."""

    width: float
    height: float
    layer: int
    left: list[_Item]
    right: list[_Item]
    y: float = 0.0
    rank: int = 0


def lay_out(plan: PlanDocument, size: Mapping[str, tuple[float, float]]) -> Layout:
    """Places for boxes of the given (width, height) per operator."""
    items: dict[str, _Item] = {}
    for node in in_order(plan):
        depth = max((items[name].layer + 1 for name in node.inputs), default=0)
        items[node.name] = _Item(*size[node.name], depth, [], [])
    _move_origins_to_their_consumers(plan, items)
    layers: list[list[_Item]] = [[] for _ in range(1 + max(item.layer for item in items.values()))]
    for item in items.values():
        layers[item.layer].append(item)
    chains = _chains(plan, items, layers)
    _sort(layers)
    _place(layers)

    top = min(item.y - item.height / 2 for layer in layers for item in layer)
    lefts, x = [], 0.0
    for layer in layers:
        lefts.append(x)
        x += max(item.width for item in layer) + LAYER_GAP
    boxes = {
        name: Box(lefts[item.layer], item.y - item.height / 2 - top, item.width, item.height)
        for name, item in items.items()
    }
    return Layout(
        boxes,
        tuple(_edges(plan, items, boxes, chains, lefts, layers, top)),
        max(box.x + box.width for box in boxes.values()),
        max(item.y + item.height / 2 - top for layer in layers for item in layer),
    )


def _move_origins_to_their_consumers(plan: PlanDocument, items: Mapping[str, _Item]) -> None:
    """A source that is first used late stands just before its use, not at the far left."""
    first_use: dict[str, int] = {}
    for node in plan.nodes:
        for name in node.inputs:
            first_use[name] = min(first_use.get(name, items[node.name].layer), items[node.name].layer)
    for node in plan.nodes:
        if not node.inputs:
            items[node.name].layer = first_use[node.name] - 1


def _chains(
    plan: PlanDocument, items: Mapping[str, _Item], layers: list[list[_Item]]
) -> dict[tuple[str, str], list[_Item]]:
    """The bends of each (source, target), which join the layers; and everybody's neighbours."""
    pairs = list(dict.fromkeys((name, node.name) for node in plan.nodes for name in node.inputs))
    bends = sum(items[target].layer - items[source].layer - 1 for source, target in pairs)
    chains: dict[tuple[str, str], list[_Item]] = {}
    for source, target in pairs:
        first, last = items[source], items[target]
        between = range(first.layer + 1, last.layer) if bends <= MOST_BENDS else range(0)
        chain = [_Item(0.0, BEND_HEIGHT, layer, [], []) for layer in between]
        for bend in chain:
            layers[bend.layer].append(bend)
        for left, right in pairwise([first, *chain, last]):
            left.right.append(right)
            right.left.append(left)
        chains[source, target] = chain
    return chains


def _sort(layers: list[list[_Item]]) -> None:
    def barycentre(neighbours: Callable[[_Item], list[_Item]]) -> Callable[[_Item], float]:
        def key(item: _Item) -> float:
            others = neighbours(item)
            return sum(other.rank for other in others) / len(others) if others else item.rank

        return key

    def crossings() -> int:
        """Between neighbouring layers: pairs of edges that end in the other order than they start."""
        count = 0
        for layer in layers:
            ends: list[int] = []
            for item in layer:
                ends += sorted(other.rank for other in item.right)
            count += _inversions(ends)
        return count

    _number(layers)
    best, fewest = [list(layer) for layer in layers], crossings()
    for sweep in range(SWEEPS):
        if not fewest:
            break
        backwards = sweep % 2 == 1
        key = barycentre(lambda item: item.right) if backwards else barycentre(lambda item: item.left)
        for layer in reversed(layers) if backwards else layers:
            layer.sort(key=key)
            for rank, item in enumerate(layer):
                item.rank = rank
        count = crossings()
        if count < fewest:
            best, fewest = [list(layer) for layer in layers], count
    layers[:] = best
    _number(layers)


def _number(layers: list[list[_Item]]) -> None:
    for layer in layers:
        for rank, item in enumerate(layer):
            item.rank = rank


def _inversions(values: list[int]) -> int:
    """Pairs in the wrong order, by merge sort."""
    if len(values) < 2:
        return 0
    half = len(values) // 2
    left, right = values[:half], values[half:]
    count = _inversions(left) + _inversions(right)
    left.sort()
    right.sort()
    place = 0
    for value in right:
        while place < len(left) and left[place] <= value:
            place += 1
        count += len(left) - place
    return count


def _place(layers: list[list[_Item]]) -> None:
    """Give every item its y: to the middle of its neighbours, left ones and right ones by turns."""
    for layer in layers:
        _settle(layer, [0.0] * len(layer))
    for sweep in range(SWEEPS + 1):
        backwards = sweep % 2 == 1
        for layer in reversed(layers) if backwards else layers:
            wanted = []
            for item in layer:
                others = (item.right or item.left) if backwards else (item.left or item.right)
                wanted.append(sum(other.y for other in others) / len(others))
            _settle(layer, wanted)


def _settle(layer: list[_Item], wanted: list[float]) -> None:
    """The places nearest to the wanted ones (least squares) that keep the order and the gaps: isotonic regression."""
    offsets, offset = [], 0.0
    for place, item in enumerate(layer):
        if place:
            offset += (layer[place - 1].height + item.height) / 2 + BOX_GAP
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []  # (mean of wanted - offset, items), rising
    for place, want in enumerate(wanted):
        mean, count = want - offsets[place], 1
        while blocks and blocks[-1][0] >= mean:
            other, size = blocks.pop()
            mean, count = (mean * count + other * size) / (count + size), count + size
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    for item, mean, offset in zip(layer, means, offsets, strict=True):
        item.y = mean + offset


def _edges(
    plan: PlanDocument,
    items: Mapping[str, _Item],
    boxes: Mapping[str, Box],
    chains: Mapping[tuple[str, str], list[_Item]],
    lefts: list[float],
    layers: list[list[_Item]],
    top: float,
) -> list[Edge]:
    """Edges leave a box in its middle and arrive spread over its side, so that they can be told apart."""
    widths = [max(item.width for item in layer) for layer in layers]
    edges = []
    for node in plan.nodes:
        target = boxes[node.name]

        def height_before(place: int, name: str = node.name, inputs: tuple[str, ...] = node.inputs) -> float:
            chain = chains[inputs[place], name]
            if chain:
                return chain[-1].y - top
            return boxes[inputs[place]].y + boxes[inputs[place]].height / 2

        arrivals = sorted(range(len(node.inputs)), key=height_before)
        for port, place in enumerate(arrivals):
            source, layer = boxes[node.inputs[place]], items[node.inputs[place]].layer
            middle = source.y + source.height / 2
            points = [(source.x + source.width, middle), (lefts[layer] + widths[layer], middle)]
            for bend in chains[node.inputs[place], node.name]:
                points.append((lefts[bend.layer], bend.y - top))
                points.append((lefts[bend.layer] + widths[bend.layer], bend.y - top))
            points.append((target.x, target.y + target.height * (port + 1) / (len(arrivals) + 1)))
            edges.append(Edge(node.inputs[place], node.name, place, tuple(points)))
    return edges

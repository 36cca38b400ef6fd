"""Data that tasks use and generate. Its attributes become bytes at begin() and end(), not before: a row tells what the
values were when the task had them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from edge_agent.capture.given import LINK_BYTES, linked, several, size_of, text_of
from edge_agent.capture.misuse import misuse
from protocol.wire.packer import Packer
from protocol.wire.values import TOO_LARGE
from protocol.wire.values import size_of as captured_size

MOST_ROW_BYTES = 40 * 1024  # a row is never divided, and a datagram has to hold it
_CHECKED_FROM = MOST_ROW_BYTES // 4  # sizes are in characters, and a character has up to four bytes
_ITEM_BYTES = 16

Item = tuple[Any, ...]  # id, workflow id, derivations, shape, bytes


class Data:
    """An Entity of PROV-DM. `attributes` is any value, most often a dict.

    `workflow_id` says to which workflow it belongs (wasAttributedTo), `derivations` what it was made from
    (wasDerivedFrom): ids or Data, one or several. Ids are read here, attributes whenever a task has the data.
    """

    __slots__ = ("_derivations", "_id", "_size", "_workflow_id", "attributes", "id", "workflow_id")

    def __init__(self, id: Any, workflow_id: Any, attributes: Any = None, derivations: Any = None) -> None:
        self.id = id
        self.workflow_id = workflow_id
        self.attributes = attributes
        self._id = text = text_of(id)
        self._workflow_id = of = text_of(workflow_id)
        self._size = _ITEM_BYTES + len(text) + len(of)
        self._derivations: tuple[str, ...] = ()
        if derivations is not None:
            self._derivations = linked(derivations)
            self._size += sum(map(len, self._derivations)) + LINK_BYTES * len(self._derivations)

    def __str__(self) -> str:
        return self._id

    def __repr__(self) -> str:
        return f"Data({self.id!r}, {self.workflow_id!r})"


DataGiven = Data | Iterable[Data] | None


def packed_items(given: DataGiven, packer: Packer) -> tuple[list[Item], int]:
    """Data as it goes into a row, and about how many bytes it holds."""
    if type(given) is list and len(given) == 1 and type(given[0]) is Data:  # as a rule
        data = given[0]
        shape, value, size = packer.pack_sized(data.attributes)
        size += data._size
        items: list[Item] = [(data._id, data._workflow_id, data._derivations, shape, value)]
        return (items, size) if size < _CHECKED_FROM else fitted(items, packer)
    sequence: Sequence[Data] = given if type(given) is list else several(given)
    pack = packer.pack_sized
    items = []
    size = 0
    try:
        for data in sequence:
            shape, value, value_size = pack(data.attributes)
            items.append((data._id, data._workflow_id, data._derivations, shape, value))
            size += data._size + value_size
    except AttributeError:  # something in it is no Data
        items = list(_packed_one_by_one(sequence, packer))
        size = sum(map(_bytes_in, items))
    return (items, size) if size < _CHECKED_FROM else fitted(items, packer)


def fitted(items: Sequence[Item], packer: Packer) -> tuple[list[Item], int]:
    """As much as one row can hold: a value that does not fit is replaced; data of which not even the ids fit is left
    out."""
    found: list[Item] = []
    left = MOST_ROW_BYTES
    for item in items:
        if _bytes_in(item) > left:
            misuse.tell("row_too_large", f"one row cannot hold {len(items)} data: some are recorded without attributes")
            packer.replaced += 1
            item = (*item[:3], None, packer.encode({TOO_LARGE: "attributes", "bytes": captured_size(item[4])}))
        if _bytes_in(item) <= left:
            found.append(item)
            left -= _bytes_in(item)
    return found, MOST_ROW_BYTES - left


def _packed_one_by_one(sequence: Sequence[Any], packer: Packer) -> Iterator[Item]:
    """The same one by one, leaving out what has no meaning."""
    for data in sequence:
        if isinstance(data, Data):
            yield data._id, data._workflow_id, data._derivations, *packer.pack(data.attributes)
        else:
            misuse.tell("not_data", f"a task uses and generates Data: a {type(data).__qualname__} is left out")


def _bytes_in(item: Item) -> int:
    return _ITEM_BYTES + size_of(item[0]) + size_of(item[1]) + sum(map(size_of, item[2])) + captured_size(item[4])

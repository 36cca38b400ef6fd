"""What all our documents of W3C PROV have in common, whoever makes them: names, relations, and values of users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prov.identifier import Namespace, QualifiedName
from prov.model import Literal, ProvDocument

from collector.export.naming import NAMESPACE, SURROGATE, local_name
from collector.export.values import json_text, plain

RELATE: dict[str, Callable[..., object]] = {
    "wasDerivedFrom": ProvDocument.wasDerivedFrom,
    "used": ProvDocument.used,
    "wasGeneratedBy": ProvDocument.wasGeneratedBy,
    "wasInformedBy": ProvDocument.wasInformedBy,
    "wasAssociatedWith": ProvDocument.wasAssociatedWith,
    "wasAttributedTo": ProvDocument.wasAttributedTo,
    "actedOnBehalfOf": ProvDocument.actedOnBehalfOf,
    "specializationOf": ProvDocument.specializationOf,
}
"""The relations of PROV-DM between two elements that we use, and how the library adds them."""


def new_document() -> tuple[ProvDocument, Namespace]:
    """An empty document and the namespace of its names. That keeps all that it has made, so each document has one of
    its own, with which they go."""
    made, tl = ProvDocument(), Namespace("tl", NAMESPACE)
    made.add_namespace(tl)
    return made, tl


def written(document: ProvDocument, format: str) -> bytes:
    """A document in one of the library's formats."""
    text = document.serialize(format=format)
    assert text is not None  # it is None only where a file is named to write to
    return text.encode()


def spread(tl: Namespace, name: str, value: Any) -> Iterator[tuple[QualifiedName, Any]]:
    """A value of the user's by its own names, such as `tl:payload.speed`; one without names stands by itself."""
    value = plain(value)
    if isinstance(value, dict) and value:
        yield from ((tl[local_name(f"{name}.{key}")], _literal(tl, each)) for key, each in value.items())
    else:
        yield tl[name], _literal(tl, value)


def _literal(tl: Namespace, value: Any) -> Any:
    """A number or a text as it is, which the library gives a type of XML Schema; anything else as JSON."""
    if isinstance(value, (bool, int, float)) or (isinstance(value, str) and not SURROGATE.search(value)):
        return value
    return Literal(json_text(value), tl["json"])

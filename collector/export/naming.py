"""Ids of vertices as names that URIs, PROV-N and XML can hold.

Most ids are such names already. What cannot stand in one is percent-encoded as in a URI, so one function leads back.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

NAMESPACE = "urn:threadline:"
"""Followed by the local name of an id, it is the URI of a vertex."""

SURROGATE = re.compile("[\ud800-\udfff]")
"""What no UTF-8 can hold: half a character, which only JSON has a way to write."""

# What no XML 1.0 document may hold, not even as a character reference.
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def local_name(vertex_id: str) -> str:
    """An id as the local part of a qualified name of PROV, and as the rest of a URI after NAMESPACE."""
    return quote(vertex_id, safe="/@:", errors="surrogatepass")


def xml_name(vertex_id: str) -> str:
    """An id as it stands in an attribute of XML: only what XML does not allow is encoded, and the percent sign."""
    return _NOT_IN_XML.sub(_encoded, vertex_id.replace("%", "%25"))


def readable(text: str) -> str:
    """A text without what XML or UTF-8 cannot hold: each such character becomes U+FFFD."""
    return _NOT_IN_XML.sub("\ufffd", text)


def vertex_id_of(name: str) -> str:
    """The id of which `local_name` or `xml_name` has made this name."""
    return unquote(name, errors="surrogatepass")


def _encoded(found: re.Match[str]) -> str:
    return quote(found[0], safe="", errors="surrogatepass")

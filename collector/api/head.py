"""HEAD asks for what GET would be answered with, but for the body. The framework has no routes for it, so it is asked
as GET, and whoever answers looks here whether a body is wanted: a stream of events would never end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

_MARK = "threadline.is_head"


def as_get(scope: Scope) -> Scope:
    """The same request as GET. It is a copy: the server, which leaves bodies out, has to know what was asked."""
    return {**scope, "method": "GET", _MARK: True}


def is_head(scope: Mapping[str, Any]) -> bool:
    """Whether nobody wants the body."""
    return _MARK in scope

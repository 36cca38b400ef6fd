"""`threadline sinks`: the latest results, which people begin with."""

from __future__ import annotations

from typing import Any, Literal

import typer

from threadline.commands.asking import (
    DEFAULT_API,
    Agent,
    Api,
    AsJson,
    Everything,
    From,
    Limit,
    Streams,
    To,
    Where,
    asking,
    note,
    nothing,
    print_json,
)

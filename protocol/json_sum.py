"""The checksum of a value that is kept as JSON: whoever reads it again can tell that it is the one that was written."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32


def json_sum(value: Any) -> int:
    """The same however the text is laid out, and in whatever order its keys stand."""
    return crc32(json.dumps(value, sort_keys=True).encode())

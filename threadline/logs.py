"""Logs on stderr: a line per event, `what happened key=value key=value`; for machines the same as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from enum import StrEnum

_PAIR = re.compile(r" (\w+)=")


class LogFormat(StrEnum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


def configure_logging(level: int, wanted: LogFormat) -> None:
    """Log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if wanted is LogFormat.JSON else text)
    logging.basicConfig(level=level, handlers=[handler])


class JsonLines(logging.Formatter):
    """One JSON object per event: when, how bad, who says so, what happened, and its values by name."""

    def format(self, record: logging.LogRecord) -> str:
        event, *pairs = _PAIR.split(record.getMessage())
        line: dict[str, object] = {
            **dict(zip(pairs[::2], pairs[1::2], strict=True)),
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)

"""Requests that the other system does not want are kept, a line of JSON each, for whoever wants to know why."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

from collector.forwarding.errors import ForwardingError
from collector.forwarding.system import Request, shown_url

_MOST_ANSWER_CHARACTERS = 1_000


class Refusals:
    """The file beside the position."""

    def __init__(self, position: Path) -> None:
        self.path = position.with_name(f"{position.name}.refused.jsonl")

    def keep(self, request: Request, status: int, answer: str) -> None:
        """On disk when this returns. That it cannot be kept is a reason to stop: it would be lost."""
        line = {
            "at_ms": time.time_ns() // 1_000_000,
            "url": shown_url(request.url),
            "status": status,
            "answer": answer[:_MOST_ANSWER_CHARACTERS],
            "content_type": request.content_type,
        }
        try:
            line["body"] = request.body.decode()
        except UnicodeDecodeError:
            line["body_base64"] = base64.b64encode(request.body).decode()
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ForwardingError(f"a refused request cannot be kept in {self.path}: {error.strerror}") from error

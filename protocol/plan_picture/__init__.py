"""A plan for people: as text, as DOT, and as an SVG that needs nothing else to be looked at."""

from __future__ import annotations

from protocol.plan_picture.dot import to_dot
from protocol.plan_picture.svg import to_svg
from protocol.plan_picture.text import to_text

__all__ = ["to_dot", "to_svg", "to_text"]

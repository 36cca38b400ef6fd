"""Hypothesis profiles: `ci` for every run, `soak` for `make soak`."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ci", max_examples=100, derandomize=False, deadline=None, print_blob=True)
settings.register_profile("soak", settings.get_profile("ci"), max_examples=2_000)
settings.load_profile("ci")

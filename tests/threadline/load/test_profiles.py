"""What devices say, and what of it is known elsewhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from threadline.load.profiles import Said, total


def test_what_several_have_said_is_added_up_field_by_field() -> None:
    said = [Said(1, 50, 38, 2, 4), Said(results=2, tasks=3)]
    assert total(said) == Said(3, 50, 38, 5, 4)
    assert total([]) == Said()


@pytest.mark.parametrize("module", ["fleet", "loss", "outcome"])
def test_who_counts_what_was_said_needs_no_process_with_devices(module: str) -> None:
    shown = f"import sys, threadline.load.{module}\nsys.exit('threadline.load.worker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", shown], check=False).returncode == 0

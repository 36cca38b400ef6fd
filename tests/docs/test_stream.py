"""The examples in docs/stream.md run, in order, and print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "stream.md"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```output\n(.*?)```", re.DOTALL)


def test_every_example_prints_what_the_page_says() -> None:
    text = PAGE.read_text()
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```output") > 5
    assert text.count("```python") == len(examples)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for code, expected in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec", dont_inherit=True), namespace)
        assert printed.getvalue() == expected, code

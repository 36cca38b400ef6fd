"""Times as people write them."""

from __future__ import annotations

import pytest

from threadline.durations import parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("10", 10), ("1.5", 1.5), ("10s", 10), ("5m", 300), ("1h", 3_600), (" 0.5h ", 1_800)),
        *(("200ms", 0.2), ("0ms", 0)),
    ],
)
def test_seconds_need_no_unit(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "10d", "1sm", "ms", "-1", "1e3", "inf", "nan", "1 m", "1m30s", "\u0661s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no time such as 200ms, 90s, 10m or 2h"):
        parse_duration_s(text)

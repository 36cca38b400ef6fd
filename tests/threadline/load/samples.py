"""Samples as a watch would have taken them, for tests of what is made of them."""

from __future__ import annotations

from threadline.load.chain import SPARK, TRANSLATOR
from threadline.load.histogram import Histogram
from threadline.load.watch import DEVICES, Sample


def sample(
    at_s: float,
    *,
    rate: float = 100.0,
    said: float | None = None,
    told: tuple[tuple[float, int], ...] | None = None,
    acknowledged: float | None = None,
    unacknowledged: float = 0,
    dropped: float = 0,
    missed: float = 0,
    seen: int | None = 0,
    rows: float | None = None,
    rows_read: float | None = None,
    late_ms: float = 1_000.0,
    cores: dict[str, float] | None = None,
    memory_bytes: dict[str, int] | None = None,
    machine_cores: float = 1.0,
) -> Sample:
    """A quiet second of devices that say 100 units, which make ten batches and twenty rows."""
    used = cores or {DEVICES: 0.2, TRANSLATOR: 0.3, SPARK: 0.4}
    written = 20 * at_s if rows is None else rows
    in_all = int(rate * at_s if said is None else said)
    return Sample(
        at_s=at_s,
        rate=rate,
        said=in_all,
        told=((at_s, in_all),) if told is None else told,
        connected=2,
        acknowledged=int(10 * at_s - unacknowledged if acknowledged is None else acknowledged),
        unacknowledged=int(unacknowledged),
        dropped=int(dropped),
        memory_bytes=0,
        resent=0,
        missed=int(missed),
        seen=seen,
        metrics={
            TRANSLATOR: {"batches": 10 * at_s, "rows": written},
            SPARK: {"rows": written if rows_read is None else rows_read},
        },
        cores=used,
        component_bytes=memory_bytes or dict.fromkeys(used, 1_000_000),
        rss_bytes=memory_bytes or dict.fromkeys(used, 2_000_000),
        machine_cores=machine_cores,
        caller_us=Histogram([10.0, 20.0]),
        late_ms=Histogram([late_ms]),
    )

"""A run as one HTML file that needs nothing else: its figures as tables, its course as plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from threadline.load.chain import GATEWAY, TRANSLATOR
from threadline.load.figures import components, has_too_little_to_say, is_short, rates
from threadline.load.flows import BATCHES, PUBLISHES, logged, stored
from threadline.load.loss import Loss
from threadline.load.outcome import Outcome
from threadline.load.plots import Points, plot
from threadline.load.summary import (
    COLD,
    asked_for,
    given_up,
    highest,
    left,
    too_little,
    unwritten,
    what_is_there,
)
from threadline.load.watch import Sample

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --front: #222; --soft: #ddd; --span: #0000000d; }
@media (prefers-color-scheme: dark) { :root { --back: #1b1b1b; --front: #ddd; --soft: #444; --span: #ffffff14; } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1340px; margin: 2em auto; padding: 0 1em;
  background: var(--back); color: var(--front); }
table { border-collapse: collapse; margin: .5em 0 1.5em; }
th, td { padding: .2em .8em .2em 0; text-align: right; border-bottom: 1px solid var(--soft); vertical-align: top; }
th:first-child, td:first-child, .text td { text-align: left; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1em; }
svg { width: 100%; background: var(--back); }
svg text { font: 11px system-ui, sans-serif; fill: var(--front); }
svg .title { font-weight: 600; }
svg .y { text-anchor: end; }
svg .x { text-anchor: middle; }
svg .grid { stroke: var(--soft); stroke-width: .5; }
svg .span { fill: var(--span); }
svg polyline { fill: none; stroke-width: 1.5; }
.lost { color: #c00; font-weight: 600; }
"""

_LOOKS = 5


def page(outcome: Outcome) -> str:
    """All of it."""
    options = outcome.options
    title = f"{options.devices} devices, profile {options.profile.name}"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>threadline load: {escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            f"<h1>threadline load: {escape(title)}</h1>",
            *_verdict(outcome),
            "<h2>What was run</h2>",
            table(["", ""], [[name, value] for name, value in asked_for(outcome).items()], "text"),
            *_figures(outcome),
            "<h2>Course</h2>\n<p>From the first look on, with the warm-up. Shaded: while the devices spoke and were"
            f" measured. A rate is the mean of {_LOOKS} looks, drawn in their middle. The whole machine is all that"
            ' runs on it, other programs included.</p>\n<div class="plots">',
            *(picture for picture in plots(outcome) if picture),
            "</div>",
            *_steps(outcome),
            *_asked(outcome),
            "</body>\n</html>\n",
        ]
    )


def _verdict(outcome: Outcome) -> Iterable[str]:
    yield f"<p>{outcome.connected} of {outcome.options.devices} devices were connected.</p>"
    if outcome.was_stopped:
        yield "<p>It was stopped early: all figures are of what was measured so far.</p>"
    if is_short(outcome):
        yield '<p class="lost">The devices said less than was asked for.</p>'
    if has_too_little_to_say(outcome):
        yield f"<p>{escape(too_little(outcome))}.</p>"
    if outcome.was_cold:
        yield f'<p class="lost">{COLD}.</p>'
    yield from (f'<p class="lost">{escape(text)}.</p>' for text in outcome.gone.values())
    if outcome.failure is not None:
        yield f'<p class="lost">It could not be brought to its end:</p>\n<pre>{escape(outcome.failure)}</pre>'
        yield "<p>Losses were not looked for: all figures are of what was measured until then.</p>"
    elif not outcome.checked:
        yield "<p>Losses were not looked for: there is neither a log nor a store to look into.</p>"
    elif outcome.is_everything_there:
        yield f"<p>Nothing was lost: {what_is_there(outcome)}.</p>"
    if outcome.lost:
        yield '<p class="lost">Lost:</p>'
        yield from _list(outcome.lost)
    if outcome.unwritten:
        yield f'<p class="lost">Lost: {escape(unwritten(outcome))}</p>'
    if outcome.unsought:
        yield f'<p class="lost">Lost: {escape(given_up(outcome))}</p>'
    if outcome.left:
        yield f'<p class="lost">Not arrived, {escape(left(outcome))}</p>'
        yield from _list(outcome.delayed)
    if outcome.options.find_max:
        yield f"<p>Highest rate: {escape(highest(outcome))}.</p>"
    if outcome.bottleneck is not None:
        yield f"<p>First bottleneck: {outcome.bottleneck.component} ({escape(outcome.bottleneck.why)}).</p>"


def _list(losses: Sequence[Loss]) -> Iterable[str]:
    if losses:
        yield "<ul>"
        yield from (f"<li>{escape(str(each))}</li>" for each in losses)
        yield "</ul>"


def _figures(outcome: Outcome) -> Iterable[str]:
    profile = outcome.options.profile
    yield "<h2>Times</h2>"
    names = ("mean", "p50", "p95", "p99", "max")
    rows = []
    for what, unit, times in (
        (f"caller, for {profile.call}", "us", outcome.caller_us),
        ("from the capture until it is visible in the graph", "ms", outcome.late_ms),
    ):
        figures = times.figures()
        if times.count:
            rows.append([what, f"{times.count:,}", *(f"{figures[name] or 0:,.1f} {unit}" for name in names)])
    yield table(["", "count", *names], rows)
    if outcome.missed:
        missed = f"{outcome.missed:,} {profile.unit} were missed"
        yield f"<p>{missed}: the processes of the devices were too slow for them.</p>"
    yield "<h2>Rates</h2>"
    yield table(["", "per second"], [[name, f"{per_s:,.1f}"] for name, per_s in rates(outcome).items()])
    yield "<h2>Cost</h2>\n<p>Memory is what is the processes' own; RSS includes the pages of files.</p>"
    yield table(
        ["", "cores", "CPU s", f"CPU us per {profile.one}", "most memory, MB", "most RSS, MB"],
        [
            [
                *(name, f"{used['cores']:.2f}", f"{used['cpu_s']:.1f}", f"{used['core_us_per_unit'] or 0:.2f}"),
                *(f"{used['memory_bytes'] / 1e6:,.1f}", f"{used['rss_bytes'] / 1e6:,.1f}"),
            ]
            for name, used in components(outcome).items()
        ],
    )


def plots(outcome: Outcome) -> Iterable[str]:
    """How everything went over time. Shaded: while the devices spoke."""
    samples, profile = outcome.samples, outcome.options.profile
    if not samples:
        return
    spans = [(outcome.from_s, outcome.to_s)]
    names = list(samples[-1].cores)
    in_log, in_graph = logged(profile), stored(profile)

    def drawn(title: str, unit: str, lines: Mapping[str, Points]) -> str:
        return plot(title, unit, lines, spans, (0.0, samples[-1].at_s))

    yield drawn(
        "Rates",
        "per second",
        {
            f"{profile.unit} said": _rate(samples, lambda each: float(each.said)),
            f"{in_log.what} logged": _rate(samples, in_log.count),
            f"{in_graph.what} stored": _rate(samples, in_graph.count),
        },
    )
    yield drawn(
        "Batches",
        "per second",
        {
            GATEWAY: _rate(samples, PUBLISHES.count),
            TRANSLATOR: _rate(samples, BATCHES.count),
        },
    )
    yield drawn(
        "From capture to graph",
        "s",
        {
            "median": _values(samples, lambda each: _seconds(each.late_ms.at(0.5))),
            "99 %": _values(samples, lambda each: _seconds(each.late_ms.at(0.99))),
        },
    )
    yield drawn(
        "Time of the caller",
        "us",
        {
            "mean": _values(samples, lambda each: each.caller_us.mean),
            "median": _values(samples, lambda each: each.caller_us.at(0.5)),
            "99 %": _values(samples, lambda each: each.caller_us.at(0.99)),
        },
    )
    yield drawn(
        "Kept by the devices",
        "batches",
        {"unacknowledged": _values(samples, lambda each: each.unacknowledged)},
    )
    yield drawn(
        "Log that Spark has not read",
        "rows",
        {"rows": _values(samples, lambda each: each.log_backlog)},
    )
    yield drawn(
        "CPU",
        "cores",
        {name: [(each.at_s, each.cores[name]) for each in samples] for name in names}
        | {"whole machine": _values(samples, lambda each: each.machine_cores)},
    )
    yield drawn(
        "Memory",
        "MB",
        {name: [(each.at_s, each.component_bytes[name] / 1e6) for each in samples] for name in names},
    )


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _values(samples: Sequence[Sample], value_of: Callable[[Sample], float | None]) -> Points:
    return [(each.at_s, value) for each in samples if (value := value_of(each)) is not None]


def _rate(samples: Sequence[Sample], value_of: Callable[[Sample], float | None]) -> Points:
    """Per second, over a few looks, in their middle: who writes in large pieces would seem to jump otherwise."""
    points = _values(samples, value_of)
    return [
        ((before_x + x) / 2, (y - before_y) / (x - before_x))
        for (before_x, before_y), (x, y) in zip(points, points[_LOOKS:], strict=False)
    ]


def _steps(outcome: Outcome) -> Iterable[str]:
    if outcome.steps:
        yield "<h2>Steps</h2>"
        yield table(
            ["rate", "said", "visible after", "p99", "cores busy", ""],
            [
                [
                    *(f"{step.rate:,.0f}/s", f"{step.achieved:,.0f}/s"),
                    *("-" if late is None else f"{late / 1000:.1f} s" for late in (step.late_p50_ms, step.late_p99_ms)),
                    *(f"{step.machine_cores:.2f}", step.verdict),
                ]
                for step in outcome.steps
            ],
        )


def _asked(outcome: Outcome) -> Iterable[str]:
    if outcome.asked is not None:
        yield f"<h2>The API, asked by {outcome.asked.users} users meanwhile</h2>"
        yield table(
            ["", "requests", "per second", "failures", "p50", "p95", "p99", "max"],
            [
                [
                    *(each.name, f"{each.requests:,}", f"{each.per_s:.1f}", str(each.failures)),
                    *(f"{ms:,.0f} ms" for ms in (each.p50_ms, each.p95_ms, each.p99_ms, each.most_ms)),
                ]
                for each in outcome.asked.questions
            ],
        )
        yield from (f"<p>{escape(error)}</p>" for error in outcome.asked.errors)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "figures") -> str:
    """Rows under a head."""
    cells = ["<tr>" + "".join(f"<th>{escape(each)}</th>" for each in head) + "</tr>"]
    cells += ["<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows]
    return f'<table class="{kind}">\n' + "\n".join(cells) + "\n</table>"

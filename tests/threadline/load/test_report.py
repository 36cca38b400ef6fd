"""The report: well-formed pictures and pages, with what they have to say and nothing that could run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.threadline.load.samples import sample
from threadline.load.fleet import DeviceEnd
from threadline.load.loss import Loss
from threadline.load.plots import plot
from threadline.load.profiles import Said, profile_named
from threadline.load.questions import Asked, Question
from threadline.load.report import page
from threadline.load.run import LoadOptions, Outcome
from threadline.load.steps import bottleneck, judge
from threadline.load.summary import components, document, lines


def outcome() -> Outcome:
    samples = [sample(at_s, unacknowledged=3 * at_s) for at_s in range(1, 31)]
    step = judge(samples, 100.0, 0.0, 30.0)
    return Outcome(
        LoadOptions(profile_named("light"), devices=2, rate=100.0, duration_s=30.0, processes=1),
        connected=2,
        from_s=10.0,
        to_s=25.0,
        samples=samples,
        steps=[step],
        bottleneck=bottleneck(step, 2),
        ends=[DeviceEnd("load-0", 1, Said(readings=3_000, results=3_000, origins=3_000), 0, 0, 0)],
        checked=("log", "graph"),
        asked=Asked(3, [Question("sinks", 90, 1, 4.5, 6.0, 40.0, 70.0, 90.0)]),
    )


def test_a_line_goes_from_corner_to_corner() -> None:
    svg = ElementTree.fromstring(plot("Rates", "per second", {"a <b>": [(0, 0), (5, 50), (10, 100)]}))
    [line] = [each for each in svg if each.tag == "polyline"]
    assert line.get("points") == "64.0,210.0 346.0,119.0 628.0,28.0"
    texts = [each.text for each in svg.iter("text")]
    assert texts[0] == "Rates, per second"
    assert {"0", "20", "100", "10 s", "a <b>"} <= set(texts)


def test_many_points_keep_their_peaks() -> None:
    points = [(float(at), 1.0) for at in range(10_000)]
    points[5_003] = (5_003.0, 77.0)
    svg = ElementTree.fromstring(plot("Memory", "MB", {"spark": points}))
    [line] = [each for each in svg if each.tag == "polyline"]
    assert len((line.get("points") or "").split()) <= 600
    assert min(float(each.split(",")[1]) for each in (line.get("points") or "").split()) < 40


@pytest.mark.parametrize("points", [[(1.0, 0.0)], [(1.0, 5.0), (1.0, 5.0)], [(0.0, 0.0), (9.0, 0.0)]])
def test_lines_without_extent_can_be_drawn(points: list[tuple[float, float]]) -> None:
    assert "nan" not in plot("CPU", "cores", {"api": points})


def test_no_lines_make_no_picture() -> None:
    assert plot("CPU", "cores", {"api": []}) == ""


class Tags(HTMLParser):
    """Every tag that is opened has to be closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = page(outcome())
    tags = Tags(text)
    assert tags.open == []
    assert tags.seen.count("svg") == 8
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert not re.search(r"(?:src|href|url)\s*[=(]", text)
    assert "30% of the batches stayed with the devices" in text


def test_what_is_lost_is_told_everywhere() -> None:
    made = outcome()
    made.losses = [Loss("load-0", "log", "results", 3_000, 2_900, ("Gap: <spool> full, batches 3 to 9",))]
    told = "load-0: 2900 of 3000 results are in the log (Gap: <spool> full, batches 3 to 9)"
    assert f"LOST      {told}" in list(lines(made))
    assert told.replace("<", "&lt;").replace(">", "&gt;") in page(made)
    assert document(made)["losses"][0]["found"] == 2_900
    assert not made.is_whole


def test_only_what_was_measured_counts() -> None:
    made = outcome()
    assert made.units == 2_000
    assert made.caller_us.count == 2 * 20
    assert components(made)["spark"]["cpu_s"] == pytest.approx(0.4 * 20)
    assert components(made)["spark"]["core_us_per_unit"] == pytest.approx(0.4 * 20 / 2_000 * 1e6)


def test_batches_that_are_left_are_lost() -> None:
    made = outcome()
    assert made.is_whole
    made.ends = [DeviceEnd("load-0", 1, Said(), 4, 0, 0)]
    assert not made.is_whole
    assert "LOST      4 batches are still with the devices" in list(lines(made))

"""The report: well-formed pictures and pages, with what they have to say and nothing that could run."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from importlib.metadata import version
from xml.etree import ElementTree

import pytest

from tests.threadline.load.outcomes import asked_for_at, outcome, workflow
from tests.threadline.load.samples import sample
from threadline.load.document import document
from threadline.load.fleet import DeviceEnd
from threadline.load.histogram import Histogram
from threadline.load.loss import Loss
from threadline.load.outcome import Outcome
from threadline.load.plots import plot
from threadline.load.profiles import Said, profile_named
from threadline.load.report import _rate, page, plots
from threadline.load.summary import lines


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
    assert "with the warm-up. Shaded: while the devices spoke and were measured." in text


def test_what_is_lost_is_told_everywhere() -> None:
    made = outcome()
    made.losses = [Loss("load-0", "log", "results", 3_000, 2_900, ("Gap: <spool> full, batches 3 to 9",))]
    told = "load-0: 2900 of 3000 results are in the log (Gap: <spool> full, batches 3 to 9)"
    assert f"LOST      {told}" in list(lines(made))
    assert told.replace("<", "&lt;").replace(">", "&gt;") in page(made)
    assert document(made)["losses"][0]["found"] == 2_900
    assert not made.is_whole


def test_what_the_devices_were_too_slow_for_is_told_beside_the_time_of_the_caller() -> None:
    """The time of the caller alone would look good if one device kept all the others of its process waiting."""
    made = outcome()
    assert made.missed == document(made)["missed"] == 1_400
    (caller,) = [line for line in lines(made) if line.startswith("caller ")]
    assert caller.endswith("for a reading; 1,400 readings missed")
    assert "1,400 readings were missed" in page(made)


def test_batches_that_are_left_are_not_lost_but_have_not_arrived() -> None:
    made = outcome()
    assert made.is_whole
    made.ends = [DeviceEnd("load-0", 1, Said(), 4)]
    made.losses = [Loss("load-0", "log", "results", 30, 20, left=4)]
    assert not made.is_whole
    told = (
        "and removed with the spools of the devices: 4 batches; a longer --drain waits for them,"
        " --folder keeps the spools"
    )
    loss = "load-0: 20 of 30 results are in the log (it still has 4 batches)"
    assert list(lines(made))[-2:] == [f"NOT ARRIVED, {told}", f"          {loss}"]
    assert not [line for line in lines(made) if line.startswith(("LOST", "loss"))]
    assert f"Not arrived, {told}" in page(made)
    assert loss in page(made)
    assert document(made)["losses"][0]["may_arrive"] is True


def test_what_could_not_be_written_is_lost() -> None:
    made = outcome()
    made.ends, made.checked = [DeviceEnd("load-0", 1, Said(), 0, unwritten=5), DeviceEnd("load-1", 1, Said(), 0, 2)], ()
    told = "7 records could not be written: they were only in the memory of the devices"
    assert f"LOST      {told}" in list(lines(made))
    assert f"Lost: {told}" in page(made)
    assert document(made)["unwritten"] == 7
    assert not made.is_whole


def test_what_was_given_up_is_lost_unless_somebody_has_looked_for_it() -> None:
    """It may have arrived before it was given up, which the log tells."""
    made = outcome()
    made.ends = [DeviceEnd("load-0", 1, Said(), 0, dropped=5), DeviceEnd("load-1", 1, Said(), 0, dropped=2)]
    told = "7 records were given up: the devices had no room for them"
    assert made.is_whole
    assert told not in "".join([*lines(made), page(made)])
    assert document(made)["dropped"] == 7
    made.checked = ()
    assert list(lines(made))[-2:] == [
        f"LOST      {told}",
        "loss      not looked for: there is neither --log nor --store to look into",
    ]
    assert f"Lost: {told}" in page(made)
    assert not made.is_whole


def test_a_graph_alone_does_not_excuse_what_was_given_up() -> None:
    """A workflow's begin and its end, say: no store is asked for them."""
    made = outcome()
    made.ends, made.checked = [DeviceEnd("load-0", 1, Said(events=2), 0, dropped=2)], ("graph",)
    told = "2 records were given up: the devices had no room for them"
    assert list(lines(made))[-1] == f"LOST      {told}"
    assert f"Lost: {told}" in page(made)
    assert "Nothing was lost" not in page(made)
    assert not made.is_whole


@pytest.mark.parametrize(
    ("checked", "words"),
    [
        (("log",), "everything that was said is in the log"),
        (("log", "graph"), "everything that was said is in the log and in the graph"),
        (("graph",), "all results and tasks are in the graph"),
    ],
)
def test_if_nothing_is_lost_it_is_told_what_was_compared(checked: tuple[str, ...], words: str) -> None:
    made = outcome()
    made.checked = checked
    assert list(lines(made))[-1] == f"loss      none: {words}"
    assert f"<p>Nothing was lost: {words}.</p>" in page(made)


def test_what_broke_down_is_told_with_what_was_measured() -> None:
    made = outcome()
    made.failure, made.ends, made.checked = "translator died at 11 s: killed by <SIGKILL>", [], ()
    told = list(lines(made))
    assert told[-2:] == [
        "FAILED    translator died at 11 s: killed by <SIGKILL>",
        "loss      not looked for: all figures are of what was measured until then",
    ]
    assert "said      2,000 readings in 15 s (133/s)" in told
    assert "translator died at 11 s: killed by &lt;SIGKILL&gt;" in page(made)
    assert document(made)["failure"] == made.failure
    assert not made.is_whole


def test_a_run_without_a_look_can_be_told() -> None:
    """Something broke down at once."""
    made = Outcome(outcome().options, failure="translator died at 0 s: killed by SIGKILL")
    assert Tags(page(made)).open == []
    assert "said      nothing was measured" in list(lines(made))
    assert document(made)["units"] == 0


# What was asked for


def test_a_rate_that_was_not_reached_is_told() -> None:
    """2,000 readings were said in 15 s."""
    assert "TOO SLOW  asked for 1,000/s, said 133/s" in list(lines(asked_for_at(1_000.0)))
    assert "The devices said less than was asked for" in page(asked_for_at(1_000.0))
    broken = asked_for_at(1_000.0)
    broken.failure = "translator died at 11 s"
    for made in (outcome(), asked_for_at(139.0), asked_for_at(1_000.0, find_max=True), broken):
        assert not [line for line in lines(made) if line.startswith("TOO SLOW")]


def test_one_step_less_is_not_too_slow() -> None:
    made = asked_for_at(0.4, profile=profile_named("query"))
    made.samples = [sample(at_s, said=0) for at_s in range(1, 31)]
    assert not [line for line in lines(made) if line.startswith("TOO SLOW")]
    hint = (
        "0.4 origins/s in 15 s are too few to say anything, as a device says 50 at a time: take a higher --rate or a"
        " longer --duration"
    )
    assert f"          {hint}" in list(lines(made))
    assert hint in page(made)
    assert "too few" not in page(outcome())


def test_page_and_document_say_what_was_run() -> None:
    made = outcome()
    text, told = page(made), document(made)
    for name, value in (
        *(("profile", "light"), ("devices", "2 in 1 process"), ("rate", "100 readings/s"), ("duration", "30 s")),
        *(("said", "2,000 readings in 15.0 s (133.3/s)"), ("begun", f"{made.begun:%Y-%m-%d %H:%M:%S} UTC")),
    ):
        assert f"<tr><td>{name}</td><td>{value}</td></tr>" in text
    assert f"threadline {version('threadline')}" in text
    assert f"{os.cpu_count()} cores" in text
    assert (told["duration_s"], told["step_s"], told["version"]) == (30.0, None, version("threadline"))
    assert datetime.fromisoformat(told["begun"]) == made.begun


def test_a_cost_is_of_one_unit() -> None:
    assert "CPU us per reading<" in page(outcome())
    assert any(line.endswith("us of CPU per reading,     1.0 MB") for line in lines(outcome()))


@pytest.mark.parametrize(
    ("is_held", "is_finished", "words"),
    [
        (True, True, "97 readings/s sustained (asked for 100/s)"),
        (True, False, "at least 97 readings/s (asked for 100/s): the search was not finished"),
        (False, False, "not known: the search was not finished"),
    ],
)
def test_the_highest_rate_is_what_was_said(is_held: bool, is_finished: bool, words: str) -> None:
    made = asked_for_at(100.0, find_max=True)
    step = replace(made.steps[0], achieved=97.0)
    made.highest, made.is_search_finished = step if is_held else None, is_finished
    assert f"highest   {words}" in list(lines(made))
    assert f"<p>Highest rate: {words}.</p>" in page(made)
    told = document(made)
    assert told["search_finished"] is is_finished
    assert (told["highest"], told["highest_asked_for"]) == ((97.0, 100.0) if is_held else (None, None))


# On the way


def test_what_is_logged_and_stored_is_drawn_in_the_unit_of_the_profile() -> None:
    text = page(workflow())
    assert all(f"<title>{name}</title>" in text for name in ("tasks said", "records logged", "tasks stored"))
    made = workflow()
    for each in made.samples:
        each.seen = None
    assert "tasks stored" not in page(made)


def test_a_rate_is_drawn_in_the_middle_of_the_looks_that_it_is_of() -> None:
    looks = [sample(at, said=100 * max(0, at - 10)) for at in range(30)]
    drawn = dict(_rate(looks, lambda each: float(each.said)))
    assert drawn[7.5] == 0.0
    assert drawn[10.5] == pytest.approx(60.0)  # three of five seconds, from 8 to 13
    assert drawn[12.5] == 100.0


def test_all_pictures_have_the_same_time() -> None:
    made = outcome()
    made.samples[0].late_ms = made.samples[-1].late_ms = Histogram()
    ticks = {
        tuple(re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="x">(\d+) s', picture))
        for picture in plots(made)
        if picture
    }
    assert len(ticks) == 1


def test_a_run_is_whole_if_all_were_there_and_nothing_stayed_with_them() -> None:
    assert outcome().is_whole
    made = outcome()
    made.connected = made.options.devices - 1
    assert not made.is_whole
    made = outcome()
    made.ends = [replace(made.ends[0], left=1)]
    assert not made.is_whole

"""What came of a run, in lines for people."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from os import cpu_count

from threadline.load.figures import components, has_too_little_to_say, is_short, rates
from threadline.load.loss import LOG
from threadline.load.outcome import Outcome
from threadline.load.steps import Step

_MOST_LOSSES = 20
COLD = "Spark had not got going when the devices began to speak: its first micro-batches are among the figures"


def lines(outcome: Outcome) -> Iterator[str]:
    """For people."""
    options = outcome.options
    profile = options.profile
    yield (
        f"{outcome.connected} of {options.devices} devices connected within {outcome.connect_s:.1f} s, in "
        f"{_processes(options.processes)}; profile {profile.name}"
    )
    yield from _said_lines(outcome)
    caller = outcome.caller_us
    if caller.count:
        missed = f"{outcome.missed:,} {profile.unit} missed"
        yield f"caller    {_times(caller.figures(), 'us')} for {profile.call}; {missed}"
    late = outcome.late_ms
    if late.count:
        yield f"to graph  {_times(late.figures(), 'ms')} from the capture until it is visible ({late.count:,} seen)"
    for name, per_s in rates(outcome).items():
        yield f"rate      {name} {per_s:,.1f}/s"
    for name, used in components(outcome).items():
        per_unit = used["core_us_per_unit"]
        yield (
            f"cost      {name:<10} {used['cores']:5.2f} cores"
            + ("" if per_unit is None else f", {per_unit:8.2f} us of CPU per {profile.one}")
            + f", {used['memory_bytes'] / 1e6:7.1f} MB"
        )
    for step in outcome.steps:
        yield step_line(step)
    if options.find_max:
        yield f"highest   {highest(outcome)}"
    if outcome.bottleneck is not None:
        yield f"first bottleneck: {outcome.bottleneck.component} ({outcome.bottleneck.why})"
    if outcome.asked is not None:
        for each in outcome.asked.questions:
            yield (
                f"asked     {each.name:<9} {each.requests:6} times ({each.per_s:.1f}/s), {each.failures} failures, "
                f"p50 {each.p50_ms:.0f} ms, p95 {each.p95_ms:.0f} ms, p99 {each.p99_ms:.0f} ms"
            )
        yield from (f"asked     {each}" for each in outcome.asked.errors)
    yield from _loss_lines(outcome)


def highest(outcome: Outcome) -> str:
    """What --find-max has found."""
    step = outcome.highest
    if step is None:
        return "not known: the search was not finished"
    rate = f"{step.achieved:,.0f} {outcome.options.profile.unit}/s"
    asked = f"asked for {step.rate:,.0f}/s"
    if outcome.is_search_finished:
        return f"{rate} sustained ({asked})"
    return f"at least {rate} ({asked}): the search was not finished"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _said_lines(outcome: Outcome) -> Iterator[str]:
    options, units, at_work_s = outcome.options, outcome.units, outcome.at_work_s
    if not at_work_s:
        yield "said      nothing was measured" + (
            "" if outcome.failure else ": not all devices were connected, which may need a longer --connect"
        )
        return
    said = units / at_work_s
    yield f"said      {units:,} {options.profile.unit} in {at_work_s:.0f} s ({said:,.0f}/s)"
    if is_short(outcome):
        yield f"TOO SLOW  asked for {options.rate:,.0f}/s, said {said:,.0f}/s"
    if has_too_little_to_say(outcome):
        yield f"          {too_little(outcome)}"
    if outcome.was_cold:
        yield f"COLD      {COLD}"


def too_little(outcome: Outcome) -> str:
    """What to do if nobody's turn had come."""
    profile = outcome.options.profile
    return (
        f"{outcome.options.rate:g} {profile.unit}/s in {outcome.at_work_s:.0f} s are too few to say anything, as a"
        f" device says {profile.per_step} at a time: take a higher --rate or a longer --duration"
    )


def step_line(step: Step) -> str:
    """One rate that was tried."""
    late = "" if step.late_p50_ms is None else f", visible after {step.late_p50_ms / 1000:.1f} s"
    return f"step      {step.rate:,.0f}/s{late}, {step.machine_cores:.2f} cores busy: {step.verdict}"


def _loss_lines(outcome: Outcome) -> Iterator[str]:
    if outcome.was_stopped:
        yield "stopped early, as asked: all figures are of what was measured so far"
    yield from (f"DIED      {text}" for text in outcome.gone.values())
    if outcome.failure is not None:
        yield f"FAILED    {outcome.failure}"
        yield "loss      not looked for: all figures are of what was measured until then"
        return
    for loss in outcome.lost[:_MOST_LOSSES]:
        yield f"LOST      {loss}"
    if len(outcome.lost) > _MOST_LOSSES:
        yield f"LOST      and {len(outcome.lost) - _MOST_LOSSES} more like these"
    if outcome.unwritten:
        yield f"LOST      {unwritten(outcome)}"
    if outcome.unsought:
        yield f"LOST      {given_up(outcome)}"
    if outcome.left:
        yield f"NOT ARRIVED, {left(outcome)}"
        yield from (f"          {loss}" for loss in outcome.delayed[:_MOST_LOSSES])
    if not outcome.checked:
        yield "loss      not looked for: there is neither --log nor --store to look into"
    elif outcome.is_everything_there:
        yield f"loss      none: {what_is_there(outcome)}"


def what_is_there(outcome: Outcome) -> str:
    """What was compared, if nothing is missing: the graph alone does not tell of readings and workflows."""
    compared = "everything that was said is" if LOG in outcome.checked else "all results and tasks are"
    return f"{compared} in the {' and in the '.join(outcome.checked)}"


def left(outcome: Outcome) -> str:
    """What was still with the devices, and what to do about it."""
    if outcome.options.folder is None:
        return (
            f"and removed with the spools of the devices: {outcome.left} batches; a longer --drain waits for them,"
            " --folder keeps the spools"
        )
    return (
        f"still with the devices: {outcome.left} batches; a longer --drain waits for them, their spools are in"
        f" {outcome.options.folder}"
    )


def unwritten(outcome: Outcome) -> str:
    """What is gone with the memory of the devices."""
    return f"{outcome.unwritten} records could not be written: they were only in the memory of the devices"


def given_up(outcome: Outcome) -> str:
    """What the devices had no room for."""
    return f"{outcome.dropped} records were given up: the devices had no room for them"


def _times(figures: dict[str, float | None], unit: str) -> str:
    return ", ".join(f"{name} {value:,.1f} {unit}" for name, value in figures.items() if name != "count" and value)


def asked_for(outcome: Outcome) -> dict[str, str]:
    """What was run, where and when, for people."""
    options, profile = outcome.options, outcome.options.profile
    length = f"steps of {options.step_s:g} s" if options.find_max else f"{options.duration_s:g} s"
    said = f"{outcome.units:,} {profile.unit} in {outcome.at_work_s:.1f} s"
    if outcome.at_work_s:
        said += f" ({outcome.units / outcome.at_work_s:,.1f}/s)"
    return {
        "profile": profile.name,
        "devices": f"{options.devices:,} in {_processes(options.processes)}",
        "first rate" if options.find_max else "rate": f"{options.rate:,g} {profile.unit}/s",
        "duration": length,
        "users of the API": str(options.users),
        "said": said,
        "begun": f"{outcome.begun:%Y-%m-%d %H:%M:%S} UTC",
        "version": f"threadline {version('threadline')}, Python {platform.python_version()}",
        "machine": f"{cpu_count()} cores, {platform.platform()}",
    }
